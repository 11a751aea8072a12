"""Run the tutorials and keep their outputs in the notebooks, with pictures of few colors.

Figures have flat colors, so that a palette of 256 shows the same in less than half of the bytes.
Needs the dependency group `docs`; run it from the root of the repository:

    python scripts/run_tutorials.py tutorials/pbmc.ipynb tutorials/condition.ipynb

`--keep-outputs` runs nothing and only makes the pictures small. `--check` runs the notebooks in a
temporary folder and leaves the files as they are; `scripts/check.sh tutorials` does this with all.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Where a kernel keeps a cell's code, before a warning.
_PLACE = re.compile(r"^\S*ipykernel_\d+/\d+\.py:\d+: ", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite each notebook in place, print the sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", type=Path, nargs="+")
    parser.add_argument("--keep-outputs", action="store_true", help="run nothing")
    parser.add_argument("--check", action="store_true", help="run, and change no file")
    args = parser.parse_args(argv)
    if args.check:
        sys.exit(check(args.notebooks))
    for path in args.notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not args.keep_outputs:
            notebook = run(notebook, path.parent)
        tidy(notebook)
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(text) // 1000} kB")


def check(paths: Sequence[Path]) -> int:
    """Run each notebook in a folder of its own, print the seconds; 1 if any of them fails."""
    failed = 0
    for path in paths:
        started = perf_counter()
        with TemporaryDirectory() as folder:
            try:
                run(json.loads(path.read_text(encoding="utf-8")), Path(folder))
                outcome = "ran"
            except Exception as error:
                failed = 1
                outcome = f"failed: {error}\n"
        print(f"{path}: {outcome} ({perf_counter() - started:.0f} s)", flush=True)
    return failed


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run in ``folder``."""
    import nbformat
    from nbclient import NotebookClient

    # Read, not made from a dict: cells are lists of lines in a file, and strings in memory.
    node = nbformat.reads(json.dumps(notebook), as_version=4)  # type: ignore[no-untyped-call]
    resources_of_run = {"metadata": {"path": str(folder)}}
    NotebookClient(
        node, timeout=1800, coalesce_streams=True, resources=resources_of_run
    ).execute()
    done: dict[str, Any] = json.loads(nbformat.writes(node))  # type: ignore[no-untyped-call]
    return done


def tidy(notebook: dict[str, Any]) -> None:
    """Remove outputs of one machine or terminal, and make the pictures small."""
    notebook["metadata"]["language_info"] = {"name": "python"}
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        for output in cell.get("outputs", []):
            if "text" in output:
                text = _TERMINAL_COLOUR.sub("", "".join(output["text"]))
                output["text"] = _PLACE.sub("", text)
            picture = output.get("data", {}).get("image/png")
            if picture is not None:
                output["data"]["image/png"] = shrink_base64("".join(picture))


def shrink_base64(picture: str) -> str:
    """A PNG as notebooks hold it, in a palette unless that is no smaller."""
    smaller = base64.b64encode(shrink(base64.b64decode(picture))).decode()
    return min(picture.strip(), smaller, key=len)


def shrink(png: bytes) -> bytes:
    """A PNG on white with at most 256 colors."""
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    opaque = Image.alpha_composite(white, picture).convert("RGB")
    out = io.BytesIO()
    palette = opaque.quantize(
        256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
    palette.save(out, "PNG", optimize=True)
    return out.getvalue()


if __name__ == "__main__":
    main()
