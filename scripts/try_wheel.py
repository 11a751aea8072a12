"""Install a wheel in an empty environment, away from the repository, and use it.

python scripts/try_wheel.py dist/*.whl

Its dependencies are those of the Python that runs this, if it has them; that takes seconds. With
`--empty`, or if it lacks them, they are installed as well, from PyPI.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every package, the files inside them, and the way from a mask to a model that knows its genes.
USE = """\
import scanpy, tosica, sys
assert tosica.__file__.startswith(sys.prefix), tosica.__file__
for name in tosica.__all__:
    getattr(tosica, name)
assert len(tosica.gs.load("human_gobp")) > 1000
assert tosica.onto.term_name("CL:0000236") == "B cell"
adata = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
tosica.pp.build_mask(adata)
tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
assert tosica.TOSICA(adata).labels
print("tosica", tosica.__version__, "works from", tosica.__file__)
"""


def run(*command: str | Path, cwd: Path) -> None:
    """Run a command with nothing of the repository on its path."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    subprocess.run(
        [str(argument) for argument in command], check=True, cwd=cwd, env=env
    )


def try_wheel(wheel: Path, folder: Path, *, empty: bool) -> None:
    """Install a wheel into a new environment in a folder, and run `USE` and the command there."""
    venv.create(folder / "venv", with_pip=True, symlinks=os.name != "nt")
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    lacks = empty or importlib.util.find_spec("scvi") is None
    run(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        *([] if lacks else ["--no-deps"]),
        wheel,
        cwd=folder,
    )
    if not lacks:
        # What stands in .pth files of that folder is not followed: a clone that is installed there
        # stays unseen.
        site = sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")})
        Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    else:
        run(python, "-m", "pip", "check", cwd=folder)
    run(scripts / "tosica", "--version", cwd=folder)
    run(python, "-c", USE, cwd=folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Try each wheel in an environment of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument(
        "--empty", action="store_true", help="install the dependencies as well"
    )
    options = parser.parse_args(argv)
    for wheel in options.wheels:
        if not wheel.is_file():
            sys.exit(f"{wheel} is not a file; build it with scripts/check.sh build.")
        with tempfile.TemporaryDirectory() as folder:
            try_wheel(wheel.resolve(), Path(folder), empty=options.empty)


if __name__ == "__main__":
    main()
