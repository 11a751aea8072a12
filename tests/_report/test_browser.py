"""The page in headless Chromium: pointer, keyboard, filters, phones, and no requests."""

import itertools
import json
import os
import select
import shutil
import subprocess
import time

import numpy as np
import pytest

import tosica

pytestmark = pytest.mark.slow

_FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-unsafe-swiftshader",
        "--hide-scrollbars",
    ),
    *(
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-sync",
    ),
    *("--disable-component-update", "--remote-debugging-pipe"),
)
_PATIENCE = 60
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
_TO_MAP = "document.getElementById('map').scrollIntoView({block: 'center', behavior: 'instant'})"


class Browser:
    """A browser with one page, driven by its debugging protocol, and what the page asked for."""

    def __init__(self, program, folder, *, width):
        self.requests = []
        self.errors = []
        self._numbers = itertools.count()
        self._unread = b""
        self._session = {}
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The browser reads commands from the descriptor 3, and answers on 4.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$0" "$@" 3<&{commands} 4>&{answers}',
                program,
                *_FLAGS,
                f"--user-data-dir={folder}",
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        page = self.call("Target.createTarget", url="about:blank")
        attached = self.call("Target.attachToTarget", **page, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        metrics = {
            "width": width,
            "height": 900,
            "deviceScaleFactor": 1,
            "mobile": width < 500,
        }
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def call(self, method, **params):
        """Call a method of the protocol, and note what happens meanwhile."""
        message = {
            "id": next(self._numbers),
            "method": method,
            "params": params,
            **self._session,
        }
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(
                    json.dumps(answer["params"]["exceptionDetails"])[:500]
                )
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self):
        while b"\0" not in self._unread:
            assert select.select([self._from], [], [], _PATIENCE)[0], (
                "the browser does not answer"
            )
            received = os.read(self._from, 2**20)
            assert received, "the browser ended"
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def run(self, code):
        """Value of an expression in the page, waited for if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, code):
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + _PATIENCE
        while not (value := self.run(code)):
            assert time.monotonic() < end, code
            time.sleep(0.05)
        return value

    def press(self, key, code, text="", *, times=1):
        """Press a key and let it go."""
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    windowsVirtualKeyCode=code,
                    text=text,
                )

    def close(self):
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture
def browse(tmp_path):
    """Write a report, open it, and wait until its map is drawn."""
    program = next(
        filter(
            None,
            map(
                shutil.which,
                ("chromium", "chromium-browser", "google-chrome", "chrome"),
            ),
        ),
        None,
    )
    if program is None:
        pytest.skip("needs Chromium")
    opened = []

    def start(width, adata, **arguments):
        path = tosica.report(adata, tmp_path / "report.html", **arguments)
        opened.append(Browser(program, tmp_path / f"profile{len(opened)}", width=width))
        opened[-1].call("Page.navigate", url=path.as_uri())
        opened[-1].wait("performance.getEntriesByName('map-drawn').length")
        return opened[-1]

    yield start
    for browser in opened:
        browser.close()


def test_pointer_filters_and_search(query, browse):
    label = "<b>T&\"cells</b> <img src='https://example.org/x'>"
    query.obs["tosica_prediction"] = query.obs[
        "tosica_prediction"
    ].cat.rename_categories({"a": label})
    query.obs_names = [f"<i>{name}</i>" for name in query.obs_names]
    probability = np.linspace(0.3, 0.99, 60)
    query.obs["tosica_probability"] = probability
    browser = browse(1280, query, sample_key="donor")

    browser.run(_TO_MAP)
    cell_name = browser.run("tosicaMap.name(0)")
    cell = query.obs_names.get_loc(cell_name)
    for nudge in (-4, 0):
        x, y = browser.run(_FIRST_CELL)
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + nudge, y=y)
    tooltips = browser.wait(_TOOLTIPS)
    assert tooltips.startswith(
        f"{cell_name}\n{query.obs['tosica_prediction'].iloc[cell]}\n"
    )
    assert f"probability {probability[cell]:.3f}" in tooltips
    assert (
        f"novelty p-value {query.obs['tosica_novelty_pvalue'].iloc[cell]:.4f}"
        in tooltips
    )

    def wait_for(n):
        browser.wait(
            f"document.getElementById('map-status').textContent === '{n} of 60 cells are shown.'"
        )

    browser.run("document.querySelector('#label-filter input').click()")
    wait_for(60 - query.obs["tosica_prediction"].value_counts().max())
    browser.run("document.getElementById('all-labels').click()")
    wait_for(60)

    # By the keyboard alone: the slider, and the search.
    browser.run("document.getElementById('least').focus()")
    browser.press("Home", 36)
    browser.press("ArrowRight", 39, times=50)
    wait_for((probability.round(4) >= 0.5).sum())
    browser.run("document.getElementById('find-text').focus()")
    for letter in "cell59":
        browser.press(letter, ord(letter.upper()), letter)
    browser.press("Enter", 13, "\r")
    browser.wait("document.querySelectorAll('#found tbody tr').length === 1")
    assert browser.run(
        "document.querySelector('#found th[scope=row]').textContent"
    ) == ("<i>cell59</i>")
    browser.run("""{const by = document.getElementById('color-by');
                    by.value = 'sample'; by.dispatchEvent(new Event('change'))}""")
    browser.wait(
        "Bokeh.documents[0].roots()[0].renderers[0].glyph.fill_color.field === 'sample'"
    )
    assert browser.run("!document.querySelector('[data-legend=sample]').hidden")
    assert [
        url
        for url in browser.requests
        if not url.startswith(("file:", "data:", "about:"))
    ] == []
    assert browser.errors == []


def test_a_phone(query, browse):
    """No part is wider than the window, and a tap lists a cell."""
    names = {"a": "a type with a rather long name, as they are in large references"}
    query.obs["tosica_prediction"] = query.obs[
        "tosica_prediction"
    ].cat.rename_categories(names)
    browser = browse(390, query, labels_key="kind")
    browser.run("document.querySelectorAll('details').forEach((e) => {e.open = true})")
    assert browser.run("document.documentElement.scrollWidth") == 390
    browser.run(_TO_MAP)
    x, y = browser.run(_FIRST_CELL)
    browser.call(
        "Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}]
    )
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    name = browser.wait(
        "document.querySelector('#found:not([hidden]) th[scope=row]')?.textContent"
    )
    assert name == browser.run("tosicaMap.name(0)")
    status = browser.run("document.getElementById('find-status').textContent")
    assert status.startswith(
        f"{name}: {query.obs.loc[name, 'tosica_prediction']}, probability "
    )


def test_the_keyboard_reaches_every_control(query, toy_model, browse):
    tosica.tl.attribute(query, toy_model)
    browser = browse(1280, query)
    reached = []
    while not reached or reached[-1] != "body":
        browser.press("Tab", 9)
        reached.append(
            browser.run("(e => e.id || e.localName)(document.activeElement)")
        )
    assert reached[0] == "a"
    controls = [
        "color-by",
        "least",
        "name-labels",
        "all-labels",
        "no-labels",
        "find-text",
    ]
    assert [name for name in reached if name in controls] == controls
    assert reached.count("summary") == 3
    browser.run("document.querySelectorAll('details').forEach((e) => {e.open = true})")
    assert browser.run("document.documentElement.scrollWidth") == 1280
