"""Explain why gene sets were left out of a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._settings import logger, warn_user
from tosica._text import (
    argument,
    format_thousands,
    in_python,
    listed,
    parameter,
    similar_names,
)
from tosica.gs._gene_list import GeneList, hint_for_mismatch
from tosica.gs._gene_table import ORGANISMS
from tosica.gs._match import are_mostly
from tosica.gs._spelling import split_composite
from tosica.pp._match_gene_sets import find_organism

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica._types import IntArray
    from tosica.gs._gene_sets import GeneSets
    from tosica.pp._match_gene_sets import MatchedGeneSets
    from tosica.pp._params import MaskParams

# Gene sets and genes that the log names; the tables have all.
_N_LOGGED = 20
# Unknown genes that a similar one is looked for.
_N_SIMILAR = 10
# One letter of six may differ, or one of four be missing: other genes differ in one of five, as CD79B from CD79A.
_LIKENESS = 0.82


def hint(genes: GeneList, sources: Sequence[MatchedGeneSets]) -> str:
    """Say why names of genes may not match, see :func:`tosica.gs._gene_list.hint_for_mismatch`."""
    gene_names = [name for source in sources for name in source.listed.gene_names]
    organism = find_organism(genes)[0]
    of_sets = GeneList(gene_names)
    if organism is not None and not are_mostly(of_sets, organism):
        for other in ORGANISMS:
            if are_mostly(of_sets, other):
                return (
                    f"adata holds {organism} genes, and the gene sets {other} genes: pass "
                    f"{parameter('organism', organism)} to map them by one-to-one orthology"
                )
    return hint_for_mismatch(
        genes.names,
        gene_names,
        query="adata",
        reference="the gene sets'",
        var=genes.var,
    )


def explain_no_gene_sets(
    genes: GeneList,
    sources: Sequence[MatchedGeneSets],
    gene_sets: GeneSets,
    n_listed: IntArray,
    params: MaskParams,
) -> str:
    """Explain in one sentence why no gene set is in the mask.

    Parameters
    ----------
    genes
        Genes of the data.
    sources
        Gene sets of each source.
    gene_sets
        All of them, on the genes of the data.
    n_listed
        Number of genes that each set lists, ``(n_sets,)``.
    params
        Parameters of the mask.
    """
    sizes = gene_sets.sizes
    # If some sets have enough genes in the data, names match and limits do not.
    advice = hint(genes, sources) if sizes.max() < params.min_genes else ""
    if not advice:
        limits = in_python("lower min_genes, raise max_genes, or ")
        advice = f"{limits}pass gene sets of such sizes, with the names of adata"
    example = next(
        source.listed.gene_names[0]
        for source in sources
        if len(source.listed.gene_names)
    )
    return (
        f"none of {format_thousands(len(gene_sets))} gene sets ({gene_sets.source}) lists at most "
        f"{params.max_genes} genes and has at least {params.min_genes} of them in adata (they list "
        f"{n_listed.min()} to {n_listed.max()} and have {sizes.min()} to {sizes.max()}; adata has "
        f"{genes.names[0]!r} and so on, they have {example!r}): "
        f"{advice}."
    )


def report_left_out(
    genes: GeneList,
    sources: Sequence[MatchedGeneSets],
    gene_sets: GeneSets,
    n_listed: IntArray,
    selected: IntArray,
    params: MaskParams,
) -> dict[str, pd.DataFrame]:
    """Log which of the user's own gene sets were left out and why, and which genes the data lack.

    Parameters
    ----------
    genes, sources, gene_sets, n_listed, params
        As in :func:`explain_no_gene_sets`.
    selected
        Positions of the sets that are in the mask.

    Returns
    -------
    dict
        ``left_out`` and ``unknown_genes`` of the mask; empty if all sets are of named collections.
    """
    is_named = [source.listed.is_named for source in sources]
    if all(is_named):
        return {}
    is_own = ~np.repeat(is_named, [len(source.listed) for source in sources])
    is_candidate = is_own.copy()
    is_candidate[selected] = False
    reasons = {
        str(gene_sets.names[i]): _reason(
            int(n_listed[i]), int(gene_sets.sizes[i]), params
        )
        for i in np.flatnonzero(is_candidate)
    }
    similar = _find_similar(genes, sources)
    if reasons:
        texts = [f"{name!r} ({reason})" for name, reason in reasons.items()]
        logger.info("build_mask: left out %s", listed(texts, _N_LOGGED, last=", "))
        if (gene_sets.sizes[is_own] < params.min_genes).all():
            own = [source for source in sources if not source.listed.is_named]
            why = hint(genes, own) or "look at their names"
            # Names of sets that are in the data as a whole are right.
            if (gene_sets.sizes[is_own] == n_listed[is_own]).all():
                why = in_python("lower min_genes, or ") + "pass gene sets of more genes"
            warn_user(
                f"none of your own gene sets is in the mask, not even {texts[0]}: {why}."
            )
    if similar:
        texts = [
            f"{gene!r} (did you mean {name!r}?)" if name else repr(gene)
            for gene, name in similar.items()
        ]
        logger.info("build_mask: not in adata: %s", listed(texts, _N_LOGGED, last=", "))
    return {
        "left_out": _table(reasons, "gene_set", "reason"),
        "unknown_genes": _table(similar, "gene", "similar"),
    }


def _reason(n_listed: int, n_in_data: int, params: MaskParams) -> str:
    """Say why a gene set was left out."""
    if n_listed > params.max_genes:
        return f"lists {n_listed} genes, more than {in_python('max_genes=')}{params.max_genes}"
    if n_in_data < params.min_genes:
        return (
            f"{n_in_data} of {n_listed} genes are in adata, fewer than "
            f"{in_python('min_genes=')}{params.min_genes}"
        )
    similar = in_python(" (max_jaccard)")
    return f"is too similar to others{similar}, or one too many ({argument('max_gene_sets')})"


def _find_similar(
    genes: GeneList, sources: Sequence[MatchedGeneSets]
) -> dict[str, str]:
    """Find the genes of the user's own sets that the data lack, and a similar name for the first."""
    unknown: dict[str, GeneList] = {}
    for source in sources:
        if source.listed.is_named:
            continue
        is_unknown = np.ones(len(source.listed.gene_names), dtype=bool)
        is_unknown[source.match.targets] = False
        unknown |= dict.fromkeys(
            source.listed.gene_names[is_unknown], source.match.names
        )
    similar = dict.fromkeys(unknown, "")
    composite: dict[str, str] = {}
    for name in genes.names if unknown else ():
        if split := split_composite(name):
            composite.setdefault(split[0].lower(), name)
    for gene in list(unknown)[:_N_SIMILAR]:
        if gene.lower() in composite:
            similar[gene] = composite[gene.lower()]
            continue
        # The first letter is seldom misspelled, and to compare all names takes long.
        alike = [n for n in unknown[gene].names if n[:1].lower() == gene[:1].lower()]
        similar[gene] = next(iter(similar_names(gene, alike, 1, _LIKENESS)), "")
    return similar


def _table(texts: dict[str, str], keys: str, values: str) -> pd.DataFrame:
    return pd.DataFrame({keys: list(texts), values: list(texts.values())}, dtype=object)
