"""The pages: every public name, every page in a section, and the check of links."""

import inspect
import re
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import pytest
from test_distribution import script

import tosica

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGES = [
    name for name in tosica.__all__ if isinstance(getattr(tosica, name), ModuleType)
]


def public_names():
    top_level = {name for name in tosica.__all__ if name not in PACKAGES}
    return top_level | {
        f"{p}.{name}" for p in PACKAGES for name in getattr(tosica, p).__all__
    }


# --------------------------------------------------------------------------- API


def documented_names():
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r"\.\. autosummary::\n(.*?)```", text, flags=re.DOTALL)
    return re.findall(r"^   (\w[\w.]*)$", "\n".join(blocks), flags=re.MULTILINE)


def test_every_public_name_is_in_the_api_once():
    documented = documented_names()
    assert len(documented) == len(set(documented))
    # TOSICA is shown where users import it.
    assert set(documented) == public_names() - {"model.TOSICA"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_lists_its_public_names(package):
    module = getattr(tosica, package)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
        if getattr(value, "__module__", "").startswith("tosica.")
    }
    assert public <= set(module.__all__)


@pytest.mark.parametrize("name", sorted(public_names()))
def test_every_public_field_says_what_it_is(name):
    """The linter asks for docstrings of functions and classes."""
    value = attrgetter(name)(tosica)
    for member in vars(value) if inspect.isclass(value) else ():
        as_text = rf'\n    {member}: .*\n    """'
        # A field with a default, among the parameters.
        among = rf"(?m)^(\w+, )*{member}(, \w+)*$"
        assert (
            member.startswith("_")
            or inspect.getdoc(inspect.getattr_static(value, member))
            or re.search(as_text, inspect.getsource(value))
            or re.search(among, inspect.getdoc(value))
        ), member


# --------------------------------------------------------------------------- sections


def listed_pages(page):
    """Pages in the toctrees of a page."""
    text = page.read_text(encoding="utf-8")
    toctrees = re.findall(
        r"^```\{toctree\}\n((?::.*\n)*)\n?([^`]*)^```", text, flags=re.MULTILINE
    )
    pages = set()
    for options, entries in toctrees:
        for entry in entries.split():
            folder = DOCS if entry.startswith("/") else page.parent
            name = f"{entry.removeprefix('/')}.md"
            pages |= set(folder.glob(name)) if ":glob:" in options else {folder / name}
    return pages


def test_every_page_is_in_a_section():
    listed = set()
    new = {DOCS / "index.md"}
    while new:
        listed |= new
        new = {
            listed_page
            for page in new
            if page.exists()
            for listed_page in listed_pages(page)
        } - listed
    pages = {
        path
        for path in DOCS.rglob("*.md")
        if not {"_build", "generated", "tutorials"} & set(path.relative_to(DOCS).parts)
    }
    assert pages - listed == set()
    # Tutorials lie beside the folder of the pages until these are built.
    assert {path for path in listed - pages if "tutorials" not in path.parts} == set()


def test_every_benchmark_is_in_the_table():
    folder = DOCS / "benchmarks"
    text = (folder / "index.md").read_text(encoding="utf-8")
    pages = {
        path.stem: path.read_text(encoding="utf-8")
        for path in folder.glob("*.md")
        if path.stem != "index"
    }
    assert set(
        re.findall(r"^\| .*\]\((\w+)\.md[^)]*\) \|$", text, flags=re.MULTILINE)
    ) == set(pages)
    named = set(re.findall(r"python -m benchmarks\.(\w+)", "\n".join(pages.values())))
    assert named == {path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py")} - {
        "damage",
        "gpu",
    }


# --------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('<a href="b.html#here">', None),
        ('<a href="https://example.org#x">', None),
        ('<p id="top"><a href="#top">', None),
        ('<a href="c.html">', "a.html links to c.html, which does not exist."),
        (
            '<a href="b.html#there">',
            "a.html links to b.html#there, but that page has no such",
        ),
        (
            '<script src="https://example.org/x.js">',
            "a.html fetches https://example.org/x.js",
        ),
        ('<link rel="canonical" href="https://example.org/a.html">', None),
    ],
)
def test_links_are_followed(text, sentence, tmp_path):
    with pytest.raises(SystemExit, match="has no pages"):
        script("check_links").main([str(tmp_path)])
    (tmp_path / "a.html").write_text(text)
    (tmp_path / "b.html").write_text('<p id="here">')
    with (
        pytest.raises(SystemExit, match=re.escape(sentence))
        if sentence
        else nullcontext()
    ):
        script("check_links").main([str(tmp_path)])
