"""Gene set collections that come with the package."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tosica.gs._gene_table import orthologs
from tosica.gs._read_gmt import parse_gmt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable


def map_by_orthology(
    gene_sets: Mapping[str, tuple[str, ...]], ortholog_of: Mapping[str, str], *, min_genes: int
) -> dict[str, tuple[str, ...]]:
    """Replace each gene by its one-to-one ortholog and sort them; genes without one are left out.

    Sets with fewer than ``min_genes`` genes left are dropped. Of sets that have become the same,
    the one with the fewest genes before stays, as the most specific one, then the first one.
    """
    mapped = {
        name: tuple(sorted(ortholog_of[gene] for gene in genes if gene in ortholog_of))
        for name, genes in gene_sets.items()
    }
    fitting = {name: genes for name, genes in mapped.items() if len(genes) >= min_genes}
    best: dict[tuple[str, ...], str] = {}
    for name in sorted(fitting, key=lambda name: len(gene_sets[name])):
        best.setdefault(fitting[name], name)
    kept = set(best.values())
    return {name: genes for name, genes in fitting.items() if name in kept}


def _folder() -> Traversable:
    return files("tosica.gs").joinpath("resources")


@lru_cache(maxsize=1)
def collection_names() -> tuple[str, ...]:
    """Names of the collections, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(".json")
            for entry in _folder().iterdir()
            if entry.name.endswith(".json")
        )
    )


def read_metadata(name: str) -> dict[str, Any]:
    """Where a collection comes from, as its JSON file has it."""
    metadata: dict[str, Any] = json.loads(_folder().joinpath(f"{name}.json").read_bytes())
    return metadata


@lru_cache(maxsize=4)
def read_collection(name: str) -> dict[str, tuple[str, ...]]:
    """The gene sets of a collection; shared by all callers, so nobody may change it."""
    metadata = read_metadata(name)
    if "orthologs_of" in metadata:
        return map_by_orthology(
            read_collection(metadata["orthologs_of"]),
            orthologs("human", "mouse"),
            min_genes=metadata["min_genes"],
        )
    resource = _folder().joinpath(f"{name}.gmt.gz")
    gene_sets = parse_gmt(gzip.decompress(resource.read_bytes()), resource.name)
    return {gene_set: tuple(genes) for gene_set, genes in gene_sets.items()}
