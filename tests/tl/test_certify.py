"""The certificate of a model, by its reference."""

from __future__ import annotations

import numpy as np
import pytest
import scvi

import tosica

SHARES = ["held_out_accuracy", "accuracy", "expected_calibration_error", "linear_share"]
SHARES += [
    "deletion, genes",
    "insertion, genes",
    "evidence",
    "evidence_permuted",
    "halves, gene sets",
]


@pytest.fixture(scope="module")
def certified(_explained, tmp_path_factory):
    """A copy of the model with its certificate, and the folder with both."""
    folder = tmp_path_factory.mktemp("model")
    before, _ = _explained
    before.save(folder, overwrite=True)
    model = tosica.TOSICA.load(folder, adata=before.adata.copy())
    found = tosica.tl.certify(model, n_cells=240, max_epochs=2)
    model.save(folder, overwrite=True)
    return model, found, folder


def test_what_is_measured(certified):
    model, found, _ = certified
    assert found["held_out_accuracy"] == model.held_out_accuracy_
    assert ((found[SHARES] >= 0) & (found[SHARES] <= 1)).all()
    assert found["completeness_error"] <= 0.01
    assert found["deletion, genes"] < found["deletion, random"]
    assert found["insertion, genes"] > found["insertion, random"]
    assert 0.4 < found["accuracy"] < 0.95
    assert found["evidence_permuted"] <= found["evidence"]
    assert found["halves, genes"] > 0.4
    assert 200 < found["n_cells"] <= 240


def test_it_is_kept_with_the_model_and_its_card(certified):
    model, found, folder = certified
    loaded = tosica.TOSICA.load(folder)
    assert loaded.certificate_.equals(found)
    card = model.get_model_card(tissue="blood", license="cc-by-4.0")
    assert f"| halves, genes | {found['halves, genes']:.4g} |" in card


def test_a_changed_model_has_none(certified, model):
    assert model.certificate_ is None
    assert "## Certificate" not in model.get_model_card(
        tissue="blood", license="cc-by-4.0"
    )
    assert certified[0].subset(model.labels[:3]).certificate_ is None


def test_the_same_twice_and_other_halves_by_another_seed(certified):
    model, found = certified[0], []
    for seed in (0, 0, 1):
        scvi.settings.seed = 0
        found.append(tosica.tl.certify(model, n_cells=240, seed=seed, max_epochs=2))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert found[2]["halves, genes"] != found[0]["halves, genes"]


def test_models_without_a_reference_or_training(certified, model):
    with pytest.raises(ValueError, match="has no reference"):
        tosica.tl.certify(tosica.TOSICA.load(certified[2]))
    reference = model.adata.copy()
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    untrained = tosica.TOSICA(reference, embed_dim=16)
    with pytest.raises(RuntimeError, match="not trained"):
        tosica.tl.certify(untrained)
