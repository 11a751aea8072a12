"""What setup_anndata accepts, refuses, keeps and writes."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from anndata import AnnData

from tosica import TOSICA, pp

SCVI_KEYS = {"obs/_scvi_batch", "obs/_scvi_labels", "uns/_scvi_manager_uuid", "uns/_scvi_uuid"}


def setup(adata, **kwargs):
    TOSICA.setup_anndata(adata, **{"labels_key": "kind", **kwargs})
    return TOSICA(adata, embed_dim=8, n_heads=2)


# --------------------------------------------------------------------------- what is written


def test_writes_only_what_scvi_writes(toy, contents, new_keys):
    before = contents(toy)
    TOSICA.setup_anndata(toy, labels_key="kind", batch_key="donor")
    assert new_keys(before, contents(toy)) == SCVI_KEYS


@pytest.mark.parametrize("form", ["csc", "dense", "float64", "int64", "fortran"])
def test_leaves_the_matrix_as_it_is(toy, contents, new_keys, form):
    dense = toy.X.toarray()
    toy.X = {
        "csc": lambda: sp.csc_matrix(toy.X),
        "dense": lambda: dense,
        "float64": lambda: toy.X.astype(np.float64),
        "int64": lambda: toy.X.astype(np.int64),
        "fortran": lambda: np.asfortranarray(dense),
    }[form]()
    before = contents(toy)
    setup(toy)
    assert new_keys(before, contents(toy)) == SCVI_KEYS


# --------------------------------------------------------------------------- labels


@pytest.mark.parametrize("ordered", [False, True])
def test_labels_keep_the_order_of_their_categories(toy, ordered):
    toy.obs["kind"] = pd.Categorical(toy.obs["kind"], ["c", "a", "b"], ordered=ordered)
    model = setup(toy)
    assert model.labels == ["c", "a", "b"]
    expected = toy.obs["kind"].cat.codes.to_numpy()
    np.testing.assert_array_equal(toy.obs["_scvi_labels"], expected)


def test_unused_categories_are_no_labels(toy):
    categories = ["c", "none of these", "a", "b", "nor this"]
    toy.obs["kind"] = pd.Categorical(toy.obs["kind"], categories)
    toy.uns["kind_colors"] = ["#000001", "#000002", "#000003", "#000004", "#000005"]
    model = setup(toy)
    assert model.labels == ["c", "a", "b"]
    assert model.module.head.out_features == 3
    state = model.registry["field_registries"]["labels"]["state_registry"]
    assert state["colors"] == ["#000001", "#000003", "#000004"]
    assert sorted(toy.obs["_scvi_labels"].unique()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (np.array(["x", "m", "a"], dtype=object), ["a", "m", "x"]),
        (np.array([10, 9, 2]), ["2", "9", "10"]),
        (np.array([1.5, 0.25, 10.0]), ["0.25", "1.5", "10.0"]),
        (np.array([True, False, True]), ["False", "True"]),
    ],
    ids=["str", "int", "float", "bool"],
)
def test_labels_of_any_type(toy, values, labels):
    toy.obs["kind"] = values[np.arange(toy.n_obs) % 3]
    before = toy.obs["kind"].copy()
    model = setup(toy)
    assert model.labels == labels
    names = np.array(labels)[toy.obs["_scvi_labels"]]
    np.testing.assert_array_equal(names, toy.obs["kind"].astype(str))
    pd.testing.assert_series_equal(toy.obs["kind"], before)


@pytest.mark.parametrize("name", ["?", "zzz", "Unknown"], ids=["first", "last", "Unknown"])
def test_cells_without_a_label_are_no_class(toy, name):
    kind = toy.obs["kind"].astype(str).to_numpy(dtype=object)
    kind[:10] = name
    toy.obs["kind"] = pd.Categorical(kind)
    model = setup(toy, unlabeled_category=name)
    assert model.labels == ["a", "b", "c"]
    assert model.module.head.out_features == 3
    # scvi-tools' convention: the code behind the last label.
    assert set(toy.obs["_scvi_labels"][:10]) == {3}


def test_colors_follow_the_labels_when_the_unlabelled_are_moved_last(toy):
    kind = toy.obs["kind"].astype(str).to_numpy(dtype=object)
    kind[:10] = "?"
    toy.obs["kind"] = pd.Categorical(kind)
    toy.uns["kind_colors"] = np.array(["#eeeeee", "#aa0000", "#00bb00", "#0000cc"])
    state = setup(toy, unlabeled_category="?").registry["field_registries"]["labels"]
    assert state["state_registry"]["colors"] == ["#aa0000", "#00bb00", "#0000cc", "#eeeeee"]


@pytest.mark.parametrize("kept", [None, ["#aa0000"]], ids=["none", "too few"])
def test_without_colors_scanpys_are_taken(toy, kept):
    del toy.uns["kind_colors"]
    if kept is not None:
        toy.uns["kind_colors"] = kept
    state = setup(toy).registry["field_registries"]["labels"]["state_registry"]
    assert state["colors"] == sc.pl.palettes.default_20[:3]


@pytest.mark.parametrize(("n", "palette"), [(24, "default_28"), (60, "default_102"), (110, None)], ids=str)
def test_colors_of_many_labels(n, palette):
    rng = np.random.default_rng(0)
    adata = AnnData(rng.poisson(2.0, (2 * n, 12)).astype(np.float32))
    adata.obs["kind"] = np.arange(2 * n) % n
    pp.build_mask(adata, {"s": adata.var_names[:6].tolist()})
    state = setup(adata).registry["field_registries"]["labels"]["state_registry"]
    expected = getattr(sc.pl.palettes, palette)[:n] if palette else ["#808080"] * n
    assert state["colors"] == expected


# --------------------------------------------------------------------------- other arguments


def test_batches_are_registered(toy):
    model = setup(toy, batch_key="donor")
    assert model.summary_stats["n_batch"] == 2
    np.testing.assert_array_equal(toy.obs["_scvi_batch"], toy.obs["donor"].cat.codes)


def test_layer_is_read_instead_of_x(toy):
    toy.layers["counts"] = toy.X.copy()
    toy.X = toy.X.multiply(-1.0).tocsr()
    model = setup(toy, layer="counts")
    assert model.registry["setup_args"]["layer"] == "counts"
    assert "read as counts" in repr(model)


def test_mask_under_another_key(toy):
    pp.build_mask(toy, {"only": toy.var_names[:9].tolist()}, key_added="other")
    other = setup(toy, mask_key="other")
    assert [name for name in other.gene_sets if "module" not in name] == ["only"]
    assert setup(toy).gene_sets[:4] == ["alpha", "beta", "gamma", "mixed"]


@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
def test_mask_in_any_form(toy, form):
    expected = setup(toy.copy()).registry["field_registries"]["mask"]["state_registry"]
    dense = toy.varm["tosica_mask"].toarray()
    toy.varm["tosica_mask"] = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}[form](dense)
    state = setup(toy).registry["field_registries"]["mask"]["state_registry"]
    np.testing.assert_array_equal(state["genes"], expected["genes"])
    np.testing.assert_array_equal(state["indptr"], expected["indptr"])


def test_counts_and_log_normalised_are_told_apart(toy):
    assert setup(toy).modalities[0].scale[:3] == ("counts", 1e4, "genes")
    counts = toy.X.toarray()
    toy.X = np.log1p(counts * 5000 / counts.sum(1, keepdims=True))
    kind, target_sum, over, *_ = setup(toy).modalities[0].scale
    assert (kind, over) == ("log1p", "genes")
    assert target_sum == pytest.approx(5000, rel=1e-3)


def test_labels_with_a_single_cell_are_warned_of(toy):
    sentence = (
        "labels with a single cell in adata.obs['kind']: 'rare', 'rarer'. They are learnt, but "
        "neither validated nor calibrated: add cells, merge the label, or leave such labels out by "
        "min_cells=2."
    )
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories(["rarer", "rare", "?"])
    toy.obs.loc[["cell4", "cell5", "cell6"], "kind"] = ["rare", "rarer", "?"]
    with pytest.warns(UserWarning, match=re.escape(sentence)):
        model = setup(toy, unlabeled_category="?")
    assert model.labels == ["a", "b", "c", "rarer", "rare"]


# --------------------------------------------------------------------------- wrong input


def _labels_nan(adata):
    adata.obs.loc["cell4", "kind"] = np.nan


def _labels_equal(adata):
    adata.obs["kind"] = "a"


def _called_unknown(adata):
    adata.obs["kind"] = adata.obs["kind"].cat.rename_categories({"b": "Unknown"})


def _same_text(adata):
    adata.obs["kind"] = np.array([1, "1", 2], dtype=object)[np.arange(adata.n_obs) % 3]


def _x_value(value):
    def change(adata):
        dense = adata.X.toarray()
        dense[7, 3] = value
        adata.X = dense

    return change


def _x_value_sparse(value):
    def change(adata):
        adata.X = adata.X.copy()
        adata.X.data[adata.X.indptr[7]] = value

    return change


def _x_zero(adata):
    adata.X = sp.csr_matrix(adata.shape, dtype=np.float32)


def _x_none(adata):
    adata.X = None


def _x_powers(adata):
    adata.X = 3.3 * np.asarray(adata.X.todense() if sp.issparse(adata.X) else adata.X) ** 1.7


def _names_twice(attribute):
    def change(adata):
        names = getattr(adata, attribute).to_numpy(copy=True)
        names[3] = names[2]
        setattr(adata, attribute, names)

    return change


def _no_mask(adata):
    del adata.varm["tosica_mask"], adata.uns["tosica_mask"]


def _no_mask_uns(adata):
    del adata.uns["tosica_mask"]


def _no_mask_varm(adata):
    del adata.varm["tosica_mask"]


def _mask_of_others(adata):
    other = adata.copy()
    pp.build_mask(other, {"only": adata.var_names[:9].tolist()})
    adata.uns["tosica_mask"] = other.uns["tosica_mask"]


def _mask_emptied(adata):
    mask = adata.varm["tosica_mask"].toarray()
    mask[:, 1] = False
    adata.varm["tosica_mask"] = sp.csr_matrix(mask)


def _batch_nan(adata):
    adata.obs.loc["cell4", "donor"] = np.nan


def _batch_gone(adata):
    del adata.obs["donor"]


def _labels_gone(adata):
    del adata.obs["kind"]


WRONG = {
    "labels missing": (_labels_gone, KeyError, "no column"),
    "labels NaN": (_labels_nan, ValueError, "1 cells have no label (NaN) in adata.obs['kind']"),
    "labels equal": (
        _labels_equal,
        ValueError,
        "adata.obs['kind'] needs at least two different labels to tell apart; found 'a'.",
    ),
    "called Unknown": (
        _called_unknown,
        ValueError,
        "has a label 'Unknown', which annotate writes where it is in doubt: rename it, or pass "
        "unlabeled_category='Unknown'.",
    ),
    "same text": (_same_text, ValueError, "adata.obs['kind'] has different labels with the same text ('1')"),
    "NaN": (_x_value(np.nan), ValueError, "adata.X holds NaN (first in cell 7)"),
    "NaN sparse": (_x_value_sparse(np.nan), ValueError, "adata.X holds NaN (first in cell 7)"),
    "infinity": (_x_value(np.inf), ValueError, "adata.X holds infinity (first in cell 7)"),
    "negative": (
        _x_value(-0.5),
        ValueError,
        "adata.X holds negative values (first in cell 7), so it was scaled or centred; tosica "
        "needs counts or log-normalised expression. No unscaled matrix was found",
    ),
    "zero": (_x_zero, ValueError, "adata.X is zero everywhere."),
    "no X": (_x_none, ValueError, "adata.X is empty (None); name the matrix to use with layer="),
    "not log": (_x_powers, ValueError, "neither counts nor log-normalised"),
    "var_names": (
        _names_twice("var_names"),
        ValueError,
        "var_names are not unique ('G2'): call adata.var_names_make_unique() first.",
    ),
    "obs_names": (
        _names_twice("obs_names"),
        ValueError,
        "obs_names are not unique ('cell2'): call adata.obs_names_make_unique() first.",
    ),
    "no mask": (
        _no_mask,
        KeyError,
        "There is no mask in adata.varm['tosica_mask'] and adata.uns['tosica_mask']: call "
        "tosica.pp.build_mask(adata) first.",
    ),
    "no mask in uns": (_no_mask_uns, KeyError, "call tosica.pp.build_mask(adata) first."),
    "no mask in varm": (_no_mask_varm, KeyError, "call tosica.pp.build_mask(adata) first."),
    "other mask": (
        _mask_of_others,
        ValueError,
        "adata.varm['tosica_mask'] has 4 gene sets and adata.uns['tosica_mask'] names 1: they are not from one call",
    ),
    "empty set": (_mask_emptied, ValueError, "1 gene sets of adata.varm['tosica_mask'] have no gene in adata ('beta')"),
    "batch NaN": (_batch_nan, ValueError, "adata.obs['donor'] has cells without a batch (NaN)."),
    "batch missing": (_batch_gone, KeyError, "no column"),
}


@pytest.mark.filterwarnings("ignore:(Variable|Observation) names are not unique:UserWarning")
@pytest.mark.parametrize(("change", "error", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_refused_and_left_alone(toy, contents, change, error, sentence):
    change(toy)
    before = contents(toy)
    with pytest.raises(error, match=re.escape(sentence)):
        TOSICA.setup_anndata(toy, labels_key="kind", batch_key="donor")
    assert contents(toy) == before


def test_no_cells(toy):
    with pytest.raises(ValueError, match=re.escape("adata.X has no cells.")):
        setup(toy[:0].copy())


def test_no_such_layer(toy, contents):
    toy.layers["counts"] = toy.X.copy()
    before = contents(toy)
    with pytest.raises(KeyError, match="adata has no layer 'raw', only 'counts'"):
        setup(toy, layer="raw")
    assert contents(toy) == before


def test_scaled_matrix_says_where_the_unscaled_one_is(toy, contents):
    toy.raw = toy
    toy.layers["counts"] = toy.X.copy()
    dense = toy.X.toarray()
    toy.X = (dense - dense.mean(0)) / (dense.std(0) + 1)
    before = contents(toy)
    with pytest.raises(ValueError, match="holds negative values") as caught:
        setup(toy)
    assert "adata.raw" in str(caught.value)
    assert "adata.layers['counts'] (layer='counts')" in str(caught.value)
    assert contents(toy) == before


def test_only_unlabelled_cells(toy):
    toy.obs["kind"] = "?"
    with pytest.raises(ValueError, match=r"needs at least two different labels.*found none"):
        setup(toy, unlabeled_category="?")


def test_model_before_setup(toy):
    with pytest.raises(ValueError, match=r"was not set up .*: call TOSICA\.setup_anndata\("):
        TOSICA(toy)
