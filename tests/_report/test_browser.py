"""The page in headless Chromium: pointer, keyboard, filters, phones, and no requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

import tosica

pytest.importorskip("tornado", reason="the browser is driven by tornado's websockets")

from _report.browser import Browser, find_chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

# Where the first cell of the map is in the window.
_FIRST_CELL = """(() => {
  const plot = Bokeh.documents[0].roots()[0], view = Bokeh.index.find_one(plot);
  const box = document.getElementById("map").getBoundingClientRect();
  const source = plot.renderers[0].data_source, frame = view.frame;
  return [box.x + frame.x_scale.compute(source.get("x")[0]),
          box.y + frame.y_scale.compute(source.get("y")[0])];
})()"""
# Text of all tooltips, which are in shadow roots, and where the only bold text is.
_TOOLTIPS = """(() => {
  const found = [];
  const walk = (node) => {
    if (node.localName === "b") found.push(node.parentNode.innerText);
    for (const child of (node.shadowRoot ?? node).children) walk(child);
  };
  walk(document.body);
  return found.join("|");
})()"""
_STATUS = "document.getElementById('map-status').textContent"


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Callable[[int], Browser]]:
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium")
    opened: list[Browser] = []

    def start(width: int) -> Browser:
        opened.append(Browser(program, tmp_path / f"profile{len(opened)}", width=width))
        return opened[-1]

    yield start
    for browser in opened:
        browser.close()


def test_pointer_filters_and_search(query, toy_model, tmp_path, browse):
    query.obs["tosica_prediction"] = query.obs["tosica_prediction"].cat.rename_categories(
        {"a": "<b>T&\"cells</b> <img src='https://example.org/x'>"}
    )
    query.obs_names = [f"<i>{name}</i>" for name in query.obs_names]
    probability = np.linspace(0.3, 0.99, 60)
    query.obs["tosica_probability"] = probability
    path = tosica.report(query, tmp_path / "report.html", model=toy_model, sample_key="donor")
    browser = browse(1280)
    browser.open(path)

    browser.run("document.getElementById('map').scrollIntoView({block: 'center', behavior: 'instant'})")
    first = browser.run("tosicaMap.name(0)")
    cell = query.obs_names.get_loc(first)
    for nudge in (-4, 0):
        x, y = browser.run(_FIRST_CELL)
        browser.move(x + nudge, y)
    shown = browser.wait(_TOOLTIPS)
    assert shown.startswith(f"{first}\n{query.obs['tosica_prediction'].iloc[cell]}\n")
    assert f"probability {probability[cell]:.3f}" in shown
    assert f"novelty p-value {query.obs['tosica_novelty_pvalue'].iloc[cell]:.4f}" in shown

    browser.run("document.querySelector('#label-filter input').click()")
    counts = query.obs["tosica_prediction"].value_counts(sort=False)
    off = max(counts)
    browser.wait(f"{_STATUS} === '{60 - off} of 60 cells are shown.'")
    browser.run("document.getElementById('all-labels').click()")
    browser.wait(f"{_STATUS} === '60 of 60 cells are shown.'")

    # By the keyboard alone: the slider, and the search.
    browser.run("document.getElementById('least').focus()")
    for _ in range(5):
        browser.press("End", 35)
    browser.press("Home", 36)
    for _ in range(50):
        browser.press("ArrowRight", 39)
    browser.wait(f"{_STATUS} === '{(probability.round(4) >= 0.5).sum()} of 60 cells are shown.'")
    browser.run("document.getElementById('find-text').focus()")
    for letter in "cell59":
        browser.press(letter, ord(letter.upper()), letter)
    browser.press("Enter", 13, "\r")
    browser.wait("document.querySelectorAll('#found tbody tr').length === 1")
    assert browser.run("document.querySelector('#found th[scope=row]').textContent") == ("<i>cell59</i>")
    browser.run("""{const by = document.getElementById('colour-by');
                    by.value = 'sample'; by.dispatchEvent(new Event('change'))}""")
    browser.wait("Bokeh.documents[0].roots()[0].renderers[0].glyph.fill_color.field === 'sample'")
    assert browser.run("!document.querySelector('[data-legend=sample]').hidden")
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert browser.errors == []


def test_a_tap_lists_a_cell(query, tmp_path, browse):
    browser = browse(390)
    browser.open(tosica.report(query, tmp_path / "report.html"))
    browser.run("document.getElementById('map').scrollIntoView({behavior: 'instant'})")
    x, y = browser.run(_FIRST_CELL)
    browser.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    name = browser.wait("document.querySelector('#found:not([hidden]) th[scope=row]')?.textContent")
    assert name == browser.run("tosicaMap.name(0)")
    [label] = query.obs.loc[[name], "tosica_prediction"]
    status = browser.run("document.getElementById('find-status').textContent")
    assert status.startswith(f"{name}: {label}, probability ")


def test_the_keyboard_reaches_every_control(query, tmp_path, browse):
    browser = browse(1280)
    browser.open(tosica.report(query, tmp_path / "report.html"))
    reached = []
    for _ in range(100):
        browser.press("Tab", 9)
        reached.append(browser.run("(e => e.id || e.localName)(document.activeElement)"))
        if reached[-1] == "body":
            break
    assert reached[0] == "a"
    controls = ["colour-by", "least", "name-labels", "all-labels", "no-labels", "find-text"]
    assert [name for name in reached if name in controls] == controls
    assert reached.count("summary") == 3


@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_window(query, toy_model, tmp_path, browse, width):
    names = {"a": "a type with a rather long name, as they are in large references"}
    query.obs["tosica_prediction"] = query.obs["tosica_prediction"].cat.rename_categories(names)
    browser = browse(width)
    path = tosica.report(query, tmp_path / "report.html", model=toy_model, labels_key="kind")
    browser.open(path)
    browser.run("document.querySelectorAll('details').forEach((e) => {e.open = true})")
    assert browser.run("document.documentElement.scrollWidth") == width


def test_many_cells(tmp_path, browse):
    n = 50_000
    rng = np.random.default_rng(0)
    letters = np.array(list("ACGT"))[rng.integers(0, 4, (n, 16))]
    codes = rng.integers(0, 20, n)
    labels = [f"type {i}" for i in range(20)]
    obs = pd.DataFrame(
        {
            "tosica_prediction": pd.Categorical.from_codes(codes, labels),
            "tosica_probability": rng.random(n),
            "tosica_novelty": rng.normal(size=n),
            "tosica_novelty_pvalue": rng.random(n),
        },
        index=[f"{''.join(row)}-{i % 8}" for i, row in enumerate(letters)],
    )
    adata = AnnData(obs=obs, obsm={"X_umap": rng.random((n, 2)), "X_tosica": rng.random((n, 4))})
    adata.uns["tosica"] = {"gene_sets": np.array(list("abcd")), "labels": np.array(labels)}
    path = tosica.report(adata, tmp_path / "report.html")
    assert path.stat().st_size < 5_000_000
    browser = browse(1280)
    browser.open(path)
    seconds = browser.run("performance.getEntriesByName('map-drawn')[0].startTime") / 1000
    print(f"{path.stat().st_size / 1e6:.2f} MB, drawn after {seconds:.2f} s")
    # About 2 s on two cores without a graphics card; much more on a busy machine.
    assert seconds < 30
