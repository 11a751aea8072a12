"""Labels of too few cells are left out of a reference."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

import tosica


@pytest.fixture
def rare(toy):
    """Labels "one", "two" and "three" of so many cells."""
    kind = np.array(toy.obs["kind"], dtype=object)
    kind[[4]], kind[[10, 11]], kind[[20, 21, 22]] = "one", "two", "three"
    toy.obs["kind"] = kind
    return toy


def test_rare_labels_are_unlabeled_and_named(rare, toy_query, train, caplog, contents, tmp_path):
    before = contents(rare)["obs/kind"]
    with caplog.at_level(logging.INFO, "tosica"):
        model = train(rare, setup={"min_cells": 3})
    assert "min_cells=3 cells are left out ('two' with 2, 'one' with 1)" in caplog.text or (
        "min_cells=3 cells are left out ('one' with 1, 'two' with 2)" in caplog.text
    )
    assert model.labels == ["a", "b", "c", "three"]
    trained = np.union1d(model.train_indices, model.validation_indices)
    assert not {4, 10, 11} & set(trained)
    assert sum(model.training_.label_counts.values()) == len(trained) == 87
    assert contents(rare)["obs/kind"] == before
    assert set(model.predict(toy_query)) <= set(model.labels)
    assert model.predict(rare, soft=True).shape == (90, 4)
    model.save(tmp_path / "model")
    # The same reference, and one in which a label is rare that was not.
    rare.obs.loc["cell20", "kind"] = "a"
    loaded = tosica.TOSICA.load(tmp_path / "model", adata=rare)
    assert loaded.labels == model.labels
    loaded.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    assert loaded.training_.label_counts["three"] == 2


def test_by_default_no_label_is_left_out(rare, caplog):
    with (
        caplog.at_level(logging.INFO, "tosica"),
        pytest.warns(UserWarning, match=r"single cell in adata.obs\['kind'\]: 'one'.*min_cells=2"),
    ):
        tosica.TOSICA.setup_anndata(rare, labels_key="kind")
    assert "left out" not in caplog.text
    assert len(tosica.TOSICA(rare).labels) == 6


def test_beside_an_unlabeled_category(rare, train):
    rare.obs.loc["cell30", "kind"] = "?"
    model = train(rare, setup={"min_cells": 4, "unlabeled_category": "?"})
    assert model.labels == ["a", "b", "c"]
    trained = np.union1d(model.train_indices, model.validation_indices)
    assert not {4, 10, 11, 20, 21, 22, 30} & set(trained)


def test_the_color_of_other_labels_stays(toy, toy_query, train):
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories("rare")
    toy.uns["kind_colors"] = ["#aa0000", "#00bb00", "#0000cc", "#123456"]
    toy.obs.loc["cell4", "kind"] = "rare"
    train(toy, setup={"min_cells": 2}).annotate(toy_query)
    assert set(toy_query.uns["tosica_prediction_colors"]) <= {"#aa0000", "#00bb00", "#0000cc"}


def test_another_reference_has_a_rare_label(toy, train, tmp_path):
    model = train(toy, setup={"min_cells": 3})
    model.save(tmp_path / "model")
    toy.obs["kind"] = toy.obs["kind"].cat.add_categories("rare")
    toy.obs.loc["cell4", "kind"] = "rare"
    loaded = tosica.TOSICA.load(tmp_path / "model", adata=toy)
    loaded.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False)
    assert loaded.labels == ["a", "b", "c"]
    assert sum(loaded.training_.label_counts.values()) == 89
    toy.obs.loc[["cell5", "cell6"], "kind"] = "rare"
    with pytest.raises(ValueError, match="has labels that the model does not know: 'rare'"):
        tosica.TOSICA.load(tmp_path / "model", adata=toy)


def test_too_many_are_left_out(rare, contents):
    before = contents(rare)
    sentence = (
        "adata.obs['kind'] needs at least two different labels of min_cells=50 cells or more to tell apart; found none."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        tosica.TOSICA.setup_anndata(rare, labels_key="kind", min_cells=50)
    assert contents(rare) == before
