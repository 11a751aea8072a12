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
    assert list(area["order"]) == [
        "attention",
        "weighted attention",
        "attribution",
        "presence",
        "random",
    ]
    # All orders begin with everything and end with nothing.
    for share in (0.0, 1.0):
        assert np.ptp(curves.loc[curves["share"] == share, "probability"]) < 1e-5
    assert (curves.loc[curves["share"] == 0, "kept"] == 1).all()
    for row in area.itertuples():
        part = curves[curves["order"] == row.order]
        assert row.area == pytest.approx(trapezoid(part["probability"], part["share"]), abs=1e-6)
    areas = area.set_index("order")["area"]
    assert areas[["attribution", "presence"]].max() < areas[["attention", "random"]].min()


@pytest.mark.filterwarnings("ignore:The query has only")
@pytest.mark.parametrize("which", ["query", "lacking"])
def test_without_all_gene_sets_a_cell_is_the_mean_cell(which, model, request):
    """Every gene that the model reads is in a gene set or a module."""
    cells = request.getfixturevalue(which)
    tosica.tl.faithfulness(cells, model, n_cells=1_000)
    with torch.no_grad():
        logits = model.module.annotate(model.module.baseline[None], attention=False).logits
        probability = model.module.probabilities(logits)[0].numpy()
    best = [model.labels.index(label) for label in model.predict(cells)]
    curves = cells.uns["faithfulness"]["curves"]
    for order in ("attention", "random"):
        part = curves[(curves["order"] == order) & (curves["share"] == 1)]
        assert part["probability"].item() == pytest.approx(probability[best].mean(), abs=1e-5)
        assert part["kept"].item() == np.mean(np.array(best) == probability.argmax())


def test_genes_of_what_is_removed_are_those_of_the_mean_cell(model, query):
    """One gene set removed from one cell by hand."""
    one = query[[3]].copy()
    first = int(one.obsm["X_tosica"][0].argmax())
    share = 1 / len(model.gene_sets)
    tosica.tl.faithfulness(one, model, orders=["attention"], shares=[0, share, 1])
    genes = one.var_names.get_indexer(model.get_var_names())
    x = torch.from_numpy(one.X.toarray()[:, genes].astype(np.float32))
    members = torch.from_numpy((model.get_gene_weights().to_numpy() > 0)[:, first])
    left = torch.where(members, model.module.baseline, x)
    with torch.no_grad():
        label = model.module.annotate(x, attention=False).logits.argmax(1)
        logits = model.module.annotate(left, attention=False).logits
        expected = model.module.probabilities(logits)
    got = one.uns["faithfulness"]["curves"]["probability"].iloc[1]
    assert got == pytest.approx(float(expected[0, label]), abs=1e-5)
