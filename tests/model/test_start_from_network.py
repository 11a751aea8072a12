"""A network's weights as the weights that training begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import torch

import tosica
from tosica.module import MaskedEmbedding

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData

pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")


@pytest.fixture
def ref() -> AnnData:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obs_names_make_unique()
    rng = np.random.default_rng(0)
    rows = [
        (f"TF{i}", gene, rng.choice([-1.0, 1.0]) * (1 + i))
        for i in range(12)
        for gene in rng.choice(adata.var_names, 60, replace=False)
    ]
    network = pd.DataFrame(rows, columns=["source", "target", "weight"])
    network.loc[network["source"] == "TF7", "weight"] = np.nan
    tosica.pp.build_mask(adata, network)
    tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    return adata


@pytest.mark.parametrize("n_sets", [5, 12])
def test_sets_with_weights_start_as_weighted_sums(ref: AnnData, n_sets: int) -> None:
    model = tosica.TOSICA(ref, embed_dim=16, max_gene_sets=n_sets)
    embedding = model.module.embedding
    drawn = embedding.pair_weights().detach().clone()
    model.start_from_network()
    weights = tosica.get.network_weights(ref).toarray()
    indptr, genes = embedding.indptr.numpy(), embedding.genes.numpy()
    columns = ref.uns["tosica_mask"]["gene_sets"].tolist()
    # Those that were chosen, and the genes that none of them holds.
    assert sum(name in columns for name in model.gene_sets) == n_sets
    assert any(name.startswith("module: ") for name in model.gene_sets)
    for p, name in enumerate(model.gene_sets):
        inside = slice(indptr[p], indptr[p + 1])
        now = embedding.pair_weights().detach()[inside]
        if name == "TF7" or name.startswith("module: "):
            assert torch.equal(now, drawn[inside])
            continue
        wanted = weights[genes[inside], columns.index(name)]
        # One direction, times the weights.
        direction = now.numpy() / wanted[:, None]
        np.testing.assert_allclose(direction, np.broadcast_to(direction[:1], direction.shape), rtol=1e-4)
        # As large as what was drawn: a third is the variance of numbers between -1 and 1.
        assert now.square().sum(0).mean().item() == pytest.approx(1 / 3, abs=0.25)


@pytest.mark.slow
def test_the_networks_weights_come_before_the_regressions(ref: AnnData, monkeypatch) -> None:
    model = tosica.TOSICA(ref, embed_dim=16)
    model.start_from_network()
    monkeypatch.setattr(MaskedEmbedding, "init_from_linear", None)
    model.train(max_epochs=1, enable_progress_bar=False, refit=False)


@pytest.mark.slow
def test_trains_saves_and_loads(ref: AnnData, tmp_path: Path) -> None:
    model = tosica.TOSICA(ref, embed_dim=16)
    model.start_from_network()
    model.train(max_epochs=1, enable_progress_bar=False)
    expected = model.predict(ref)
    model.save(str(tmp_path / "m"))
    again = tosica.TOSICA.load(str(tmp_path / "m"))
    assert list(again.predict(ref)) == list(expected)
    with pytest.raises(ValueError, match=r"^The model was trained already"):
        model.start_from_network()
    with pytest.raises(ValueError, match=r"^The model was loaded without a reference"):
        again.start_from_network()


def test_mask_without_weights(ref: AnnData) -> None:
    tosica.pp.build_mask(ref, max_gene_sets=20)
    tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    with pytest.raises(KeyError, match="was built from gene sets without weights"):
        tosica.TOSICA(ref, embed_dim=16).start_from_network()


def test_weights_of_zero_and_none_leave_finite_weights() -> None:
    embedding = MaskedEmbedding(np.array([0, 2, 4, 6]), np.array([0, 1, 0, 2, 1, 2]), 3, 4)
    before = embedding.pair_weights().detach().clone()
    embedding.start_from(np.array([0.0, 0.0, np.nan, np.nan, 0.0, 2.0], dtype=np.float32))
    now = embedding.pair_weights().detach()
    assert torch.isfinite(now).all()
    assert torch.equal(now[:4], before[:4])
    assert (now[4] == 0).all()
    assert (now[5] != 0).all()
