"""The page for browsers and readers: nothing is loaded, everything is escaped and named."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tosica

HOSTILE = {
    "a": '<b>T&"cells</b>',
    "b": "</script><script>alert(1)</script>",
    "c": "<img src=https://example.org/x onerror=alert(2)>",
}
CSS = (Path(tosica.__file__).parent / "_report" / "page.css").read_text(encoding="utf-8")


@pytest.fixture
def full(query, toy_model, read):
    """A page with every section filled."""
    return read(
        query,
        model=toy_model,
        labels_key="kind",
        sample_key="donor",
        markers={"a": ["G0"]},
    )


def test_sections_come_in_order_with_a_sentence_each(full):
    sections = [each["id"] for each in full.attributes("section")]
    assert sections == [
        *("summary", "composition", "confidence", "novelty", "map-section", "types", "doubt"),
        "methods",
    ]
    assert len(re.findall(r"</h2><p class=\"quiet\">[^<]{20,}[.;]", full.source)) == 8


def test_nothing_is_loaded(full):
    loads = {"src", "srcset", "data", "action", "poster", "background", "ping", "formaction"}
    for tag, attributes in full.elements:
        assert not loads & set(attributes), (tag, attributes)
        address = attributes.get("href")
        if tag == "link":
            assert address == "data:,"
        elif address is not None:
            assert tag == "a"
            assert address.startswith(("#", "https://doi.org/"))
    [policy] = [m["content"] for m in full.attributes("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    assert not {"iframe", "object", "embed", "img"} & {tag for tag, _ in full.elements}
    style = full.source.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_elements_are_nested_and_named(full):
    assert full.badly_nested == []
    ids = [attributes["id"] for _, attributes in full.elements if "id" in attributes]
    assert [name for name, n in Counter(ids).items() if n > 1] == []
    for tag, attributes in full.elements:
        for points in ("aria-labelledby", "for"):
            if points in attributes:
                assert attributes[points] in ids
        if tag == "a" and attributes["href"].startswith("#"):
            assert attributes["href"][1:] in ids
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag == "svg":
            assert attributes["aria-hidden"] == "true"
    html = full.attributes("html")[0]
    assert html["lang"] == "en"
    assert len(full.attributes("main")) == len(full.attributes("nav")) == 1
    assert len(full.attributes("h1")) == 1
    assert len(full.attributes("caption")) == len(full.attributes("table")) > 10
    assert full.attributes("a")[0] == {"class": "skip", "href": "#summary"}


def test_every_control_has_a_name(full):
    named = {each.get("for") for each in full.attributes("label")}
    for tag in ("input", "select"):
        for attributes in full.attributes(tag):
            if attributes.get("id") in named:
                continue
            # A label around it names it.
            written = re.escape(str(attributes.get("value") or attributes.get("id")))
            assert re.search(rf'<label[^>]*><input [^>]*"{written}"', full.source)
    assert len(full.attributes("input")) == 6


def test_hostile_names_are_text(query, read):
    n_scripts = len(read(query).scripts)
    query.obs["tosica_prediction"] = query.obs["tosica_prediction"].cat.rename_categories(HOSTILE)
    query.obs["donor"] = query.obs["donor"].cat.rename_categories({"d1": "<i>d1</i>"})
    query.obs_names = [f"<u>{name}</u>'\"&" for name in query.obs_names]
    query.var_names = [f"<s>{name}</s>" for name in query.var_names]
    page = read(query, title="<h1>&amp;", sample_key="donor")
    assert page.badly_nested == []
    assert len(page.scripts) == n_scripts
    assert not {"b", "u", "s", "img"} & {tag for tag, _ in page.elements}
    for label in HOSTILE.values():
        assert label in page.text
        assert label in str(page.map_data)
    assert "<h1>&amp;" in page.text
    assert "<i>d1</i>" in page.text
    assert "<s>G0</s>" in page.text
    # In the data of the map, nothing can end the script.
    data = page.source.partition('id="map-data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(data)


def test_names_of_all_cells_are_in_the_page(query, read):
    from bokeh.core.serialization import Deserializer

    def arrays(value):
        if isinstance(value, dict) and value.get("type") == "ndarray":
            yield Deserializer().deserialize(value)
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from arrays(inner)

    found = list(arrays(read(query).map_data["doc"]))
    [text] = [bytes(array).decode() for array in found if array.dtype == np.uint8]
    names = text.split("\n")
    assert sorted(names) == sorted(query.obs_names)
    codes = query.obs["tosica_prediction"].cat.codes
    assert any(np.array_equal(array, codes[names]) for array in found)


def colors(scheme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", CSS, flags=re.DOTALL)
    block = blocks[0 if scheme == "light" else 1]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(color: str) -> float:
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme):
    found = colors(scheme)
    assert len(found) == 9
    for text in ("text", "quiet", "link", "warn"):
        for page in ("page", "soft", "warn-soft"):
            bright, dark = sorted((luminance(found[text]), luminance(found[page])), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, page)
