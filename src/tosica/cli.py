"""The command line: ``tosica demo``."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tosica",
        description="Annotate single cells with a Transformer whose tokens are gene sets.",
    )
    parser.add_argument("--version", action="version", version=f"tosica {version('tosica')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train on 490 real PBMCs, annotate 210 others, write a table, an .h5ad and figures",
        description=(
            "Train on 70 %% of the 700 PBMCs that scanpy ships, annotate the rest, and hold the "
            "labels against the known ones and against a logistic regression. Works offline, in "
            "about a minute on two cores."
        ),
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("tosica_demo"),
        help="folder for the annotated .h5ad and the figures (default: %(default)s)",
    )
    demo.add_argument("--seed", type=_seed, default=0, help="seed of split and training")
    arguments = parser.parse_args(argv)
    if arguments.out.exists() and not arguments.out.is_dir():
        parser.error(f"--out {arguments.out} is a file; give a folder.")

    # Late, because torch and scanpy take seconds to import and --help should not.
    from tosica._demo import run_demo

    run_demo(arguments.out, seed=arguments.seed)
    return 0


def _seed(text: str) -> int:
    """Read a seed: what numpy, scikit-learn and torch all take."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2^32 - 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
