"""Deletion and insertion in the order of the explanation."""

import numpy as np
import pytest

import tosica


@pytest.fixture
def tested(model, query):
    tosica.tl.attribute(query, model, n_steps=8)
    tosica.tl.faithfulness(query, model, n_cells=40)
    return query.uns["faithfulness"]


def test_labels_rest_on_the_genes_that_explain_them(tested):
    area = tested["area"].set_index(["change", "order"])["area"]
    assert (
        area["deletion", "genes"]
        < area["deletion", "gene sets"]
        < area["deletion", "random"]
    )
    assert (
        area["insertion", "genes"]
        > area["insertion", "gene sets"]
        > area["insertion", "random"]
    )
    better = tested["area"].set_index(["change", "order"])["better_than_random"]
    assert better["deletion", "genes"] > 0.9
    assert better["insertion", "genes"] > 0.9


def test_curves_start_and_end_with_cell_and_baseline(tested, model):
    curves = tested["curves"].set_index(["change", "order", "share"]).sort_index()
    for order in ("genes", "gene sets", "random"):
        whole, empty = curves.loc["deletion", order], curves.loc["insertion", order]
        np.testing.assert_allclose(whole.loc[0.0], empty.loc[1.0], atol=1e-5)
        np.testing.assert_allclose(whole.loc[1.0], empty.loc[0.0], atol=1e-5)
        assert whole.loc[0.0, "kept"] == 1


def test_contributions_under_another_key(model, query):
    tosica.tl.attribute(query, model, key_added="mine", n_steps=8)
    tosica.tl.faithfulness(query, model, n_cells=2, key="mine")
    assert len(query.uns["faithfulness"]["area"]) == 6


def test_the_mean_is_that_of_all_cells(model, query):
    """A cell alone is its own mean, so that setting genes to it would change nothing."""
    tosica.tl.attribute(query, model, baseline="mean", n_steps=8)
    tosica.tl.faithfulness(query, model, n_cells=1, shares=[0, 1])
    curves = query.uns["faithfulness"]["curves"]
    deleted = curves[(curves["change"] == "deletion") & (curves["order"] == "genes")]
    assert deleted["probability"].iloc[1] < deleted["probability"].iloc[0] - 0.01


def test_groups_that_were_renamed_since(model, query):
    tosica.tl.attribute(query, model, "phase", n_steps=8)
    query.obs["phase"] = query.obs["phase"].cat.rename_categories("in {}".format)
    with pytest.raises(ValueError, match=r"has now: call tosica\.tl\.attribute again"):
        tosica.tl.faithfulness(query, model, n_cells=2)
