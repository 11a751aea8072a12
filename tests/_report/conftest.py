"""An annotated query, and pages read like a browser reads them."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import tosica

_VOID = {"meta", "link", "input", "rect"}


class Page(HTMLParser):
    """Elements of a page, its text outside of scripts, and what is wrong with its nesting."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.source = text
        self.elements = []
        self.scripts = []
        self.tables = []
        self.captions = []
        self.words = []
        self.badly_nested = []
        self._open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        containers = {
            "table": (self.tables, []),
            "tr": (self.tables and self.tables[-1], []),
        }
        containers |= {"caption": (self.captions, ""), "script": (self.scripts, "")}
        if tag in containers:
            containers[tag][0].append(containers[tag][1])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        if tag not in _VOID and (not self._open or self._open.pop() != tag):
            self.badly_nested.append(tag)

    def handle_data(self, data):
        where = self._open[-1] if self._open else ""
        if where == "script":
            self.scripts[-1] += data
        elif where != "style":
            self.words.append(data)
            if {"th", "td"} & set(self._open):
                self.tables[-1][-1][-1] += data
            elif "caption" in self._open:
                self.captions[-1] += data

    @property
    def text(self):
        """What is to be read, with every white space a blank."""
        return re.sub(r"\s+", " ", "".join(self.words))

    def table(self, beginning):
        """Rows of the first table whose caption begins so."""
        position = next(
            i
            for i, caption in enumerate(self.captions)
            if caption.startswith(beginning)
        )
        return self.tables[position][1:]

    def attributes(self, tag):
        """Attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def map_data(self):
        """What the map is drawn from."""
        types = [attributes.get("type") for attributes in self.attributes("script")]
        return json.loads(self.scripts[types.index("application/json")])


@pytest.fixture
def query(toy_query, toy_model):
    """60 annotated cells with a UMAP."""
    toy_model.annotate(toy_query)
    toy_query.obsm["X_umap"] = np.random.default_rng(0).random((60, 2))
    return toy_query


@pytest.fixture
def read_page(tmp_path):
    """Write a report, and read the page."""

    def write_and_read(adata, *, model=None, **arguments):
        if model is not None:
            raw = {
                name: value
                for name, value in arguments.items()
                if name in ("layer", "use_raw", "key")
            }
            tosica.tl.attribute(adata, model, **raw)
        path = tosica.report(adata, tmp_path / "report.html", **arguments)
        return Page(path.read_text(encoding="utf-8"))

    return write_and_read
