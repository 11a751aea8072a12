"""Tables, versions and JSON files, which all benchmarks share."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("tosica", "torch", "scvi-tools", "lightning", "anndata", "scanpy", "numpy")
LOGGERS = ("lightning.pytorch", "tosica", "celltypist", "scvi", "distributed")
OUTPUT_FOLDER = Path("docs/benchmarks")


def make_parser(doc: str | None, *, has_data: bool = True) -> argparse.ArgumentParser:
    """Make a parser with the arguments that all scripts have.

    Parameters
    ----------
    doc
        Docstring of the script, whose first paragraph is the description.
    has_data
        Whether the script reads the files of a folder.
    """
    description = (doc or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=description)
    if has_data:
        parser.add_argument("data", type=Path, help="folder with the files")
    parser.add_argument("--out", type=Path, default=OUTPUT_FOLDER)
    return parser


def quiet() -> None:
    """Silence log lines and warnings, also of processes that are started later."""
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor()


def table(head: list[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table; numbers have three digits."""
    lines = [head, ["---"] * len(head)]
    lines += [[_format_cell(value) for value in row] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _format_cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def versions(*packages: str) -> dict[str, str]:
    """Date, Python and the packages that a result depends on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in (*PACKAGES, *packages)},
    }


def version_lines(result: dict[str, Any]) -> list[str]:
    """Last line of a section: date and version of tosica."""
    measured = result["versions"]
    return [f"*{measured['date']}, tosica {measured['tosica']}*", ""]


def load(folder: Path, name: str) -> dict[str, Any]:
    """Read the result of an interrupted run, or begin an empty one."""
    path = folder / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    return {"runs": []}


def write(folder: Path, name: str, result: dict[str, Any], report: str) -> None:
    """Write a result as JSON, and print its section of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(report)
