"""The page for browsers and readers: nothing is loaded, everything is escaped and named."""

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


@pytest.fixture
def full(query, toy_model, read_page):
    """A page with every section filled."""
    return read_page(
        query,
        model=toy_model,
        labels_key="kind",
        sample_key="donor",
        markers={"a": ["G0"]},
    )


def test_nothing_is_loaded(full):
    loads = {
        "src",
        "srcset",
        "data",
        "action",
        "poster",
        "background",
        "ping",
        "formaction",
    }
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
    assert not re.search(r"url\(|@import", style)


def test_elements_are_nested_and_named(full):
    assert full.badly_nested == []
    ids = [attributes["id"] for _, attributes in full.elements if "id" in attributes]
    assert max(Counter(ids).values()) == 1
    sections = [
        "summary",
        "composition",
        "confidence",
        "novelty",
        "map-section",
        "types",
        "doubt",
        "methods",
    ]
    assert [element["id"] for element in full.attributes("section")] == sections
    assert len(
        re.findall(r"</h2><p class=\"quiet\">[^<]{20,}[.;]", full.source)
    ) == len(sections)
    for tag, attributes in full.elements:
        pointed = [
            attributes[name]
            for name in ("aria-labelledby", "for")
            if name in attributes
        ]
        if tag == "a" and attributes["href"].startswith("#"):
            pointed.append(attributes["href"][1:])
        assert set(pointed) <= set(ids)
        assert tag != "th" or attributes["scope"] in ("col", "row")
        assert tag != "svg" or attributes["aria-hidden"] == "true"
    assert full.attributes("html")[0]["lang"] == "en"
    assert [len(full.attributes(tag)) for tag in ("main", "nav", "h1")] == [1, 1, 1]
    assert len(full.attributes("caption")) == len(full.attributes("table")) > 10
    assert full.attributes("a")[0] == {"class": "skip", "href": "#summary"}
    # Every control has a label that points to it, or one around it.
    controls = full.attributes("input") + full.attributes("select")
    assert len(controls) == 7
    named = {element.get("for") for element in full.attributes("label")}
    for attributes in controls:
        value = re.escape(str(attributes.get("value") or attributes.get("id")))
        assert attributes.get("id") in named or re.search(
            rf'<label[^>]*><input [^>]*"{value}"', full.source
        )


def test_hostile_names_are_text(query, read_page):
    n_scripts = len(read_page(query).scripts)
    query.obs["tosica_prediction"] = query.obs[
        "tosica_prediction"
    ].cat.rename_categories(HOSTILE)
    query.obs["donor"] = query.obs["donor"].cat.rename_categories({"d1": "<i>d1</i>"})
    query.obs_names = [f"<u>{name}</u>'\"&" for name in query.obs_names]
    query.var_names = [f"<s>{name}</s>" for name in query.var_names]
    page = read_page(query, title="<h1>&amp;", sample_key="donor")
    assert page.badly_nested == []
    assert len(page.scripts) == n_scripts
    assert not {"b", "u", "s", "img"} & {tag for tag, _ in page.elements}
    for label in HOSTILE.values():
        assert label in str(page.map_data)
    for text in ("<h1>&amp;", "<i>d1</i>", "<s>G0</s>", *HOSTILE.values()):
        assert text in page.text
    # In the data of the map, nothing can end the script.
    assert not set("<>&") & set(
        page.source.partition('id="map-data">')[2].partition("</script>")[0]
    )


def test_names_of_all_cells_are_in_the_page(query, read_page):
    from bokeh.core.serialization import Deserializer

    def arrays(value):
        if isinstance(value, dict) and value.get("type") == "ndarray":
            yield Deserializer().deserialize(value)
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from arrays(inner)

    columns = list(arrays(read_page(query).map_data["doc"]))
    [names] = [
        bytes(array).decode().split("\n")
        for array in columns
        if array.dtype == np.uint8
    ]
    assert sorted(names) == sorted(query.obs_names)
    codes = query.obs["tosica_prediction"].cat.codes
    assert any(np.array_equal(array, codes[names]) for array in columns)


def luminance(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(
        channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
    )
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_text_has_enough_contrast():
    css = (Path(tosica.__file__).parent / "_report" / "page.css").read_text(
        encoding="utf-8"
    )
    # The first two are the light scheme and the dark one.
    for block in re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)[:2]:
        colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        assert len(colors) == 9
        for text in ("text", "quiet", "link", "warn"):
            for page in ("page", "soft", "warn-soft"):
                bright, dark = sorted(
                    (luminance(colors[text]), luminance(colors[page])), reverse=True
                )
                assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, page)
