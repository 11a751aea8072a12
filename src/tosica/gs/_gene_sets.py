"""Gene sets as one value: names of sets, names of genes, and which gene is in which set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, vstack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import scipy.sparse as sp

    from tosica._types import Float32Array, IntArray, ObjectArray


@dataclass(frozen=True, eq=False)
class GeneSets:
    """Named sets of genes.

    Attributes
    ----------
    names
        Names of the gene sets, ``(n_sets,)``.
    gene_names
        Names of the genes, ``(n_genes,)``.
    members
        Which gene is in which set, ``(n_sets, n_genes)`` bool, with sorted indices.
    source
        Name of the collection or file, "dict" or "table".
    organism
        Organism of the genes, None if it is not known.
    release
        Release of a named collection.
    is_named
        Whether the sets are those of a named collection; others are the user's own.
    weights
        For a network, a row for each pair with a weight: ``gene_set`` and ``gene``, both as
        positions, and ``weight``.
    """

    names: ObjectArray
    gene_names: pd.Index
    members: csr_matrix
    source: str = ""
    organism: str | None = None
    release: str = ""
    is_named: bool = False
    weights: pd.DataFrame | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> IntArray:
        """Number of genes of each set, ``(n_sets,)``."""
        return np.diff(self.members.indptr).astype(np.intp)

    @classmethod
    def from_dict(
        cls, gene_sets: Mapping[str, Iterable[str]], **attributes: Any
    ) -> GeneSets:
        """Make gene sets of a dict of name to genes."""
        lists = [as_gene_list(name, genes) for name, genes in gene_sets.items()]
        sets = np.repeat(np.arange(len(lists)), [len(genes) for genes in lists])
        return cls.from_pairs(list(gene_sets), sets, list(chain(*lists)), **attributes)

    @classmethod
    def from_pairs(
        cls,
        names: Sequence[str],
        sets: IntArray,
        genes: Sequence[str],
        weights: Float32Array | None = None,
        **attributes: Any,
    ) -> GeneSets:
        """Make gene sets of pairs of set and gene.

        Parameters
        ----------
        names
            Names of the sets, ``(n_sets,)``.
        sets, genes
            Position of the set, and name of the gene of each pair, ``(n_pairs,)``. Pairs may repeat.
        weights
            Weight of each pair, ``(n_pairs,)``; NaN for none.
        **attributes
            Further attributes of the class.

        Raises
        ------
        TypeError
            If a name is not a string.
        """
        source = attributes.get("source", "")
        for strings in (names, genes):
            # The few different types are checked; single names only for the message.
            if all(issubclass(kind, str) for kind in set(map(type, strings))):
                continue
            wrong = next(name for name in strings if not isinstance(name, str))
            raise TypeError(
                f"gene_sets ({source}) holds {wrong!r}, but names of sets and genes are strings."
            )
        positions, unique = pd.factorize(np.array(genes, dtype=object))
        members = csr_matrix(
            (np.ones(len(positions), dtype=np.int32), (sets, positions)),
            shape=(len(names), len(unique)),
        )
        table = None
        if weights is not None:
            columns = {"gene_set": sets, "gene": positions, "weight": weights}
            table = pd.DataFrame(columns).dropna()
        return cls(
            np.array(names, dtype=object),
            pd.Index(unique, dtype=object),
            _as_members(members),
            weights=table,
            **attributes,
        )

    @classmethod
    def from_mask(
        cls, names: Iterable[str], gene_names: pd.Index, mask: sp.spmatrix
    ) -> GeneSets:
        """Make gene sets of a mask, ``(n_genes, n_sets)``."""
        members = csr_matrix(mask.T)
        return cls(
            np.array(list(names), dtype=object), gene_names, _as_members(members)
        )

    def to_dict(self) -> dict[str, list[str]]:
        """Return gene set name to list of genes."""
        return {
            str(name): [str(gene) for gene in self.gene_names[self.genes_of(position)]]
            for position, name in enumerate(self.names)
        }

    def genes_of(self, position: int) -> IntArray:
        """Positions of the genes of one set, ascending."""
        begin, end = self.members.indptr[position : position + 2]
        return self.members.indices[begin:end]

    def subset(self, positions: IntArray) -> GeneSets:
        """Take some of the sets, in the order of their positions."""
        weights = self.weights
        if weights is not None:
            new_position = np.full(len(self), -1)
            new_position[positions] = np.arange(len(positions))
            weights = weights.assign(gene_set=new_position[weights["gene_set"]])
            weights = weights[weights["gene_set"] >= 0]
        return replace(
            self,
            names=self.names[positions],
            members=self.members[positions],
            weights=weights,
        )

    def on_genes(
        self,
        gene_names: pd.Index,
        genes: IntArray,
        matches: IntArray,
    ) -> GeneSets:
        """Replace the genes by others that they match.

        Parameters
        ----------
        gene_names
            Names of the new genes.
        genes, matches
            Positions of the gene and of the new gene of each pair, ``(n_pairs,)``. Genes without
            a match are left out of the sets.
        """
        is_match = csr_matrix(
            (np.ones(len(genes), dtype=np.int32), (genes, matches)),
            shape=(len(self.gene_names), len(gene_names)),
        )
        weights = self.weights
        if weights is not None:
            pairs = pd.DataFrame({"gene": genes, "match": matches})
            weights = weights.merge(pairs, on="gene")
            weights = weights.drop(columns="gene").rename(columns={"match": "gene"})
            weights = weights.drop_duplicates(["gene_set", "gene"])
        members = _as_members(self.members.astype(np.int32) @ is_match)
        return replace(self, gene_names=gene_names, members=members, weights=weights)


def _as_members(matrix: csr_matrix) -> csr_matrix:
    members = matrix.astype(bool)
    members.sort_indices()
    return members


def concatenate(by_source: Sequence[GeneSets]) -> GeneSets:
    """Join gene sets on the same genes.

    Weights are kept for a single source only: tables of a network are not joined with others.
    """
    if len(by_source) == 1:
        return by_source[0]
    organisms = {sets.organism for sets in by_source} - {None}
    return GeneSets(
        np.concatenate([sets.names for sets in by_source]),
        by_source[0].gene_names,
        vstack([sets.members for sets in by_source], format="csr"),
        source=" + ".join(sets.source for sets in by_source),
        organism=organisms.pop() if len(organisms) == 1 else None,
        release=" + ".join(sets.release for sets in by_source if sets.release),
        is_named=all(sets.is_named for sets in by_source),
    )


def as_gene_list(name: str, genes: Iterable[str]) -> list[str]:
    """List the genes of a set.

    Raises
    ------
    TypeError
        If they are one string, or no iterable.
    """
    if isinstance(genes, str | bytes) or not isinstance(genes, Iterable):
        raise TypeError(
            f"the genes of gene set {name!r} must be a list of names, as ['CD3D', 'CD3E'], not {genes!r:.40}."
        )
    return list(genes)
