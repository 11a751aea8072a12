"""Tools that may take long show a bar, and do not say again how the query is read."""

from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

import tosica
from tosica import _progress
from tosica.io import _read_seurat
from tosica.tl import _faithfulness, _integrated_gradients, _novelty, _weight_attention

tl = tosica.tl
SHOWS = {
    "attribute": (_integrated_gradients, lambda a, m: tl.attribute(a, m)),
    "top_genes": (_integrated_gradients, lambda a, m: tl.top_genes(a, m, n_cells=5)),
    "faithfulness": (_faithfulness, lambda a, m: tl.faithfulness(a, m, orders=["random"])),
    "novelty": (_novelty, lambda a, m: tl.novelty(a, m)),
    "weight_attention": (_weight_attention, lambda a, m: tl.weight_attention(a, m)),
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    # pytest puts its own stderr back between a fixture and the test.
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.setattr(_progress, "_INTERVAL", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    return stream


@pytest.mark.parametrize("name", SHOWS)
def test_there_is_a_bar_if_it_takes_long(toy_model, toy_query, terminal, monkeypatch, caplog, name):
    module, call = SHOWS[name]
    toy_model.annotate(toy_query)
    assert [line for line in caplog.messages if line.startswith("query: ")]
    caplog.clear()
    monkeypatch.setattr(module, "SECONDS_WITHOUT_BAR", 0.0)
    call(toy_query, toy_model)
    assert f"{name}: 100%" in terminal.getvalue()
    assert "cells/s, " in terminal.getvalue()
    assert not [line for line in caplog.messages if line.startswith("query: ")]


@pytest.mark.parametrize("setting", [("verbosity", "warning"), ("progress_bar", False)])
def test_and_none_if_it_is_switched_off(toy_model, toy_query, terminal, monkeypatch, setting):
    toy_model.annotate(toy_query)
    monkeypatch.setattr(_integrated_gradients, "SECONDS_WITHOUT_BAR", 0.0)
    name, value = setting
    before = getattr(tosica.settings, name)
    setattr(tosica.settings, name, value)
    try:
        tl.attribute(toy_query, toy_model)
    finally:
        setattr(tosica.settings, name, before)
    assert terminal.getvalue() == ""


def test_reading_a_file_shows_the_time(toy_query, terminal, monkeypatch, tmp_path):
    path = tmp_path / "converted.h5ad"
    toy_query.write_h5ad(path)
    read_h5ad = _read_seurat.read_h5ad

    def read_slowly(*args, **kwargs):
        time.sleep(0.5)
        return read_h5ad(*args, **kwargs)

    monkeypatch.setattr(_read_seurat, "read_h5ad", read_slowly)
    monkeypatch.setattr(_read_seurat, "SECONDS_WITHOUT_BAR", 0.0)
    monkeypatch.setattr(_progress, "_TICK", 0.05)
    tosica.io.read_seurat(path)
    assert "read_seurat: 00:00" in terminal.getvalue()
