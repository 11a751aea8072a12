"""A model of any AnnData: whatever its matrix, its labels and its genes are, nothing is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anndata
import numpy as np
import pytest
from _strategies import anndatas
from hypothesis import HealthCheck, given, settings

import tosica


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # so few cells and genes are often warned of
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(adata=anndatas(n_vars=(8, 30)))
def test_annotated_saved_and_read_again(adata, contents, new_keys):
    genes = adata.var_names.tolist()
    untouched = contents(
        adata.copy()
    )  # old scipy shortens 64-bit indices when it copies
    tosica.pp.build_mask(adata, {"first": genes[:5], "others": genes[3:]}, min_genes=1)
    tosica.TOSICA.setup_anndata(adata, labels_key="label", batch_key="batch")
    model = tosica.TOSICA(adata, embed_dim=8, n_heads=2, n_layers=1)
    model.train(
        max_epochs=1, batch_size=8, accelerator="cpu", enable_progress_bar=False
    )
    assert sorted(model.labels) == sorted(set(adata.obs["label"]))
    query = adata.copy()
    model.annotate(query, probabilities=True)
    new_keys(untouched, contents(query))
    assert set(query.obs["tosica_prediction"]) <= {*model.labels, "Unknown"}

    with tempfile.TemporaryDirectory() as folder:
        query.write_h5ad(Path(folder) / "query.h5ad")
        from_disk = anndata.read_h5ad(Path(folder) / "query.h5ad")
        model.save(Path(folder) / "model")
        loaded = tosica.TOSICA.load(Path(folder) / "model", accelerator="cpu")
    reannotated = adata.copy()
    loaded.annotate(reannotated, probabilities=True)
    for adata_copy in (from_disk, reannotated):
        for key in ("tosica_prediction", "tosica_probability"):
            assert adata_copy.obs[key].tolist() == query.obs[key].tolist()
        for key in ("X_tosica", "tosica_probabilities"):
            np.testing.assert_array_equal(
                np.asarray(adata_copy.obsm[key]), np.asarray(query.obsm[key])
            )
