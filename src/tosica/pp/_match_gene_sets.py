"""Find the genes of gene sets in the data, and explain why they are not found."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from tosica._logging import format_thousands, logger
from tosica.data import user_stacklevel
from tosica.gs._collections import collection_names
from tosica.gs._gene_names import hint_for_mismatch
from tosica.gs._match_genes import GeneMatch, Identifiers, match_gene_lists

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tosica.gs._gene_list import GeneList
    from tosica.pp._read_gene_sets import GeneSets

# With a smaller share of the data's genes in gene sets, the user is warned.
LOW_COVERAGE = 0.1


def match_gene_sets(
    genes: GeneList,
    gene_sets: GeneSets,
    *,
    organism: str,
    identifiers: Identifiers,
    log_organism: bool = True,
) -> tuple[csr_matrix, pd.DataFrame | None, GeneMatch]:
    """Find the genes of the gene sets among the genes of the data.

    Returns
    -------
    members : scipy.sparse.csr_matrix
        Which gene is in which set, ``(n_gene_sets, n_vars)`` bool.
    weights : pandas.DataFrame or None
        For gene sets with weights, a row for each pair with one: ``set``, ``row`` (the gene, both
        as positions) and ``weight``.
    match : tosica.gs._match_genes.GeneMatch
        How the genes were matched.
    """
    match = match_gene_lists(
        genes,
        gene_sets.genes,
        # Named collections have symbols; gene sets of a user may have names of any kind.
        identifiers="map" if identifiers == "auto" and gene_sets.is_named else identifiers,
        organism=organism,
        wanted_organism=gene_sets.organism,
    )
    _check_organism(gene_sets, match, organism)
    summary = match.summary()
    is_guessed = organism == "auto" and log_organism
    if identifiers != "exact" and match.organism and (is_guessed or match.by_orthology):
        logger.info(
            "build_mask: adata holds %s genes%s%s",
            match.organism,
            " (by overlap)" if organism == "auto" else "",
            f"; {summary}" if summary else "",
        )
    elif summary:
        logger.info("build_mask: %s", summary)
    is_gene = csr_matrix(
        (np.ones(len(match.rows), dtype=np.int32), (match.wanted, match.rows)),
        shape=(len(gene_sets.genes), len(genes)),
    )
    members = (gene_sets.contains @ is_gene).astype(bool)
    members.sort_indices()
    if gene_sets.weights is None:
        return members, None, match
    found = pd.DataFrame({"wanted": match.wanted, "row": match.rows})
    pairs = gene_sets.weights.merge(found, on="wanted").drop_duplicates(["set", "row"])
    return members, pairs, match


def weights_table(
    weights: pd.DataFrame, kept: NDArray[np.intp], names: list[str], genes: GeneList
) -> pd.DataFrame:
    """Table of the weights in the kept sets, with names, in a form that h5ad and zarr can store."""
    column_of = pd.Series(np.arange(len(kept)), index=kept)
    weights = weights[weights["set"].isin(column_of.index)]
    column, row = column_of[weights["set"]].to_numpy(), weights["row"].to_numpy()
    order = np.lexsort((row, column))
    return pd.DataFrame(
        {
            "gene": genes.names.to_numpy(dtype=object)[row[order]],
            "gene_set": pd.Categorical.from_codes(column[order], pd.Index(names)),
            "weight": weights["weight"].to_numpy(dtype=np.float32)[order],
        },
        index=np.arange(len(weights)).astype(str).astype(object),
    )


def explain_no_gene_sets(
    genes: GeneList,
    gene_sets: GeneSets,
    sizes: NDArray[np.intp],
    min_genes: int,
    max_genes: int,
) -> str:
    """Explain in one sentence why no gene set was kept."""
    n_sets = format_thousands(len(gene_sets.names))
    if sizes.max() == 0:
        found = (
            f"no gene of {n_sets} gene sets ({gene_sets.source}) is among adata.var_names "
            f"({genes.names[0]!r} in adata, {gene_sets.genes.names[0]!r} in the gene sets)"
        )
        fallback = "pass gene sets with the names that adata uses"
        return f"{found}: {hint(genes, gene_sets) or fallback}."
    found = (
        f"none of {n_sets} gene sets ({gene_sets.source}) lists at most {max_genes} genes and has "
        f"at least {min_genes} of them in adata (they list {gene_sets.lengths.min()} to "
        f"{gene_sets.lengths.max()} and have {sizes.min()} to {sizes.max()})"
    )
    if sizes.max() >= min_genes:
        # Some sets have enough genes in the data, so the names match and the limits do not.
        return f"{found}: lower min_genes or raise max_genes."
    return f"{found}: {hint(genes, gene_sets) or 'lower min_genes or pass other gene sets'}."


def hint(genes: GeneList, gene_sets: GeneSets) -> str:
    """Why names of genes may not match, see :func:`tosica.gs._gene_names.hint_for_mismatch`."""
    return hint_for_mismatch(
        genes.names,
        gene_sets.genes.names,
        query="adata",
        reference="the gene sets'",
        var=genes.var,
    )


def _check_organism(gene_sets: GeneSets, match: GeneMatch, organism: str) -> None:
    """Raise an error for gene sets of another organism, unless enough genes match all the same."""
    if match.organism is not None and match.wanted_organism is not None:
        if organism != "auto":
            _check_requested_organism(match, organism)
        elif match.organism != match.wanted_organism:
            _check_overlap(gene_sets, match, match.organism, match.wanted_organism)
    if organism == "auto" and (gene_sets.organism or match.wanted_organism) == "human":
        _warn_of_upper_case(gene_sets, match)


def _check_requested_organism(match: GeneMatch, organism: str) -> None:
    found = match.names.organism
    if match.column is None and found not in (None, organism):
        _refuse_upper_case(match, organism)
        raise ValueError(
            f"organism={organism!r} was given, but adata's genes are {found} genes "
            f"({match.names.names[0]!r}): pass organism={found!r} or leave it out."
        )


def _check_overlap(
    gene_sets: GeneSets, match: GeneMatch, organism: str, wanted_organism: str
) -> None:
    if match.n_rows >= LOW_COVERAGE * min(len(gene_sets.genes), len(match.names)):
        return
    _refuse_upper_case(match, wanted_organism)
    counterpart = gene_sets.source.replace(wanted_organism, organism, 1)
    is_offered = gene_sets.is_named and counterpart in collection_names()
    advice = f"pass gene_sets={counterpart!r}, or " if is_offered else "pass "
    raise ValueError(
        f"adata holds {organism} genes ({match.names.names[0]!r}), but the gene sets "
        f"({gene_sets.source}) hold {wanted_organism} genes ({gene_sets.genes.names[0]!r}): "
        f"{advice}organism={organism!r} to map the gene sets by one-to-one orthology."
    )


def _warn_of_upper_case(gene_sets: GeneSets, match: GeneMatch) -> None:
    """Warn if the genes are probably mouse genes although the gene sets are human."""
    found = match.names.upper_case_mouse
    # Gene sets of a user may be mouse symbols in upper case too.
    if found is None or (not gene_sets.is_named and gene_sets.genes.upper_case_mouse):
        return
    warnings.warn(
        "adata's genes look like mouse symbols written in upper case, but the gene sets "
        f"({gene_sets.source}) are human: {format_thousands(len(found.mouse_only))} names are only "
        f"mouse symbols ({found.examples}) and {format_thousands(found.n_human_only)} only human "
        f"symbols; restore the mouse symbols with {_restoring(match.column)} and use mouse "
        "gene sets, such as 'mouse_gobp', or pass organism='human' if the genes are human.",
        UserWarning,
        stacklevel=user_stacklevel(),
    )


def _refuse_upper_case(match: GeneMatch, organism: str) -> None:
    """Raise an error if mouse genes are expected, and the genes are mouse genes in upper case."""
    found = match.names.upper_case_mouse if organism == "mouse" else None
    if found is not None:
        raise ValueError(
            f"adata's genes look like mouse symbols written in upper case ({found.examples}), "
            "which match no mouse gene: restore the mouse symbols with "
            f"{_restoring(match.column)}."
        )


def _restoring(column: str | None) -> str:
    """Code that restores mouse symbols that were written in upper case, and keeps other names."""
    names = "adata.var_names" if column is None else f"adata.var[{column!r}]"
    return (
        f"{names} = [new or old for old, new in tosica.gs.map_genes({names}, organism='mouse', "
        "ignore_case=True).items()]"
    )
