"""Try references by the name of a tissue on the public CELLxGENE Census, and say what is unlike the tests' one.

``python scripts/try_census.py`` needs a network, the extra ``census`` and the group ``test``, and downloads some
megabytes. The census in ``TOSICA_CENSUS``, if that is set, is tried in the place of the public one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np

import tosica
from tosica.datasets._census_client import (
    ORGANISMS,
    SCHEMA,
    VARIABLE,
    mirror,
    open_census,
    resolve_version,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tosica.datasets._census_client import Census

ROOT = Path(__file__).resolve().parents[1]
# Cells of each type of the reference that is downloaded, and of them to annotate.
N_PER_TYPE = 20
N_QUERY = 5


def arrays_of(census: Census, organism: str) -> dict[str, Any]:
    """List the tables and matrices of a census that tosica reads, by name."""
    experiment = census.root["census_data"][organism]
    rna = experiment.ms["RNA"]
    return {
        "summary": census.root["census_info"]["summary"],
        "datasets": census.root["census_info"]["datasets"],
        "obs": experiment.obs,
        "var": rna.var,
        "X/raw": rna.X["raw"],
        "presence": rna["feature_dataset_presence_matrix"],
    }


def layout_of(census: Census, organism: str) -> dict[str, dict[str, str]]:
    """Describe a census: names and types of the columns of each table and matrix."""
    return {
        name: {field.name: str(field.type) for field in array.schema}
        for name, array in arrays_of(census, organism).items()
    }


def small_layout() -> dict[str, dict[str, str]]:
    """Describe the census that the tests make."""
    sys.path.insert(0, str(ROOT / "tests"))
    from _small_census import make_census

    with tempfile.TemporaryDirectory() as folder:
        path = make_census(Path(folder) / "soma", organisms=["homo_sapiens"])
        with variable(VARIABLE, str(path)), open_census("stable") as census:
            return layout_of(census, "homo_sapiens")


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for a while."""
    previous = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous


def differences(
    layout: dict[str, dict[str, str]], small: dict[str, dict[str, str]]
) -> list[str]:
    """Say in lines what the layout of a census has, lacks, or has of another type than that of the small one."""
    lines = []
    for table, columns in small.items():
        for name, kind in columns.items():
            actual = layout[table].get(name)
            if actual is None:
                lines.append(f"{table} has no {name} ({kind})")
            elif actual != kind:
                lines.append(f"{table}: {name} is {actual}, not {kind}")
        additional = [name for name in layout[table] if name not in columns]
        if additional:
            lines.append(f"{table} also has {', '.join(additional)}")
    return lines


def try_layout(options: argparse.Namespace) -> list[str]:
    """Compare schema, columns, types and numbers with those of the small census."""
    organism = ORGANISMS.get(options.organism, options.organism)
    small = small_layout()
    release = options.version
    if mirror() is None:
        release = resolve_version(release)
    with open_census(release) as census:
        experiment = census.experiment(options.organism)
        arrays = arrays_of(census, organism)
        lines = [
            f"release {census.version}, schema {census.schema}; tosica was written for {SCHEMA}",
            f"{arrays['obs'].count:,} cells, {arrays['var'].count:,} genes, {arrays['datasets'].count:,} data sets",
            *(
                f"{len(experiment.values(column)):,} values of {column}"
                for column in ("tissue_general", "tissue", "disease", "assay")
            ),
        ]
        return lines + (
            differences(layout_of(census, organism), small)
            or ["columns and types are those of the small census"]
        )


def try_count(options: argparse.Namespace) -> list[str]:
    """Count the cells of the tissue."""
    table = tosica.datasets.census(
        options.tissue, options.organism, version=options.version, dry_run=True
    )
    return [
        f"{len(table)} types of {table['n_cells'].sum():,} cells; {table['n_taken'].sum():,} would be taken, "
        f"{table['megabytes'].sum():.0f} MB of counts"
    ]


def try_download(options: argparse.Namespace) -> list[str]:
    """Download a few cells of each type, and write some of them as cells to annotate."""
    reference = tosica.datasets.census(
        options.tissue,
        options.organism,
        version=options.version,
        n_per_type=N_PER_TYPE,
    )
    rows = reference.obs.groupby("cell_type", observed=True).head(N_QUERY).index
    query = reference[rows].copy()
    query.uns.clear()
    query.write_h5ad(options.folder / "cells.h5ad")
    sizes = [path.stat().st_size for path in options.folder.rglob("census/**/*.h5ad")]
    return [
        f"{reference.n_obs:,} cells × {reference.n_vars:,} genes of {reference.obs['dataset_id'].nunique()} data "
        f"sets; {sum(sizes) / 1e6:.1f} MB in the cache"
    ]


def try_annotate(options: argparse.Namespace) -> list[str]:
    """Annotate the downloaded cells by ``tosica annotate --tissue``."""
    output = options.folder / "annotated.h5ad"
    command = [sys.executable, "-m", "tosica.cli", "annotate"]
    command += [str(options.folder / "cells.h5ad"), "--tissue", options.tissue]
    command += ["--organism", options.organism, "-o", str(output)]
    command += ["--census-version", options.version]
    subprocess.run(command, check=True)
    obs = ad.read_h5ad(output).obs
    is_right = obs["tosica_prediction"].astype(str) == obs["cell_type"].astype(str)
    return [
        f"{np.mean(is_right):.1%} of {len(obs):,} cells of the census got their own type"
    ]


STEPS = {
    "layout": try_layout,
    "count": try_count,
    "download": try_download,
    "annotate": try_annotate,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Take all steps, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tissue", default="lung")
    parser.add_argument("--organism", choices=ORGANISMS, default="human")
    parser.add_argument("--version", default="stable")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args(arguments)
    for package in ("tosica", "cellxgene-census", "tiledbsoma", "pyarrow", "anndata"):
        print(f"{package} {version(package)}")
    n_failed = 0
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        # An empty cache, so that everything is downloaded.
        with variable("TOSICA_CACHE", folder):
            for name in options.steps:
                begin = time.perf_counter()
                try:
                    lines = STEPS[name](options)
                # What fails is what the run is to find; the next step may work all the same.
                except Exception as error:
                    n_failed += 1
                    lines = [f"FAILED: {type(error).__name__}: {error}"]
                print(f"\n{name}, {time.perf_counter() - begin:.1f} s")
                print("\n".join(f"  {line}" for line in lines), flush=True)
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
