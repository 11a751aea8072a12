from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid

import tosica


def test_curves_and_areas(model, query):
    tosica.tl.attribute(query, model)
    tosica.tl.weight_attention(query, model)
    tosica.tl.faithfulness(query, model)
    curves, area = query.uns["faithfulness"]["curves"], query.uns["faithfulness"]["area"]
    assert list(area["order"]) == ["attention", "weighted attention", "attribution", "random"]
    # All orders begin with everything and end with nothing.
    for share in (0.0, 1.0):
        assert np.ptp(curves.loc[curves["share"] == share, "probability"]) < 1e-5
    assert (curves.loc[curves["share"] == 0, "kept"] == 1).all()
    for row in area.itertuples():
        part = curves[curves["order"] == row.order]
        assert row.area == pytest.approx(trapezoid(part["probability"], part["share"]), abs=1e-6)
    areas = area.set_index("order")["area"]
    assert areas["attribution"] < areas["random"]


def test_the_starting_probability_is_the_annotations(model, query):
    tosica.tl.faithfulness(query, model, n_cells=1_000)
    curves = query.uns["faithfulness"]["curves"]
    assert curves["probability"].iloc[0] == pytest.approx(
        query.obs["tosica_probability"].mean(), abs=1e-5
    )


@pytest.mark.filterwarnings("ignore:The query has only")
def test_the_starting_probability_with_genes_missing(model, query):
    lacking = query[:, np.arange(query.n_vars) % 4 > 0].copy()
    model.annotate(lacking)
    tosica.tl.faithfulness(lacking, model, n_cells=1_000)
    curves = lacking.uns["faithfulness"]["curves"]
    assert curves["probability"].iloc[0] == pytest.approx(
        lacking.obs["tosica_probability"].mean(), abs=1e-5
    )


def test_what_is_removed_is_gone(model, query):
    """One gene set removed from one cell by hand."""
    one = query[[3]].copy()
    tosica.tl.faithfulness(one, model, orders=["attention"], shares=[0, 0.05, 1])
    genes = [list(one.var_names).index(name) for name in model._var_names]
    x = torch.from_numpy(one.X.toarray()[:, genes].astype(np.float32))
    with torch.no_grad():
        tokens = model.module.embedding(x)
        first = int(one.obsm["X_tosica"][0].argmax())
        left = torch.cat([tokens[:, :first], tokens[:, first + 1 :]], 1)
        label = (model.module.head(model.module.encoder(tokens)) + model.module.direct(x)).argmax(1)
        logits = model.module.head(model.module.encoder(left)) + model.module.direct(x)
        expected = model.module.probabilities(logits)
    got = one.uns["faithfulness"]["curves"]["probability"].iloc[1]
    assert got == pytest.approx(float(expected[0, label]), abs=1e-5)


def test_an_order_that_was_not_computed(model, query):
    with pytest.raises(KeyError, match=r"run tosica\.tl\.attribute\(adata, model\) first"):
        tosica.tl.faithfulness(query, model, orders=["attribution"])


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"orders": ["size"]}, "orders must be some of 'attention', "),
        ({"orders": []}, "orders must be some of"),
        ({"shares": [0.5, 1]}, "shares must ascend from 0 to 1"),
        ({"shares": [0, 0.6, 0.5, 1]}, "shares must ascend from 0 to 1"),
        ({"n_cells": 0}, "n_cells must be at least 1"),
    ],
)
def test_refuses(model, query, kwargs, match):
    with pytest.raises(ValueError, match=match):
        tosica.tl.faithfulness(query, model, **kwargs)
    assert "faithfulness" not in query.uns


def test_attribution_of_another_model_is_refused(model, query):
    tosica.tl.attribute(query, model)
    query.uns["tosica_attribution"]["model"] = "0" * 16
    with pytest.raises(ValueError, match="written by a model with the fingerprint '0000"):
        tosica.tl.faithfulness(query, model)
