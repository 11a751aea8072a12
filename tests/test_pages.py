"""What README, the how-to pages and the page of errors show is true of the package."""

import ast
import os
import re
import shlex
import shutil
import warnings
from functools import wraps
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
from _cells import write_10x_mtx
from anndata import AnnData

import tosica
from tosica import TOSICA, cli
from tosica._text import parameter

ROOT = Path(__file__).resolve().parents[1]
HOW_TO = sorted(
    path for path in (ROOT / "docs" / "how_to").glob("*.md") if path.stem != "index"
)
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("command_line", "which_tool")),
    *HOW_TO,
]
VARYING = "…"


def blocks(page, language):
    return re.findall(
        rf"```{language}\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL
    )


# --------------------------------------------------------------------------- commands


def shown_commands():
    lines = [
        line
        for page in PAGES
        for block in blocks(page, "bash")
        for line in block.split("\n")
    ]
    lines += [match[1] for line in lines if (match := re.search('--wrap "(.*)"', line))]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("tosica ")]
    assert len(commands) > 9
    return commands


@pytest.mark.parametrize("words", shown_commands(), ids=" ".join)
def test_commands_are_understood(words, monkeypatch):
    # `--threads` sets variables that numba must not find changed while it runs.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    command = cli.commands.commands[words[0]]
    assert command.make_context(words[0], words[1:]).params


# --------------------------------------------------------------------------- messages


def with_dots(node):
    """A string as users see it, with dots for what varies."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(with_dots, node.values))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Call):
        # In Python, as the page shows it.
        function = ast.unparse(node.value.func)
        if function == "parameter" and all(
            isinstance(argument, ast.Constant) for argument in node.value.args
        ):
            return parameter(*(argument.value for argument in node.value.args))
    return VARYING


@pytest.fixture(scope="module")
def messages():
    trees = [
        ast.parse(path.read_text("utf-8")) for path in (ROOT / "src").rglob("*.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return [
        with_dots(node)
        for node in nodes
        if isinstance(node, ast.Constant | ast.JoinedStr)
    ]


def shown_messages():
    text = (ROOT / "docs" / "how_to" / "errors.md").read_text(encoding="utf-8")
    text = text.split("## No error")[0]
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


def n_pieces(words, messages):
    """Of how few strings of the package the words can be put together; 99 if they cannot."""
    if not words:
        return 0
    for n in range(len(words), 0, -1):
        if any(" ".join(words[:n]) in text for text in messages):
            return 1 + n_pieces(words[n:], messages)
    return 99


@pytest.mark.parametrize("message", shown_messages())
def test_messages_are_those_of_the_package(message, messages):
    phrases = [phrase.strip(" .,;:()[]") for phrase in message.split(VARYING)]
    phrases = [phrase for phrase in phrases if len(phrase) > 3]
    assert phrases
    for phrase in phrases:
        assert n_pieces(phrase.split(), messages) <= 2, phrase


# --------------------------------------------------------------------------- numbers

BENCHMARKS = ROOT / "docs" / "benchmarks"
MEASURED = {
    path.stem: path.read_text("utf-8")
    for path in BENCHMARKS.glob("*.md")
    if path.stem != "index"
}


def numbers_beside_links(page):
    """Each number of a paragraph, list or table that links a benchmark, or whose caption does, and what it links."""
    link = r"\]\((\w+)\.md" if page.parent == BENCHMARKS else r"benchmarks/(\w+)\.md"
    chunks = re.sub(r"\n(?=- )", "\n\n", page.read_text("utf-8")).split("\n\n")
    for chunk, next_chunk in zip(chunks, [*chunks[1:], ""], strict=True):
        caption = (
            next_chunk if chunk.startswith("|") and next_chunk.startswith("*") else ""
        )
        linked = set(re.findall(link, chunk + caption)) - {"index"}
        if linked and "```" not in chunk:
            tables = "\n".join(MEASURED[name] for name in linked)
            for number in re.findall(
                r"(?<![\d.])\d+\.\d+(?![\d.])|\d+%", re.sub(r"\]\(.*?\)", "]", chunk)
            ):
                yield number, tables


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda p: p.stem,
)
def test_numbers_of_pages_are_those_of_tables(page):
    if page.stem in MEASURED and page.parent == BENCHMARKS:
        return
    for number, tables in numbers_beside_links(page):
        digits = len(number.split(".")[-1])
        table_numbers = set(re.findall(r"(?<![\d.])\d+\.\d+|\d+%", tables))
        # A page may round.
        assert number in table_numbers or number in {
            f"{float(x):.{digits}f}" for x in table_numbers if "%" not in x
        }, number


def test_at_least_thirty_numbers_are_looked_at():
    pages = (
        ROOT / "README.md",
        ROOT / "docs" / "index.md",
        ROOT / "docs" / "which_tool.md",
        BENCHMARKS / "index.md",
    )
    assert min(len(list(numbers_beside_links(page))) for page in pages) > 7
    limits = ROOT / "docs" / "limits.md"
    assert len(list(numbers_beside_links(limits))) > 30


# --------------------------------------------------------------------------- code


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with the files that the pages name."""
    path = tmp_path_factory.mktemp("pages")
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    adata.obs["cell_type"] = adata.obs["bulk_labels"]
    adata.obs["donor"] = np.where(np.arange(adata.n_obs) % 2, "one", "two")
    adata.obs["leiden"] = adata.obs["louvain"]
    adata.obs["patient"] = [f"p{i // 2 % 3}" for i in range(adata.n_obs)]
    adata.obs["condition"] = np.where(
        np.arange(adata.n_obs) // 6 % 2, "treated", "control"
    )
    ref, query = adata[::2].copy(), adata[1::2].copy()
    ref.write_h5ad(path / "reference.h5ad")
    query.write_h5ad(path / "query.h5ad")
    checked = query.obs["bulk_labels"].sample(50, random_state=0).astype(str)
    checked.rename("tosica_prediction").to_csv(path / "checked.csv")
    # Counts that have about this expression.
    counts = AnnData(np.rint(np.expm1(query.X[:80].toarray())), obs=query.obs[:80])
    write_10x_mtx(counts, path / "filtered_feature_bc_matrix", query.var_names)
    tosica.pp.build_mask(ref)
    TOSICA.setup_anndata(ref, labels_key="cell_type")
    model = TOSICA(ref, embed_dim=16, max_gene_sets=50)
    model.train(max_epochs=1)
    model.save(path / "model")
    return path


@pytest.fixture
def folder(files, tmp_path, monkeypatch):
    """The files, where the code of a page is run, and trainings of seconds."""
    copy = tmp_path / "copy"
    shutil.copytree(files, copy)
    train = TOSICA.train

    @wraps(train)
    def shortly(self, **kwargs):
        train(self, max_epochs=1, **kwargs)

    monkeypatch.setattr(TOSICA, "train", shortly)
    monkeypatch.chdir(copy)
    autoshow = sc.settings.autoshow
    sc.settings.autoshow = False
    yield copy
    sc.settings.autoshow = autoshow
    plt.close("all")


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Left out"
)  # types of few cells, in a query as small as this one
@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_code_of_how_to_pages_runs(page, folder, monkeypatch):
    if page.stem == "cluster":
        pytest.importorskip("zarr", reason="the extra atlas")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sc.read_h5ad(folder / "query.h5ad").write_zarr(folder / "query.zarr")
    names = {}
    code_blocks = blocks(page, "python")
    assert code_blocks or page.stem == "errors"
    with warnings.catch_warnings():
        if page.stem == "blood":
            # The cells here have 765 genes.
            warnings.simplefilter("ignore")
            names["query"] = sc.read_h5ad(folder / "query.h5ad")
            # The census is not downloaded; tests of datasets read a small one.
            model = TOSICA.load("blood")
            census = AnnData(uns={"census": {"datasets": {"citation": ["a paper"]}}})
            monkeypatch.setattr(tosica.datasets, "tissue_model", lambda tissue: model)
            monkeypatch.setattr(
                tosica.datasets, "census", lambda tissue, **options: census
            )
        for block in code_blocks:
            if "spatialdata" in block:
                # It is no dependency of the tests; tests of the command line write such a store.
                continue
            exec(compile(block, page.name, "exec"), names)
