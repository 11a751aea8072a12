"""Markdown tables, versions and files, for the pages of all benchmarks."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("tosica", "torch", "scvi-tools", "lightning", "anndata", "scanpy", "numpy")


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def table(head: list[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a Markdown table; numbers with three digits."""
    shown = [
        [
            f"{c:.3g}" if isinstance(c, float) and c < 100 else f"{c:.0f}" if isinstance(c, float) else str(c)
            for c in row
        ]
        for row in rows
    ]
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *shown]]


def versions(*more: str) -> dict[str, str]:
    """Date, Python and the packages that a result depends on."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        **{name: version(name) for name in (*PACKAGES, *more)},
    }


def version_lines(result: dict[str, Any]) -> list[str]:
    """The last section of a page: versions at the time of the measurement."""
    return ["## Versions", "", *table(["", ""], [*result["versions"].items()]), ""]


def write(folder: Path, name: str, result: dict[str, Any], page: str) -> None:
    """Write `name`.json and `name`.md, and print the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{name}.md").write_text(page)
    print(page)
