"""Gene set collections inside the package."""

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


class Bundled:
    """The collections in the folder ``resources``: ``<name>.json``, and ``<name>.gmt.gz``."""

    @property
    def names(self) -> tuple[str, ...]:
        return _names()

    def versions(self, name: str) -> tuple[str, ...]:
        return (self.default_version(name),)

    def default_version(self, name: str) -> str:
        return str(_read_metadata(name)["release"]).removeprefix("GO ")

    def describe(self, name: str, version: str) -> dict[str, Any]:
        return {"version": version, **_read_metadata(name)}

    def load(self, name: str, version: str) -> dict[str, list[str]]:
        return {gene_set: list(genes) for gene_set, genes in _read_collection(name).items()}


def _folder() -> Traversable:
    return files("tosica.gs").joinpath("resources")


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    return tuple(
        sorted(
            entry.name.removesuffix(".json")
            for entry in _folder().iterdir()
            if entry.name.endswith(".json")
        )
    )


def _read_metadata(name: str) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(_folder().joinpath(f"{name}.json").read_bytes())
    return metadata


@lru_cache(maxsize=4)
def _read_collection(name: str) -> dict[str, tuple[str, ...]]:
    """Gene sets of a collection. The dict is cached, so callers must not change it."""
    metadata = _read_metadata(name)
    if "orthologs_of" in metadata:
        return _map_by_orthology(
            _read_collection(metadata["orthologs_of"]),
            orthologs("human", "mouse"),
            min_genes=metadata["min_genes"],
        )
    resource = _folder().joinpath(f"{name}.gmt.gz")
    gene_sets = parse_gmt(gzip.decompress(resource.read_bytes()), resource.name)
    return {gene_set: tuple(genes) for gene_set, genes in gene_sets.items()}


def _map_by_orthology(
    gene_sets: Mapping[str, tuple[str, ...]], ortholog_of: Mapping[str, str], *, min_genes: int
) -> dict[str, tuple[str, ...]]:
    """Replace each gene by its one-to-one ortholog, and sort the genes of each set.

    Genes without an ortholog are left out, and so are sets with fewer than ``min_genes`` genes
    after that. If several sets end up with the same genes, the one that had the fewest genes before
    is kept, since it is the most specific; the first one in case of ties.
    """
    mapped = {
        name: tuple(sorted(ortholog_of[gene] for gene in genes if gene in ortholog_of))
        for name, genes in gene_sets.items()
    }
    large_enough = {name: genes for name, genes in mapped.items() if len(genes) >= min_genes}
    most_specific: dict[tuple[str, ...], str] = {}
    for name in sorted(large_enough, key=lambda name: len(gene_sets[name])):
        most_specific.setdefault(large_enough[name], name)
    kept = set(most_specific.values())
    return {name: genes for name, genes in large_enough.items() if name in kept}
