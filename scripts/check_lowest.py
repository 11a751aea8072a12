"""Check that every lower bound in `pyproject.toml` is the version that is installed here.

A bound that no installation can have, because another dependency asks for more, says something that
nobody tested. `scripts/check.sh lowest` runs this after it has installed the lowest versions.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


def lower_bounds(pyproject: dict) -> dict[str, str]:
    """Lower bound by name, of all that the package, its extras and its tests need.

    Raises
    ------
    ValueError
        If a requirement has no lower bound, or not the one that it has elsewhere in the file.
    """
    project = pyproject["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    needed = [
        *project["dependencies"],
        *extras,
        *pyproject["dependency-groups"]["test"],
    ]
    bounds: dict[str, str] = {}
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue  # not for this Python
        minima = [
            specifier.version
            for specifier in requirement.specifier
            if specifier.operator == ">="
        ]
        if not minima:
            raise ValueError(f"{text!r} in pyproject.toml has no lower bound; add one.")
        if bounds.setdefault(requirement.name, minima[0]) != minima[0]:
            raise ValueError(
                f"{requirement.name} has the lower bounds {bounds[requirement.name]} and "
                f"{minima[0]} in pyproject.toml; name one."
            )
    return bounds


def main() -> None:
    """Print each bound that is not the installed version, and fail if there is one."""
    bounds = lower_bounds(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    )
    wrong = [
        f"{name}>={bound} in pyproject.toml, but the lowest that can be installed is {version(name)}: name that."
        for name, bound in bounds.items()
        # A local label, as in 2.8.0+cpu, names a build of the same version.
        if Version(Version(version(name)).public) != Version(bound)
    ]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"All {len(bounds)} lower bounds are the versions that are installed.")


if __name__ == "__main__":
    main()
