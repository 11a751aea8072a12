"""How sure a line through the reference may be."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp

from tosica.model import _line_temperature
from tosica.model._calibration import fit_temperature
from tosica.model._held_out_lines import MOST_CELLS
from tosica.model._line_temperature import line_temperature
from tosica.model._sample import draw
from tosica.module import Section
from tosica.pp._rows import Rows

LOGGED = Section(0, 765, None)


def found_in(adata, labels, section=LOGGED):
    codes = np.unique(labels, return_inverse=True)[1]
    return line_temperature(Rows(adata), np.arange(adata.n_obs), codes, section)


@pytest.fixture
def cells():
    return sc.datasets.pbmc68k_reduced().raw.to_adata()


CLEAR = ["CD14+ Monocyte", "CD19+ B", "CD56+ NK"]


@pytest.mark.parametrize(
    ("overlapping", "times", "least"), [("CD8", 1.2, 2.5), ("CD4|CD8", 1.1, 2.2)]
)
def test_types_that_overlap_ask_for_more_doubt(cells, overlapping, times, least):
    kinds = cells.obs["bulk_labels"]
    clear = kinds.isin(CLEAR).to_numpy()
    alike = kinds.str.contains(overlapping)
    # That rare types are raised takes some of the doubt.
    alike &= kinds.map(kinds.value_counts()).astype(int) > 30
    alike = alike.to_numpy()
    surely, hardly = found_in(cells[clear], kinds[clear]), found_in(cells[alike], kinds[alike])
    assert hardly > times * surely
    assert hardly > least


def test_rare_types_that_overlap_ask_for_more_doubt_too(cells):
    kinds = cells.obs["bulk_labels"]
    clear, alike = kinds.isin(CLEAR).to_numpy(), kinds.str.contains("CD4|CD8").to_numpy()
    hardly = found_in(cells[alike], kinds[alike])
    assert hardly > found_in(cells[clear], kinds[clear])
    assert hardly > 2.2


@pytest.mark.parametrize("overlapping", ["CD8", "CD4|CD8"])
def test_types_that_overlap_ask_for_more_doubt_whatever_their_sizes(cells, overlapping):
    kinds = cells.obs["bulk_labels"]
    sizes = kinds[kinds.str.contains(overlapping)].value_counts()
    asked = []
    for types in (CLEAR, sizes.index[sizes > 30]):
        of_type = [np.flatnonzero(kinds == kind)[:31] for kind in types]
        some = np.concatenate(of_type)
        asked.append(found_in(cells[some], kinds.iloc[some]))
    assert asked[1] > 1.3 * asked[0]
    assert asked[1] > 2.2


def test_rare_labels_are_raised_first(cells, monkeypatch):
    kinds = cells.obs["bulk_labels"]
    fitted = []

    def fit(logits, labels, **kwargs):
        fitted.append((logits, labels))
        return fit_temperature(logits, labels, **kwargs)

    monkeypatch.setattr(_line_temperature, "fit_temperature", fit)
    found = found_in(cells, kinds)
    monkeypatch.setattr(_line_temperature, "lift", lambda labels: 0.0)
    plain = found_in(cells, kinds)
    (raised, labels), (scores, _) = fitted
    n_cells = np.bincount(labels)
    assert n_cells.min() < 10
    np.testing.assert_allclose(raised - scores, np.log(1 + 20 / n_cells)[None].repeat(700, 0))
    assert found == fit_temperature(raised, labels, expected=2.0, spread=0.5)
    # That rare labels were given too seldom no longer counts as doubt.
    assert found < plain


def test_a_few_cells_say_little(cells):
    kinds = cells.obs["bulk_labels"]
    two = np.concatenate([np.flatnonzero(kinds == kind)[:2] for kind in ("CD19+ B", "CD56+ NK")])
    assert found_in(cells[two], kinds.iloc[two]) == pytest.approx(2, rel=0.2)


def test_large_references_are_drawn_from():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 3 * MOST_CELLS)
    x = rng.poisson(1 + np.eye(3)[labels] @ np.eye(3, 20)).astype(np.float32)
    some = draw(labels, MOST_CELLS)
    assert len(some) < len(labels)
    # Nothing but the drawn cells is looked at.
    x[np.setdiff1d(np.arange(len(labels)), some)] = 1
    spoilt = ad.AnnData(sp.csr_matrix(x))
    section = Section(0, 20, "log1p", 20.0)
    found = found_in(spoilt, labels, section)
    of_drawn = line_temperature(Rows(spoilt), some, labels[some], section)
    assert found == of_drawn
