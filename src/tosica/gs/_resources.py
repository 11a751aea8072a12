"""The collections inside the wheel: `resources/<name>.json`, and the sets in `<name>.gmt.gz`.

A collection that follows from another one has no file of sets: `orthologs_of` in its JSON names the
other one, `min_genes` the least genes that a set keeps.
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tosica.gs._by_orthology import map_by_orthology
from tosica.gs._gene_table import orthologs
from tosica.gs._parse_gmt import parse_gmt

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


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
