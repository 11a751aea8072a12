"""The contract of all functions on annotated data, whatever the data are kept in.

Views, files, files on disk and MuData give what the AnnData gives; a call changes nothing but what
it writes, and writes the same again; ``copy`` and ``key_added`` mean the same everywhere.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import anndata
import numpy as np
import pytest
from _cells import TOY_SETS, contents_of, flat, make_toy
from anndata import AnnData
from mudata import MuData
from sklearn.neighbors import kneighbors_graph

import tosica
from tosica import _validate, get, tl

pytestmark = pytest.mark.filterwarnings(
    "ignore:Writing zarr v2:UserWarning",
    "ignore:Consolidated metadata:UserWarning",
    "ignore:.*specification.*:FutureWarning",
    "ignore::anndata.ImplicitModificationWarning",
    "ignore:Contributions miss the difference",
)


def annotate(adata, model, **arguments):
    """The method, as the functions are called."""
    return model.annotate(adata, **arguments)


# Arguments after the data; "model" stands for the model that annotated them.
WRITERS = {
    annotate: {"model": "model", "probabilities": True, "cutoff": 0.6},
    tl.attribute: {"model": "model", "n_steps": 4, "cells": True},
    tl.faithfulness: {"model": "model", "n_cells": 5, "shares": (0, 0.5, 1)},
    tl.novelty: {"model": "model", "over_clustering": "donor"},
    tl.rank_gene_sets: {"groupby": "kind"},
    tl.correlate_gene_sets: {"obs_key": "tosica_probability"},
    tl.majority_vote: {},
}
READERS = {
    tl.confusion: {"labels_key": "kind"},
    tl.evaluate: {"labels_key": "kind"},
    tl.reliability: {"labels_key": "kind"},
    get.contributions: {},
    get.explain: {},
    get.gene_sets_df: {},
    get.genes_df: {},
    get.mask_coverage: {},
    get.rank_gene_sets_df: {},
}
# These read what `tl.attribute` has written.
AFTER_ATTRIBUTE = ("faithfulness", "rank_gene_sets", "correlate_gene_sets")
NAMES = [function.__name__ for function in WRITERS | READERS]
BY_NAME = {function.__name__: function for function in WRITERS | READERS}


@pytest.fixture(scope="module")
def _plain(toy_model):
    adata = make_toy(60, seed=1)
    toy_model.annotate(adata, probabilities=True)
    near = kneighbors_graph(adata.obsm["X_tosica"], 5)
    adata.obsp["connectivities"] = near.maximum(near.T).tocsr()
    adata.uns["neighbors"] = {"connectivities_key": "connectivities"}
    return adata


@pytest.fixture(scope="module")
def _attributed(_plain, toy_model):
    adata = _plain.copy()
    tl.attribute(adata, toy_model, n_steps=4, cells=True)
    return adata


@pytest.fixture(scope="module")
def _annotated(_plain, toy_model):
    adata = _plain.copy()
    tosica.pp.build_mask(adata, TOY_SETS)
    for function, arguments in WRITERS.items():
        if function is not tl.novelty:
            function(adata, **_filled(arguments, toy_model))
    return adata


@pytest.fixture(scope="module")
def folder(_plain, _attributed, _annotated, tmp_path_factory):
    path = tmp_path_factory.mktemp("contract")
    stored = {
        "cells": make_toy(60, seed=1),
        "plain": _plain,
        "attributed": _attributed,
        "annotated": _annotated,
    }
    for name, adata in stored.items():
        adata.write_h5ad(path / f"{name}.h5ad")
        adata.write_zarr(path / f"{name}.zarr")
    return path


@pytest.fixture
def plain(name, _plain, _attributed):
    """60 cells with what the named function needs: the annotation and a graph, and contributions."""
    if name == "annotate":
        return make_toy(60, seed=1)
    return (_attributed if name in AFTER_ATTRIBUTE else _plain).copy()


@pytest.fixture
def annotated(_annotated):
    """The same cells with the result of every tool."""
    return _annotated.copy()


def _filled(arguments, model):
    return arguments | ({"model": model} if "model" in arguments else {})


def _results(name, adata, model, **options):
    """What a call returns or has written, in a form that ``==`` compares."""
    function = BY_NAME[name]
    if function in READERS:
        out = {}
        value = function(adata, **READERS[function], **options)
        if isinstance(value, AnnData):  # files change the type of the colors
            return {
                k: v for k, v in contents_of(value).items() if not k.endswith("_colors")
            }
        flat(vars(value) if dataclasses.is_dataclass(value) else value, "", out)
        return out
    original = _state(adata)
    function(adata, **_filled(WRITERS[function], model), **options)
    changed = _state(adata)
    return {key: changed[key] for key in changed if changed[key] != original.get(key)}


def _state(adata):
    out = {}
    for name in ("obs", "var", "layers", "obsm", "varm", "uns"):
        if hasattr(adata, name):
            flat(getattr(adata, name), name, out)
    return out


def _as_mudata(adata):
    mdata = MuData({"rna": AnnData(adata.X, obs=adata.obs[[]], var=adata.var[[]])})
    mdata.obs, mdata.uns = adata.obs.copy(), adata.uns
    for key in adata.obsm:
        mdata.obsm[key] = adata.obsm[key]
    for key in adata.obsp:
        mdata.obsp[key] = adata.obsp[key]
    return mdata


@pytest.mark.parametrize("name", [function.__name__ for function in WRITERS])
def test_copies_keys_and_calls_that_are_repeated(
    name, plain, toy_model, contents, new_keys
):
    function, arguments = BY_NAME[name], _filled(WRITERS[BY_NAME[name]], toy_model)
    original = contents(plain)
    copied = function(plain, **arguments, copy=True)
    assert contents(plain) == original
    assert function(plain, **arguments) is None
    changed = contents(plain)
    assert contents(copied) == changed
    if name == "novelty":  # it takes the place of what annotate wrote
        return
    assert new_keys(original, changed)
    function(plain, **arguments)
    assert contents(plain) == changed
    renamed = function(plain, **arguments, copy=True, key_added="mine")
    new = new_keys(changed, contents(renamed))
    assert new
    assert all("mine" in key for key in new)


@pytest.mark.parametrize("name", [function.__name__ for function in WRITERS])
def test_backed_cells_are_not_copied_after_the_work(name, plain, toy_model, tmp_path):
    function, arguments = BY_NAME[name], _filled(WRITERS[BY_NAME[name]], toy_model)
    plain.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    with pytest.raises(ValueError, match=f"{name} cannot write to .* copy=True: call"):
        function(backed, **arguments, copy=True)
    backed.file.close()


@pytest.mark.parametrize("container", ["view", "backed", "h5ad", "zarr", "mudata"])
@pytest.mark.parametrize("name", NAMES)
def test_what_the_data_are_kept_in(
    name, container, plain, annotated, toy_model, folder
):
    function = BY_NAME[name]
    stored = (
        "annotated"
        if function in READERS
        else "attributed"
        if name in AFTER_ATTRIBUTE
        else "plain"
    )
    stored = "cells" if name == "annotate" else stored
    adata = annotated if function in READERS else plain
    same_cells: Any
    if container == "view":
        same_cells = adata.copy()[np.arange(adata.n_obs)]
    elif container == "backed":
        same_cells = anndata.read_h5ad(folder / f"{stored}.h5ad", backed="r")
    elif container == "mudata":
        same_cells = _as_mudata(adata.copy())
        # A model of an AnnData does not read a MuData.
        if name in ("annotate", "attribute") or not _takes(function, same_cells):
            with pytest.raises(
                TypeError, match=r"not a MuData: pass one modality of it, as in "
            ):
                _results(name, same_cells, toy_model)
            return
    else:
        same_cells = getattr(anndata, f"read_{container}")(
            folder / f"{stored}.{container}"
        )
    original = contents_of(annotated)
    actual, expected = (_results(name, data, toy_model) for data in (same_cells, adata))
    if function in READERS:  # which change nothing
        assert contents_of(annotated) == original
    if container == "mudata":
        expected.pop("X", None), actual.pop("X", None)
    assert _without_types(actual) == _without_types(expected)


def _takes(function, data):
    return _validate.CONSTRAINTS[f"{function.__module__}.{function.__name__}"][
        "adata"
    ].has_type(data)


def _without_types(results):
    """Results without types of text, which files may change."""
    text = ("object", "str", "string")
    return {
        key: [
            item
            for item in value
            if str(item) not in text and not str(item).startswith("<U")
        ]
        if isinstance(value, tuple)
        else value
        for key, value in results.items()
    }


@pytest.mark.parametrize("name", NAMES[1:])
def test_data_that_are_not_annotated(name, toy_model):
    adata = make_toy(12, seed=1)
    original = contents_of(adata)
    with pytest.raises(
        KeyError, match=r"run model\.annotate|tosica\.(tl|pp)\.\w+|no column"
    ):
        _results(name, adata, toy_model)
    assert contents_of(adata) == original


@pytest.mark.parametrize(
    "name",
    [
        function.__name__
        for function, parameters in WRITERS.items()
        if "model" in parameters
    ][1:],
)
def test_data_that_another_model_annotated(name, annotated, toy_model):
    annotated.uns["tosica"]["model"] = "0" * 16
    original = contents_of(annotated)
    with pytest.raises(ValueError, match="pass the model that annotated adata"):
        _results(name, annotated, toy_model)
    assert contents_of(annotated) == original
