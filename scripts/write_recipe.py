"""Write the conda recipe from `pyproject.toml`, in the style of conda-forge.

    python scripts/write_recipe.py                                  # release/conda/recipe.yaml
    python scripts/write_recipe.py --sdist dist/tosica-0.1.0.tar.gz --out recipe.yaml

The first builds the clone that it lies in, for a try. The second builds what is on PyPI, and is
what conda-forge wants: it has the address and the hash of the sdist.
"""

from __future__ import annotations

import argparse
import hashlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "release" / "conda" / "recipe.yaml"
# Packages that conda-forge calls otherwise. Its `matplotlib` also brings a toolkit for windows.
CONDA = {
    "igraph": "python-igraph",
    "matplotlib": "matplotlib-base",
    "tiledbsoma": "tiledbsoma-py",
    "torch": "pytorch",
}

TEXT = """\
# Written by scripts/write_recipe.py from pyproject.toml.
schema_version: 1

context:
  version: "{version}"
  python_min: "{python_min}"

package:
  name: tosica
  version: ${{{{ version }}}}

source:
{source}

build:
  noarch: python
  number: 0
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
  python:
    entry_points:
{entry_points}

requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - hatchling
    - pip
  run:
    - python >=${{{{ python_min }}}}
{run}
  # Of the extras: not installed, but recent enough if they are.
  run_constraints:
{constraints}

tests:
  - python:
      imports:
        - tosica
      pip_check: true
      python_version:
        - ${{{{ python_min }}}}.*
        - "*"
  - script:
      - tosica --version
      - python -c "import tosica; assert len(tosica.gs.load('human_gobp')) > 1000"

about:
  homepage: {source_code}
  repository: {source_code}
  documentation: {documentation}
  summary: {summary}
  license: {licence}
  license_file:
{licence_files}

extra:
  recipe-maintainers:
    - tosica
"""


def conda_requirements(requirements: Iterable[str]) -> list[str]:
    """Translate requirements into conda's, sorted by name, each package once."""
    specifications = {}
    for text in requirements:
        requirement = Requirement(text)
        name = CONDA.get(requirement.name, requirement.name.lower())
        bounds = sorted(map(str, requirement.specifier), reverse=True)
        specifications[name] = f"{name} {','.join(bounds)}".strip()
    return [specifications[name] for name in sorted(specifications)]


def write_recipe(pyproject: dict, sdist: Path | None = None) -> str:
    """Make the text of the recipe for the clone, or for an sdist on PyPI."""
    project = pyproject["project"]
    version = project["version"]
    run = conda_requirements(project["dependencies"])
    optional = [
        line for lines in project["optional-dependencies"].values() for line in lines
    ]
    needed = {line.split()[0] for line in run}
    constraints = [
        line for line in conda_requirements(optional) if line.split()[0] not in needed
    ]
    source = ["path: ../.."]
    if sdist is not None:
        digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
        address = (
            "https://pypi.org/packages/source/t/tosica/tosica-${{ version }}.tar.gz"
        )
        source = [f"url: {address}", f"sha256: {digest}"]

    def indent(lines: Iterable[str], by: int = 4) -> str:
        return "\n".join(" " * by + line for line in lines)

    scripts = [f"- {name} = {target}" for name, target in project["scripts"].items()]
    return TEXT.format(
        version=version,
        python_min=project["requires-python"].removeprefix(">="),
        source=indent(source, 2),
        entry_points=indent(scripts, 6),
        run=indent(f"- {line}" for line in run),
        constraints=indent(f"- {line}" for line in constraints),
        source_code=project["urls"]["Source"],
        documentation=project["urls"]["Documentation"],
        summary=project["description"].rstrip("."),
        licence=project["license"],
        licence_files=indent(f"- {name}" for name in project["license-files"]),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Write the recipe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sdist", type=Path, help="what was uploaded to PyPI")
    parser.add_argument("--out", type=Path, default=RECIPE, help="the file to write")
    options = parser.parse_args(argv)
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options.out.write_text(write_recipe(pyproject, options.sdist), encoding="utf-8")


if __name__ == "__main__":
    main()
