"""What the linter cannot enforce: the words, the errors and the levels of the package."""

import ast
import re
import tokenize
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tosica"

# A package may import from those with the same or a lower number. Modules at the root of tosica
# that are not named here are helpers that only import one another.
UPWARDS = "gs onto|data|pp io linear module|model|get tl ondisk|pl|_report datasets _demo|tosica|cli"
LEVELS = {
    name: level
    for level, names in enumerate(UPWARDS.split("|"), 1)
    for name in names.split()
}
HELPERS = 0

BRITISH = re.compile(
    # Verbs, but not words as "otherwise", "precise", "promise", "raise" and "noise".
    r"[a-z]{2}(?:al|ar|ard|at|dom|er|et|il|im|in|ion|iv|ogn|on|or|sit|thes|um)is(?:e[drs]?|ing|ations?)(?![a-z])"
    r"|alys(?:ed?|ing)|colou|coloured|centre|centring|grey|logue"
    r"|(?:label|model|cancel|signal|travel|channel)l(?:ed|ing|er)"
    r"|(?:behavi|fav|neighb|lab)our|\bhonour|licence|artefact|fibre|judgement"
)


def relative(path):
    return path.relative_to(ROOT).as_posix()


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), path.name)


# --------------------------------------------------------------------------- spelling


def is_british(name):
    return BRITISH.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) is not None


def test_british_spelling_is_noticed():
    british = "log_normalised CentredScale colour RecogniseOrganism n_labelled analyse neighbours _GREY modelling"
    field_terms = "centered color n_raised noise pairwise hours organism called reliability basis analysis"
    assert [name for name in british.split() if not is_british(name)] == []
    assert [name for name in field_terms.split() if is_british(name)] == []


def test_american_spelling_in_identifiers():
    names = set()
    for path in SOURCE.rglob("*.py"):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.NAME and is_british(token.string):
                    names.add((relative(path), token.string))
    assert names == set()


# Names that others gave: an attribute of older versions and one of HTML, a label, a file; and a
# column of `tosica.gs.collections` with its text.
OTHER_NAMES = {
    "mislabelled_indices",
    "labelledby",
    "unlabelled",
    "kang_ctrl_unlabelled",
    "licence",
    "licences",
    "Licence",
}


def test_american_spelling_in_pages_and_messages():
    paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *SOURCE.rglob("*.py")]
    paths += [
        path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts
    ]
    words = {
        (relative(path), word)
        for path in paths
        for word in re.findall(r"[A-Za-z_]+", path.read_text(encoding="utf-8"))
        if is_british(word) and word not in OTHER_NAMES
    }
    assert words == set()


# --------------------------------------------------------------------------- docstrings

RIDDLES = re.compile(r"\b(?:of|by) which\b|\bby what\b|\bwhom\b")
# Still to be worded anew; "which genes are in which sets" is a plain question.
LEFT = {"build_mask"}


def test_docstrings_begin_with_a_plain_sentence():
    names = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                summary = (ast.get_docstring(node) or "").partition("\n\n")[0]
                if RIDDLES.search(" ".join(summary.split())):
                    names.add(getattr(node, "name", path.stem.strip("_")))
    assert names == LEFT


# --------------------------------------------------------------------------- levels and cycles


def module_name(path, root):
    names = path.relative_to(root).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports_in(folder):
    """Imports among the modules of a package, anywhere in them and for types too."""
    paths = {module_name(path, folder.parent): path for path in folder.rglob("*.py")}
    graph = {module: set() for module in paths}
    for module, path in paths.items():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                graph[module] |= {alias.name for alias in node.names} & set(paths)
            elif isinstance(node, ast.ImportFrom) and node.module in paths:
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    graph[module].add(submodule if submodule in paths else node.module)
        graph[module].discard(module)
    return graph


GRAPH = imports_in(SOURCE)


def level_of(module):
    _, _, inside = module.partition(".")
    return LEVELS.get(inside.split(".")[0] if inside else module, HELPERS)


def test_the_graph_is_that_of_the_package():
    """A reader of imports that finds none would let everything pass."""
    assert len(GRAPH) > 80
    assert "tosica.model" in GRAPH["tosica"]
    assert sum(len(imported) for imported in GRAPH.values()) > 200
    assert set(LEVELS) <= {
        module.split(".")[min(1, module.count("."))] for module in GRAPH
    }


def test_nothing_is_imported_from_above():
    imports = {
        (module, imported)
        for module, all_imported in GRAPH.items()
        for imported in all_imported
        if level_of(imported) > level_of(module)
    }
    assert imports == set()


@pytest.mark.parametrize("folder", [SOURCE, ROOT / "benchmarks"], ids=["src", "bench"])
def test_there_are_no_import_cycles(folder):
    try:
        TopologicalSorter(imports_in(folder)).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


# --------------------------------------------------------------------------- types

# Parameters that have a type of the package, of anndata, pandas, numpy or torch.
TYPED = {"adata", "cells", "labels", "mask", "model", "module", "obs", "state"}
# Still to be annotated.
UNTYPED = {
    "data/_matrix.py:__getitem__(cells)",
    "_obs.py:one_column(obs)",
}


def test_own_types_are_annotated():
    untyped = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.FunctionDef):
                continue
            arguments = node.args
            for argument in (*arguments.args, *arguments.kwonlyargs):
                annotation = argument.annotation
                if (
                    argument.arg in TYPED
                    and annotation is not None
                    and re.search(r"\bAny\b", ast.unparse(annotation))
                    and "[" not in ast.unparse(annotation)
                ):
                    name = path.relative_to(SOURCE).as_posix()
                    untyped.add(f"{name}:{node.name}({argument.arg})")
    assert untyped == UNTYPED


# --------------------------------------------------------------------------- markers


def test_tests_that_need_the_developers_data_say_so(
    request,
):
    names = {
        item.nodeid.partition("[")[0]
        for item in request.session.items
        if "shared" in getattr(item, "fixturenames", ())
        and not item.get_closest_marker("data")
    }
    assert names == set()


# --------------------------------------------------------------------------- pages


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/contributing.md"])
def test_files_named_on_a_page_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml|sh|yml|ipynb|svg))`", text))
    missing = {
        name
        for name in named
        if not name.startswith("..")
        and not any(
            (folder / name).exists() for folder in (ROOT, SOURCE, ROOT / "docs")
        )
        and not list((ROOT / ".github").rglob(name))
    }
    assert missing == set()
    assert named
