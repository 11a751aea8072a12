"""Genes that are zero in the whole reference: a query lacks nothing of them."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
from _cells import GENES, make_toy

import tosica


@pytest.fixture(scope="module")
def model():
    """A model of the toy's genes and twice as many that nothing expresses."""
    toy = make_toy()
    silent = [f"SILENT{i}" for i in range(60)]
    adata = ad.AnnData(
        sp.hstack([sp.csr_matrix(toy.X), sp.csr_matrix((toy.n_obs, 60))]).tocsr(),
        obs=toy.obs,
        var=pd.DataFrame(index=[*toy.var_names, *silent]),
    )
    tosica.pp.build_mask(adata, {"a": GENES[:10], "b": GENES[10:]}, min_genes=3)
    tosica.TOSICA.setup_anndata(adata, labels_key="kind")
    model = tosica.TOSICA(adata, embed_dim=8, n_heads=2, n_layers=1)
    model.train(max_epochs=1, accelerator="cpu")
    return model


@pytest.mark.parametrize("kind", ["counts", "logarithms", "raw", "with_zeros"])
def test_a_complete_query_is_not_told_to_lack_genes(kind, model, toy_query, caplog):
    options = {}
    if kind == "logarithms":
        sc.pp.normalize_total(toy_query, target_sum=1e4)
        sc.pp.log1p(toy_query)
    if kind == "raw":
        toy_query.raw = toy_query.copy()
        options["use_raw"] = True
    if kind == "with_zeros":
        zeros = ad.AnnData(np.zeros((60, 60), np.float32), obs=toy_query.obs)
        zeros.var_names = [f"SILENT{i}" for i in range(60)]
        toy_query = ad.concat([toy_query, zeros], axis=1)
    model.annotate(toy_query, **options)  # warnings are errors
    assert toy_query.uns["tosica"]["n_missing_genes"] == 0
    assert "matched 30 of the model's 30 genes (100%)" in caplog.text


def test_genes_that_it_lacks_are_counted_among_those_expressed(model, toy_query):
    query = toy_query[:, :21].copy()
    with pytest.warns(UserWarning, match=r"only 21 of the model's 30 genes \(70%\)"):
        model.annotate(query)
    assert query.uns["tosica"]["n_missing_genes"] == 9
    with pytest.raises(ValueError, match="only 6 of the model's 30 genes"):
        model.annotate(toy_query[:, :6].copy())
