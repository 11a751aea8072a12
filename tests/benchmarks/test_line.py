"""The benchmark of the line: that its page is what was measured, and that it can be run."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from tosica.model import _line
from tosica.model._line import fit_line, lift


@pytest.fixture
def line(load_benchmark):
    return load_benchmark("line")


def test_the_page_is_what_was_measured(line, pages):
    result = json.loads((pages / "line.json").read_text())
    assert (pages / "line.md").read_text() == line.report(result)
    runs = pd.DataFrame(result["runs"])
    assert set(runs["variant"]) == set(line.VARIANTS)
    assert set(runs["reference"]) == set(line.references())


@pytest.mark.parametrize("n_obs", [80, 600])
def test_the_default_is_the_models(line, n_obs, monkeypatch):
    monkeypatch.setattr(_line, "_MAX_ITER", 9000)
    adata = line.made_up(3)(None)
    labels = adata.obs["label"].astype(str).to_numpy()
    teach, ask = adata[:n_obs], adata[n_obs:]
    default, mild = (
        line.fit(teach, line.VARIANTS[name]._replace(options={"tol": 1e-9, "max_iter": 9000}))(ask)
        for name in ("default", "mild")
    )
    _, codes = np.unique(labels[:n_obs], return_inverse=True)
    weights, biases = fit_line(teach.X, codes, tol=1e-9)
    found = ask.X @ weights.T + biases + lift(codes)
    kinds = np.unique(labels[:n_obs])
    accuracy = [(kinds[x.argmax(1)] == labels[n_obs:]).mean() for x in (found, default)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.005)
    # Another penalty changes them by more.
    assert np.abs(found - default).mean() < 0.5 * np.abs(mild - default).mean()


@pytest.mark.parametrize("n_obs", [80, 600])
def test_the_default_is_as_accurate_as_the_models(line, n_obs):
    adata = line.made_up(3)(None)
    labels = adata.obs["label"].astype(str).to_numpy()
    teach, ask = adata[:n_obs], adata[n_obs:]
    kinds, codes = np.unique(labels[:n_obs], return_inverse=True)
    weights, biases = fit_line(teach.X, codes)
    found = ask.X @ weights.T + biases + lift(codes)
    default = line.fit(teach, line.VARIANTS["default"])(ask)
    accuracy = [(kinds[x.argmax(1)] == labels[n_obs:]).mean() for x in (found, default)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=0.02)


def test_a_run(line, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(line, "SIZES", (60,))
    arguments = [str(tmp_path), "--references", "pbmc68k", "--seeds", "2"]

    line.main([*arguments, "--out", str(tmp_path)])

    assert "# How the direct path is fitted" in capsys.readouterr().out
    result = json.loads((tmp_path / "line.json").read_text())
    assert (tmp_path / "line.md").read_text() == line.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 2 * 3 * len(line.VARIANTS)
    assert runs["accuracy"].between(0.5, 1).all()
    assert (runs["log-likelihood"] < 0).all()
