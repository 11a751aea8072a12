"""A small trained model and the real cells that it annotated."""

import numpy as np
import pytest
import scanpy as sc
import scvi
from _cells import FAST_PLAN, TOY_SETS, make_toy, train_toy

import tosica

N_SETS = 20


@pytest.fixture(scope="session")
def _explained():
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obs_names_make_unique()
    scvi.settings.seed = 0
    tosica.pp.build_mask(adata, max_gene_sets=N_SETS)
    tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    model = tosica.TOSICA(adata, embed_dim=16)
    model.train(
        max_epochs=8,
        accelerator="cpu",
        plan_kwargs={"lr": 5e-3, "token_dropout": 0.5},
    )
    query = adata[np.arange(adata.n_obs) % 7 == 0].copy()
    model.annotate(query)
    return model, query


@pytest.fixture
def model(_explained):
    return _explained[0]


@pytest.fixture
def query(_explained):
    """100 annotated cells."""
    return _explained[1].copy()


@pytest.fixture
def lacking(model, query):
    """The same cells without every fourth gene."""
    fewer_genes = query[:, np.arange(query.n_vars) % 4 > 0].copy()
    with pytest.warns(UserWarning, match="The query has only"):
        model.annotate(fewer_genes)
    return fewer_genes


@pytest.fixture(scope="session")
def _small():
    adata = make_toy()
    tosica.pp.build_mask(adata, TOY_SETS)
    model = train_toy(adata, linear=False, plan_kwargs=FAST_PLAN)
    query = make_toy(30, seed=1)
    model.annotate(query)
    return model, query


@pytest.fixture
def network_alone(
    _small,
):
    """A small model without linear branch, and 30 cells."""
    model, query = _small
    return model, query.copy()
