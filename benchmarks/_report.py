"""Markdown tables, versions and files, for the pages of all benchmarks."""

from __future__ import annotations

import importlib
import json
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from benchmarks._figures import FIGURES, draw

if TYPE_CHECKING:
    from collections.abc import Sequence

# Each page, its title, and the results that it shows, in order. A result is of the script of its name.
PAGES = {
    "accuracy": (
        "Accuracy",
        ("accuracy", "accuracy_unseen", "accuracy_held_back", "batches"),
    ),
    "explanation": ("Explanation", ("explanation", "trajectory")),
    "adapt": ("Learning from the query", ("adapt",)),
    "doubt": ("Doubt", ("label_sets", "confident", "ontology")),
    "robustness": ("Other genes and other scales", ("missing_genes", "scales")),
    "new_types": ("New types", ("novelty", "new_labels")),
    "scale": ("Speed and memory", ("speed", "scale")),
    "parts": ("Parts of the model", ("parts", "cite_seq")),
}
PACKAGES = ("tosica", "torch", "scvi-tools", "lightning", "anndata", "scanpy", "numpy")


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()


def table(head: list[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table; numbers with three digits."""
    shown = [
        [
            f"{c:.3g}"
            if isinstance(c, float) and c < 100
            else f"{c:.0f}"
            if isinstance(c, float)
            else str(c)
            for c in row
        ]
        for row in rows
    ]
    return [
        "| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *shown]
    ]


def versions(*more: str) -> dict[str, str]:
    """Date, Python and the packages that a result depends on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in (*PACKAGES, *more)},
    }


def version_lines(result: dict[str, Any]) -> list[str]:
    """The last line of a result: when and with which tosica it was measured."""
    measured = result["versions"]
    return [
        f"*Measured on {measured['date']} with tosica {measured['tosica']}; the JSON file has all versions.*",
        "",
    ]


def script_of(result: str) -> Any:
    """The module that measured a result."""
    return importlib.import_module(
        f"benchmarks.{re.sub('_(unseen|held_back)$', '', result)}"
    )


def page(name: str, folder: Path, **known: str) -> str:
    """A page: its results in `folder`, each a section, or the texts that are `known` of some."""
    title, parts = PAGES[name]
    texts = {part: known.get(part, "") for part in parts}
    for part in parts:
        path = folder / f"{part}.json"
        if not texts[part] and path.exists():
            texts[part] = script_of(part).report(json.loads(path.read_text()))
    sections = [re.sub(r"(?m)^#", "##", text) for text in texts.values() if text]
    figure = (
        [f"![{FIGURES[name][1]}](../_static/{name}.png)", ""] if name in FIGURES else []
    )
    sections = [
        "\n\n".join(map(_filled, section.split("\n\n"))) for section in sections
    ]
    # The search of the pages leaves these out: they have nearly every word.
    return "\n".join(
        ["---", "nosearch: true", "---", "", f"# {title}", "", *figure, *sections]
    )


def _filled(text: str) -> str:
    """A paragraph in lines of equal length, which no code is broken by; anything else as it is."""
    if not re.match(r"[A-Za-z0-9(]|\*\w", text):
        return text
    whole = re.sub(
        r"`[^`]*`|\d (?=\d{3})",
        lambda found: re.sub(r"\s", "\0", found[0]),
        text.strip(),
    )
    filled = fill(whole, 120, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ") + "\n" * text.endswith("\n")


def write(folder: Path, name: str, result: dict[str, Any], report: str) -> None:
    """Write `name`.json and the page that shows it, and print what it says of this result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    of = next(page for page, (_, parts) in PAGES.items() if name in parts)
    (folder / f"{of}.md").write_text(page(of, folder, **{name: report}))
    stored = {part: folder / f"{part}.json" for part in PAGES[of][1]}
    if of in FIGURES and all(path.exists() for path in stored.values()):
        draw(
            of,
            folder,
            {part: json.loads(path.read_text()) for part, path in stored.items()},
        )
    print(report)
