"""Read gene sets in any form, match their genes to those of the data, and explain failures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from tosica._settings import logger, warn_user
from tosica._text import (
    describe_value,
    format_thousands,
    list_names,
    listed,
    similar_names,
)
from tosica.gs import join, read_gmt
from tosica.gs._collections import COLLECTIONS, find_collection, is_gmt_path
from tosica.gs._genes import GeneList, hint_for_mismatch
from tosica.gs._match import GeneMatch, Identifiers, match_genes

if TYPE_CHECKING:
    from numpy.typing import NDArray

Select: TypeAlias = Literal["largest", "coverage", "variable"]
_Parts: TypeAlias = list[str | os.PathLike[str]] | tuple[str | os.PathLike[str], ...]
GeneSetsLike: TypeAlias = (
    str | os.PathLike[str] | Mapping[str, Iterable[str]] | pd.DataFrame | _Parts
)

# With a smaller share of the data's genes in gene sets, the user is warned.
LOW_COVERAGE = 0.1
_COMMON_NAMES = {"Homo sapiens": "human", "Mus musculus": "mouse"}
# Unknown genes that a similar one is looked for.
_MOST_NEAREST = 10
_UNANNOTATED = re.compile(r"unannotated_\d+")
# Columns of decoupler's networks and resources that hold the gene, and the gene set.
_TARGET_COLUMNS = ("target", "genesymbol")
_SOURCE_COLUMNS = ("source", "geneset", "pathway", "cell_type")

# --------------------------------------------------------------------------- read


@dataclass(frozen=True)
class GeneSets:
    """Gene sets as a matrix of gene sets by their different genes.

    Attributes
    ----------
    names
        Names of the gene sets, ``(n_gene_sets,)``.
    genes
        Names of the different genes in them.
    contains
        How often each set lists each gene, ``(n_gene_sets, n_genes)`` int32.
    source
        Origin of the gene sets, for messages and ``adata.uns``.
    organism
        Organism of the genes, None if it is not known.
    release
        Release of a named collection.
    is_named
        Whether all gene sets are from named collections.
    weights
        For a table with weights, a row for each pair with one: ``set``, ``wanted`` (the gene, both
        as positions) and ``weight``.
    """

    names: list[str]
    genes: GeneList
    contains: csr_matrix
    source: str
    organism: str | None = None
    release: str = ""
    is_named: bool = False
    weights: pd.DataFrame | None = None


def read_gene_sets(gene_sets: GeneSetsLike) -> GeneSets:
    """Read gene sets from a name, a path, a dict, a table, or a list of names and paths."""
    if isinstance(gene_sets, pd.DataFrame):
        return _from_table(gene_sets)
    if isinstance(gene_sets, Mapping):
        return _from_dict(gene_sets, source="dict")
    parts = gene_sets if isinstance(gene_sets, list | tuple) else [gene_sets]
    if not parts or not all(isinstance(part, str | os.PathLike) for part in parts):
        raise TypeError(
            "gene_sets must be a collection's name, a path of a GMT file, a dict of lists, a table with 'source' and "
            f"'target' columns, a list of names and paths or None, not {describe_value(gene_sets)}."
        )
    # A name is that of a collection, also if there is such a file.
    is_named = [
        isinstance(part, str) and part.partition("@")[0] in COLLECTIONS
        for part in parts
    ]
    if isinstance(gene_sets, list | tuple):
        named = join(gene_sets)
        source = " + ".join(
            str(part) if this else Path(part).name
            for part, this in zip(parts, is_named, strict=True)
        )
    elif not is_named[0] and (
        not isinstance(gene_sets, str)
        or is_gmt_path(gene_sets)
        or os.path.isfile(gene_sets)
    ):
        named, source = read_gmt(gene_sets), Path(gene_sets).name
    else:
        collection = find_collection(str(gene_sets))
        named, source = collection.load(), collection.name
    if not all(is_named):
        return _from_dict(named, source)
    described = [find_collection(str(part)).describe() for part in parts]
    organisms = {_COMMON_NAMES[about["organism"]] for about in described}
    return _from_dict(
        named,
        source,
        organism=organisms.pop() if len(organisms) == 1 else None,
        release=" + ".join(about["release"] for about in described),
        is_named=True,
    )


def _from_dict(
    gene_sets: Mapping[str, Iterable[str]], source: str, **about: Any
) -> GeneSets:
    lists = []
    for name, genes in gene_sets.items():
        if isinstance(genes, str | bytes) or not isinstance(genes, Iterable):
            raise TypeError(
                f"the genes of gene set {name!r} must be a list of names, as ['CD3D', 'CD3E'], not {genes!r:.40}."
            )
        lists.append(list(genes))
    set_of = np.repeat(np.arange(len(lists)), [len(genes) for genes in lists])
    return _to_gene_sets(
        list(gene_sets), set_of, list(chain(*lists)), source=source, **about
    )


def _from_table(table: pd.DataFrame) -> GeneSets:
    source = next((column for column in _SOURCE_COLUMNS if column in table), None)
    target = next((column for column in _TARGET_COLUMNS if column in table), None)
    if source is None or target is None:
        raise ValueError(
            "the table of gene sets needs the columns 'source' (the gene set) and 'target' (the gene), but its "
            f"columns are {', '.join(map(str, table.columns)) or 'none'}."
        )
    if (source, target) != ("source", "target"):
        logger.info(
            "build_mask: took the gene sets from the table's column %r and the genes from %r",
            source,
            target,
        )
    pairs = pd.DataFrame({"source": table[source].array, "target": table[target].array})
    if "weight" in table:
        pairs["weight"] = pd.to_numeric(table["weight"], errors="coerce").to_numpy(
            np.float32, na_value=np.nan
        )
        are_text = pairs["weight"].isna() & table["weight"].notna().to_numpy()
        if (np.isinf(pairs["weight"]) | are_text).any():
            raise TypeError(
                "the column 'weight' of gene_sets holds values that are no finite numbers: drop it."
            )
    complete = pairs.dropna(subset=["source", "target"])
    if len(complete) < len(pairs):
        n_left_out, n_rows = (
            format_thousands(len(pairs) - len(complete)),
            format_thousands(len(pairs)),
        )
        logger.warning(
            f"build_mask: left out {n_left_out} of {n_rows} rows of the table, whose source or target is missing"
        )
    complete = complete.drop_duplicates(["source", "target"])
    set_of, names = pd.factorize(complete["source"].to_numpy(dtype=object))
    weight = complete["weight"].to_numpy() if "weight" in table else None
    return _to_gene_sets(
        list(names), set_of, list(complete["target"]), weight, source="table"
    )


def _to_gene_sets(
    names: list[str],
    set_of: NDArray[np.intp],
    genes: list[str],
    weight: NDArray[np.float32] | None = None,
    **about: Any,
) -> GeneSets:
    """Check pairs of set and gene, and turn them into a matrix."""
    if not genes:
        raise ValueError(
            f"no gene set in gene_sets ({about['source']}) holds a gene: pass at least one that does."
        )
    reserved = next(
        (
            name
            for name in names
            if isinstance(name, str) and _UNANNOTATED.fullmatch(name)
        ),
        None,
    )
    if reserved is not None:
        raise ValueError(
            f"gene set {reserved!r} must be renamed: fully connected tokens have such names."
        )
    # The few different types are checked; single names only for the message.
    for strings in (names, genes):
        if not all(issubclass(kind, str) for kind in set(map(type, strings))):
            wrong = next(name for name in strings if not isinstance(name, str))
            raise TypeError(
                f"gene_sets ({about['source']}) holds {wrong!r}, but names of sets and genes are strings."
            )
    codes, unique = pd.factorize(np.array(genes, dtype=object))
    # Duplicated genes of a set are summed.
    contains = csr_matrix(
        (np.ones(len(codes), dtype=np.int32), (set_of, codes)),
        shape=(len(names), len(unique)),
    )
    pairs = {"set": set_of, "wanted": codes, "weight": weight}
    weights = None if weight is None else pd.DataFrame(pairs).dropna()
    return GeneSets(names, GeneList(unique), contains, weights=weights, **about)


# --------------------------------------------------------------------------- match


@dataclass(frozen=True)
class MaskParams:
    """Parameters of one mask, see :func:`tosica.pp.build_mask`."""

    min_genes: int
    max_genes: int
    max_gene_sets: int | None
    n_unannotated: int
    mask_ratio: float
    seed: int
    select: Select
    max_jaccard: float | None
    organism: str
    identifiers: Identifiers
    layer: str | None
    # What to call the gene sets instead of their own source.
    source: str = ""

    def stored(self, max_jaccard: float) -> dict[str, Any]:
        """Return them as files hold them, with the ``max_jaccard`` that was used.

        Files cannot hold None, so 0 stands for no limit of ``max_gene_sets``.
        """
        kept = {
            "mask_ratio": float(self.mask_ratio),
            "max_jaccard": float(max_jaccard),
            "select": self.select,
        }
        names = ("min_genes", "max_genes", "max_gene_sets", "n_unannotated", "seed")
        return (
            kept
            | {"identifiers": self.identifiers}
            | {name: int(getattr(self, name) or 0) for name in names}
        )


def match_gene_sets(
    genes: GeneList, gene_sets: GeneSets, params: MaskParams, *, log_organism: bool
) -> tuple[csr_matrix, GeneMatch]:
    """Find the genes of the gene sets among the genes of the data.

    Returns
    -------
    members : scipy.sparse.csr_matrix
        Which gene is in which set, ``(n_gene_sets, n_vars)`` bool.
    match : tosica.gs._match.GeneMatch
        How the genes were matched.
    """
    organism, identifiers = params.organism, params.identifiers
    match = match_genes(
        genes,
        gene_sets.genes,
        # Named collections have symbols; gene sets of a user may have names of any kind.
        identifiers="map"
        if identifiers == "auto" and gene_sets.is_named
        else identifiers,
        organism=organism,
        wanted_organism=gene_sets.organism,
    )
    _check_organism(gene_sets, match, organism)
    summary = match.summary()
    is_guessed = organism == "auto" and log_organism
    if identifiers != "exact" and match.organism and (is_guessed or match.by_orthology):
        overlap = " (by overlap)" if organism == "auto" else ""
        summary = f"adata holds {match.organism} genes{overlap}{'; ' if summary else ''}{summary}"
    if summary:
        logger.info("build_mask: %s", summary)
    is_gene = csr_matrix(
        (np.ones(len(match.rows), dtype=np.int32), (match.wanted, match.rows)),
        shape=(len(gene_sets.genes), len(genes)),
    )
    members = (gene_sets.contains @ is_gene).astype(bool)
    members.sort_indices()
    return members, match


def weights_table(
    genes: GeneList, gene_sets: GeneSets, match: GeneMatch, kept: NDArray[np.intp]
) -> pd.DataFrame:
    """Name the genes and sets of weights in kept sets, in a form that h5ad and zarr can store."""
    assert gene_sets.weights is not None
    found = pd.DataFrame({"wanted": match.wanted, "row": match.rows})
    pairs = gene_sets.weights.merge(found, on="wanted").drop_duplicates(["set", "row"])
    pairs = pairs[pairs["set"].isin(kept)].sort_values(["set", "row"])
    names = pd.Index([gene_sets.names[i] for i in kept])
    table = pd.DataFrame(index=np.arange(len(pairs)).astype(str).astype(object))
    table["gene"] = genes.names.to_numpy(dtype=object)[pairs["row"]]
    table["gene_set"] = pd.Categorical.from_codes(
        np.searchsorted(kept, pairs["set"]), names
    )
    table["weight"] = pairs["weight"].to_numpy(dtype=np.float32)
    return table


# --------------------------------------------------------------------------- explain


def explain_no_gene_sets(
    genes: GeneList, gene_sets: GeneSets, sizes: NDArray[np.intp], params: MaskParams
) -> str:
    """Explain in one sentence why no gene set was kept."""
    # If some sets have enough genes in the data, names match and limits do not.
    advice = hint(genes, gene_sets) if sizes.max() < params.min_genes else ""
    lengths = np.diff(gene_sets.contains.indptr)
    return (
        f"none of {format_thousands(len(gene_sets.names))} gene sets ({gene_sets.source}) lists at most "
        f"{params.max_genes} genes and has at least {params.min_genes} of them in adata (they list "
        f"{lengths.min()} to {lengths.max()} and have {sizes.min()} to {sizes.max()}; adata has "
        f"{genes.names[0]!r} and so on, they have {gene_sets.genes.names[0]!r}): "
        f"{advice or 'lower min_genes, raise max_genes, or pass gene sets with the names of adata'}."
    )


def say_left_out(
    genes: GeneList,
    gene_sets: GeneSets,
    match: GeneMatch,
    sizes: NDArray[np.intp],
    is_kept: NDArray[np.bool_],
    params: MaskParams,
) -> dict[str, pd.DataFrame]:
    """Log which gene sets were left out and why, and which of their genes the data lack; tables of both."""
    reasons = {}
    for i in np.flatnonzero(~is_kept):
        n_listed, n_found = int(gene_sets.contains[i].nnz), int(sizes[i])
        too_many = f"lists {n_listed} genes, more than max_genes={params.max_genes}"
        too_few = f"{n_found} of {n_listed} genes are in adata, fewer than min_genes={params.min_genes}"
        similar = (
            "is too similar to others (max_jaccard), or one too many (max_gene_sets)"
        )
        is_large = n_listed > params.max_genes
        reasons[gene_sets.names[i]] = (
            too_many if is_large else too_few if n_found < params.min_genes else similar
        )
    unknown = np.setdiff1d(np.arange(len(gene_sets.genes)), match.wanted)
    nearest: dict[str, str] = {}
    for name in gene_sets.genes.names[unknown]:
        # The first letter is seldom misspelt, and to compare all names takes long.
        alike = [
            other
            for other in match.names.names
            if other[:1].lower() == name[:1].lower()
        ]
        nearest[name] = (
            next(iter(similar_names(name, alike, 1)), "")
            if len(nearest) < _MOST_NEAREST
            else ""
        )
    if reasons:
        texts = [f"{name!r} ({reason})" for name, reason in reasons.items()]
        logger.info("build_mask: left out %s", listed(texts, 10, last=", "))
    if nearest:
        texts = [
            f"{name!r}{f' (did you mean {other!r}?)' if other else ''}"
            for name, other in nearest.items()
        ]
        logger.info("build_mask: not in adata: %s", listed(texts, 10, last=", "))
    return {
        "left_out": pd.DataFrame(
            {"gene_set": list(reasons), "reason": list(reasons.values())}, dtype=object
        ),
        "unknown_genes": pd.DataFrame(
            {"gene": list(nearest), "similar": list(nearest.values())}, dtype=object
        ),
    }


def hint(genes: GeneList, gene_sets: GeneSets) -> str:
    """Say why names of genes may not match, see :func:`tosica.gs._genes.hint_for_mismatch`."""
    return hint_for_mismatch(
        genes.names,
        gene_sets.genes.names,
        query="adata",
        reference="the gene sets'",
        var=genes.var,
    )


def _check_organism(gene_sets: GeneSets, match: GeneMatch, organism: str) -> None:
    """Raise an error for gene sets of another organism, unless enough genes match all the same."""
    given, wanted = match.organism, match.wanted_organism
    holds = (
        f"adata holds {match.names.organism or given} genes ({match.names.names[0]!r})"
    )
    if organism != "auto":
        found = match.names.organism
        if (
            wanted is not None
            and match.column is None
            and found not in (None, organism)
        ):
            advice = (
                _restore_case(match) if organism == "mouse" else ""
            ) or f"pass organism={found!r} or leave it out"
            raise ValueError(f"{holds}, but organism={organism!r} was given: {advice}.")
        return
    matches_few = match.n_rows < LOW_COVERAGE * min(
        len(gene_sets.genes), len(match.names)
    )
    if given and wanted and given != wanted and matches_few:
        counterpart = gene_sets.source.replace(wanted, given, 1)
        offer = f"gene_sets={counterpart!r}, or " if counterpart in COLLECTIONS else ""
        mapping = f"pass {offer}organism={given!r} to map the gene sets by one-to-one orthology"
        raise ValueError(
            f"{holds}, but the gene sets ({gene_sets.source}) hold {wanted} genes ({gene_sets.genes.names[0]!r}): "
            f"{(_restore_case(match) if wanted == 'mouse' else '') or mapping}."
        )
    # Gene sets of a user may be mouse symbols in upper case too.
    is_human = (gene_sets.organism or wanted) == "human"
    may_warn = is_human and (gene_sets.is_named or not gene_sets.genes.upper_case_mouse)
    if may_warn and (advice := _restore_case(match)):
        warn_user(
            f"the gene sets ({gene_sets.source}) are human, but {advice}, and use mouse gene sets, such as "
            "'mouse_gobp', or pass organism='human' if the genes are human."
        )


def _restore_case(match: GeneMatch) -> str:
    """Say how to restore mouse symbols that were written in upper case; empty if they were not."""
    found = match.names.upper_case_mouse
    if not found:
        return ""
    names = (
        "adata.var_names" if match.column is None else f"adata.var[{match.column!r}]"
    )
    return (
        "adata's genes look like mouse symbols written in upper case "
        f"({list_names(found[:: len(found) // 3 + 1])}): restore them by {names} = [new or old for "
        f"old, new in tosica.gs.map_genes({names}, organism='mouse', ignore_case=True).items()]"
    )
