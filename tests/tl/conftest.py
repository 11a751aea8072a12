"""A small trained model and the real cells that it annotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import scanpy as sc
import scvi

import tosica

if TYPE_CHECKING:
    from anndata import AnnData

N_SETS = 20


def _trained(n_unannotated: int = 0, **kwargs: bool) -> tuple[tosica.TOSICA, AnnData]:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obs_names_make_unique()
    scvi.settings.seed = 0
    tosica.pp.build_mask(adata, max_gene_sets=N_SETS, n_unannotated=n_unannotated)
    tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    model = tosica.TOSICA(adata, embed_dim=16, **kwargs)
    model.train(
        max_epochs=8,
        accelerator="cpu",
        enable_progress_bar=False,
        plan_kwargs={"lr": 5e-3, "token_dropout": 0.5},
    )
    query = adata[np.arange(adata.n_obs) % 7 == 0].copy()
    model.annotate(query)
    return model, query


@pytest.fixture(scope="session")
def _explained() -> tuple[tosica.TOSICA, AnnData]:
    return _trained()


@pytest.fixture(scope="session")
def _with_unannotated() -> tuple[tosica.TOSICA, AnnData]:
    return _trained(n_unannotated=1)


@pytest.fixture(scope="session")
def _network_alone() -> tuple[tosica.TOSICA, AnnData]:
    return _trained(linear=False)


@pytest.fixture
def model(_explained: tuple[tosica.TOSICA, AnnData]) -> tosica.TOSICA:
    return _explained[0]


@pytest.fixture
def query(_explained: tuple[tosica.TOSICA, AnnData]) -> AnnData:
    """100 annotated cells."""
    return _explained[1].copy()


@pytest.fixture
def lacking(model: tosica.TOSICA, query: AnnData) -> AnnData:
    """The same cells without every fourth gene."""
    part = query[:, np.arange(query.n_vars) % 4 > 0].copy()
    with pytest.warns(UserWarning, match="The query has only"):
        model.annotate(part)
    return part


@pytest.fixture
def with_unannotated(
    _with_unannotated: tuple[tosica.TOSICA, AnnData],
) -> tuple[tosica.TOSICA, AnnData]:
    """A model with an unannotated token, and 100 cells."""
    model, query = _with_unannotated
    return model, query.copy()


@pytest.fixture
def network_alone(
    _network_alone: tuple[tosica.TOSICA, AnnData],
) -> tuple[tosica.TOSICA, AnnData]:
    """A model without linear branch, and 100 cells."""
    model, query = _network_alone
    return model, query.copy()


@pytest.fixture(scope="session")
def other_model() -> tosica.TOSICA:
    """Another model of the same shape."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obs_names_make_unique()
    scvi.settings.seed = 1
    tosica.pp.build_mask(adata, max_gene_sets=N_SETS)
    tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    model = tosica.TOSICA(adata, embed_dim=16)
    model.is_trained_ = True
    return model
