"""Wrong input that is more than one wrong argument: data that changed, names that collide."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from _cells import TOY_SETS
from anndata import AnnData
from mudata import MuData

import tosica
from tosica import TOSICA

# Genes 24 to 29 are in no gene set.
FEWER = np.arange(30) < 25


def set_up(adata, **arguments):
    TOSICA.setup_anndata(adata, labels_key="kind", **arguments)
    return TOSICA(adata, embed_dim=8, n_heads=2)


# --------------------------------------------------------------------------- genes that went


def test_genes_dropped_after_build_mask(toy, unchanged):
    adata = toy[:, FEWER].copy()
    sentence = (
        r"^adata\.varm\['tosica_mask'\] was built for 30 genes, and adata has 25: genes were left "
        r"out since; call tosica\.pp\.build_mask\(adata\) again\.$"
    )
    with unchanged(adata), pytest.raises(ValueError, match=sentence):
        set_up(adata)
    tosica.pp.build_mask(adata, TOY_SETS)
    set_up(adata)


def test_genes_dropped_after_setup(toy):
    TOSICA.setup_anndata(toy, labels_key="kind")
    with pytest.raises(
        ValueError, match=r"^adata is a copy or a part of the data that"
    ):
        TOSICA(toy[:, FEWER].copy())
    toy._inplace_subset_var(FEWER)
    with pytest.raises(
        ValueError, match=r"^adata has 25 genes now, and 30 when it was set up"
    ):
        TOSICA(toy)


@pytest.mark.parametrize("change", ["drop", "reorder", "rename"])
def test_genes_changed_before_train(toy, change):
    model = set_up(toy)
    if change == "drop":
        toy._inplace_subset_var(FEWER)
    elif change == "reorder":
        toy._inplace_subset_var(np.arange(30)[::-1])
    else:
        toy.var_names = [f"gene{i}" for i in range(30)]
    with pytest.raises(ValueError, match=r"^adata has .* genes.* when it was set up"):
        model.train(max_epochs=1, accelerator="cpu")
    assert not model.is_trained_


# --------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    ("new", "names"),
    [
        ({"a": "x/y", "b": "x|y"}, "'x/y', 'x|y'"),
        ({"a": ".."}, "'..'"),
        ({"a": "_index"}, "'_index'"),
    ],
)
def test_labels_that_no_file_holds(toy, new, names, unchanged):
    toy.obs["kind"] = toy.obs["kind"].cat.rename_categories(new)
    with (
        unchanged(toy),
        pytest.raises(
            ValueError,
            match=rf"adata\.obs\['kind'\] has labels that .* \({re.escape(names)}\): rename them",
        ),
    ):
        set_up(toy)


@pytest.mark.parametrize("labels", [{"a": "x/y"}, {"a": "a.b", "b": "ü"}])
def test_labels_that_a_file_holds(toy, toy_query, train, labels, tmp_path):
    toy.obs["kind"] = toy.obs["kind"].cat.rename_categories(labels)
    model = train(toy, max_epochs=1)
    model.annotate(toy_query, probabilities=True)
    toy_query.write_h5ad(tmp_path / "query.h5ad")


def test_no_cell_is_unlabeled(toy, toy_model):
    for call in (
        set_up,
        lambda adata, **kwargs: TOSICA.load_query_data(
            adata, toy_model, "kind", **kwargs
        ),
    ):
        with pytest.raises(
            ValueError, match=r"no cell 'aa', the unlabeled_category; did you mean 'a'"
        ):
            call(toy, unlabeled_category="aa")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda a: TOSICA.setup_anndata(a, labels_key="kind", batch_keys="donor"),
            "setup_anndata has no parameter 'batch_keys'; did you mean 'batch_key'",
        ),
        (
            lambda a: TOSICA.setup_mudata(
                MuData({"rna": a, "protein": a[:, :4].copy()}),
                labels_key="kind",
                layer="counts",
            ),
            "setup_mudata has no parameter 'layer'; did you mean 'layers'",
        ),
        (
            lambda a: set_up(a).train(epochs=3),
            "train has no parameter 'epochs'; it is max_epochs here.",
        ),
        (
            lambda a: set_up(a).train(use_gpu=True),
            "train has no parameter 'use_gpu'; say accelerator='gpu'.",
        ),
        (
            lambda a: set_up(a).annotate(a, majority_voting=True),
            "annotate has no parameter 'majority_voting'; call tosica.tl.majority_vote after it.",
        ),
    ],
)
def test_misspelled_parameters(toy, call, sentence):
    with pytest.raises(TypeError, match=re.escape(sentence)):
        call(toy)


@pytest.mark.parametrize(
    ("column", "call"),
    [
        ("tosica_probability", lambda a: tosica.tl.evaluate(a, "kind")),
        ("tosica_probability", lambda a: tosica.tl.reliability(a, "kind")),
        ("tosica_probability", lambda a: tosica.tl.majority_vote(a, "donor")),
        ("tosica_novelty", tosica.pl.novelty),
    ],
)
def test_columns_of_text_where_numbers_are_expected(toy_query, call, column, unchanged):
    toy_query.obs["tosica_prediction"] = toy_query.obs["kind"]
    toy_query.obs["tosica_probability"] = 0.9
    toy_query.obs[column] = "high"
    with (
        unchanged(toy_query),
        pytest.raises(
            TypeError, match=rf"^adata\.obs\['{column}'\] holds .* instead of numbers"
        ),
    ):
        call(toy_query)


# --------------------------------------------------------------------------- names of genes


@pytest.mark.filterwarnings("ignore:The query has only 685 of the model's 765 genes")
def test_genes_that_are_there_twice_without_their_versions(
    pbmc_model, pbmc_query, unchanged
):
    ids = tosica.gs.map_genes(
        pbmc_query.var_names, to="ensembl", organism="human"
    ).dropna()
    mapped = pbmc_query[:, ids.index]
    doubled = AnnData(sp.hstack([mapped.X, mapped.X]).tocsr(), obs=pbmc_query.obs)
    doubled.var_names = [f"{name}.{version}" for version in (1, 2) for name in ids]
    sentence = r"under several names \('(ENSG\d+)\.1', '\1\.2', …\), of which none is taken: add up the columns"
    with unchanged(doubled), pytest.raises(ValueError, match=sentence):
        pbmc_model.annotate(doubled)
    # The cure.
    unique = doubled[:, ~doubled.var_names.str.split(".").str[0].duplicated()].copy()
    pbmc_model.annotate(unique)


# --------------------------------------------------------------------------- command line
