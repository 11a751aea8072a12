"""The number of threads changes neither weights nor results, and is left as it was."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import scvi
import torch

import tosica

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anndata import AnnData


@pytest.fixture(autouse=True)
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_training_gives_the_same_weights_on_any_number_of_threads(pbmc_ref: AnnData) -> None:
    states = []
    reference = pbmc_ref.copy()
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        scvi.settings.seed = 0
        tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
        model = tosica.TOSICA(reference, embed_dim=8, n_heads=2)
        model.train(max_epochs=2, enable_progress_bar=False)
        assert torch.get_num_threads() == n_threads
        states.append(model.module.state_dict())
    for other in states[1:]:
        assert all(torch.equal(value, other[name]) for name, value in states[0].items())


def test_results_are_the_same_on_any_number_of_threads(pbmc_ref: AnnData, pbmc_model: tosica.TOSICA) -> None:
    results = []
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        query = pbmc_ref.copy()
        pbmc_model.annotate(query, probabilities=True)
        tosica.tl.attribute(query, pbmc_model, n_steps=8)
        tosica.tl.faithfulness(query, pbmc_model, n_cells=50)
        tosica.tl.rank_gene_sets(query, "tosica_prediction")
        assert torch.get_num_threads() == n_threads
        results.append(query)
    for other in results[1:]:
        assert results[0].obs.equals(other.obs)
        for key, values in results[0].obsm.items():
            assert np.array_equal(np.asarray(values), np.asarray(other.obsm[key]))


@pytest.mark.slow
def test_tests_between_groups_leave_torchs_threads() -> None:
    # In a process of its own: numba changes their number once, at its first parallel call.
    code = (
        "import torch, scanpy as sc, tosica\n"
        "adata = sc.datasets.pbmc68k_reduced()\n"
        "adata.obsm['X_tosica'] = abs(adata.obsm['X_pca'])\n"
        "adata.uns['tosica'] = {'gene_sets': [str(i) for i in range(50)]}\n"
        "before = torch.get_num_threads()\n"
        "tosica.tl.rank_gene_sets(adata, 'bulk_labels')\n"
        "assert torch.get_num_threads() == before, torch.get_num_threads()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
