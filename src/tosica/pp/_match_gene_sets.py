"""Gene sets on the genes of the data, and why they do not fit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from tosica._logging import format_thousands, logger
from tosica.gs._collections import known_names
from tosica.gs._gene_names import hint_for_mismatch
from tosica.gs._gene_table import Capitals, infer_organism, mouse_in_capitals
from tosica.gs._match_genes import GeneMatch, Identifiers, match_genes

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.pp._read_gene_sets import GeneSets

# Under this share of the data's genes in a kept set, a user should hear of it.
LOW_COVERAGE = 0.1


def match_gene_sets(
    adata: AnnData, given: GeneSets, *, organism: str, identifiers: Identifiers
) -> tuple[csr_matrix, pd.DataFrame | None, GeneMatch]:
    """Find the sets' genes among the data's.

    Returns
    -------
    Which gene is in which set, (sets, n_vars) bool, each gene once a set; a table of the pairs that
    have a weight, or None; and how they were found.
    """
    match = match_genes(
        adata.var_names,
        given.genes,
        var=adata.var,
        # A collection's names are known to be symbols; what a user brings may be anything.
        identifiers="map" if identifiers == "auto" and given.is_named else identifiers,
        organism=organism,
        wanted_organism=given.organism,
    )
    _check_organism(adata, given, match, organism, n_wanted=len(given.genes))
    if organism == "auto" and (given.organism or match.wanted_organism) == "human":
        _warn_of_capitals(adata, given, match.column)
    if identifiers != "exact" and match.organism and (organism == "auto" or match.by_orthology):
        summary = match.summary()
        logger.info(
            "build_mask: adata holds %s genes%s%s",
            match.organism,
            " (by overlap)" if organism == "auto" else "",
            f"; {summary}" if summary else "",
        )
    elif match.column is not None:
        logger.info("build_mask: %s", match.summary())
    is_gene = csr_matrix(
        (np.ones(len(match.rows), dtype=np.int32), (match.wanted, match.rows)),
        shape=(len(given.genes), adata.n_vars),
    )
    members = (given.contains @ is_gene).astype(bool)
    members.sort_indices()
    if given.weights is None:
        return members, None, match
    found = pd.DataFrame({"wanted": match.wanted, "row": match.rows})
    pairs = given.weights.merge(found, on="wanted").drop_duplicates(["set", "row"])
    return members, pairs, match


def weights_table(
    pairs: pd.DataFrame, kept: NDArray[np.intp], names: list[str], var_names: pd.Index
) -> pd.DataFrame:
    """The weights of the sets that were kept, by name, as h5ad and zarr can store them."""
    place = pd.Series(np.arange(len(kept)), index=kept)
    pairs = pairs[pairs["set"].isin(place.index)]
    column = place[pairs["set"]].to_numpy()
    order = np.lexsort((pairs["row"].to_numpy(), column))
    genes = var_names.astype(str).to_numpy(dtype=object)
    return pd.DataFrame(
        {
            "gene": genes[pairs["row"].to_numpy()[order]],
            "gene_set": pd.Categorical.from_codes(column[order], pd.Index(names)),
            "weight": pairs["weight"].to_numpy(dtype=np.float32)[order],
        },
        index=np.arange(len(pairs)).astype(str).astype(object),
    )


def nothing_left(
    adata: AnnData, given: GeneSets, sizes: NDArray[np.intp], min_genes: int, max_genes: int
) -> str:
    """Why no gene set was kept, in one sentence."""
    n_sets = format_thousands(len(given.names))
    if sizes.max() == 0:
        found = (
            f"no gene of {n_sets} gene sets ({given.source}) is among adata.var_names "
            f"({str(adata.var_names[0])!r} in adata, {given.genes[0]!r} in the gene sets)"
        )
        fallback = "pass gene sets with the names that adata uses"
        return f"{found}: {hint(adata, given) or fallback}."
    found = (
        f"none of {n_sets} gene sets ({given.source}) lists at most {max_genes} genes and has "
        f"at least {min_genes} of them in adata (they list {given.lengths.min()} to "
        f"{given.lengths.max()} and have {sizes.min()} to {sizes.max()})"
    )
    if sizes.max() >= min_genes:
        # Some are large enough: the names match and the limits are at fault.
        return f"{found}: lower min_genes or raise max_genes."
    return f"{found}: {hint(adata, given) or 'lower min_genes or pass other gene sets'}."


def hint(adata: AnnData, given: GeneSets) -> str:
    return hint_for_mismatch(
        adata.var_names, given.genes, query="adata", reference="the gene sets'", var=adata.var
    )


def _capitals(adata: AnnData, column: str | None) -> Capitals | None:
    """What speaks for symbols of the mouse in capitals, in the names that genes were matched by."""
    names = adata.var_names if column is None else adata.var[column].dropna()
    return mouse_in_capitals(names.astype(str))


def _restoring(column: str | None) -> str:
    """What brings back symbols of the mouse that were written in capitals; other names stay."""
    names = "adata.var_names" if column is None else f"adata.var[{column!r}]"
    return (
        f"{names} = [new or old for old, new in tosica.gs.map_genes({names}, organism='mouse', "
        "ignore_case=True).items()]"
    )


def _warn_of_capitals(adata: AnnData, given: GeneSets, column: str | None) -> None:
    """Say so if the genes are likely the mouse's and the gene sets are human."""
    seen = _capitals(adata, column)
    # Somebody's own sets may be written in capitals too.
    if seen is None or (not given.is_named and mouse_in_capitals(given.genes)):
        return
    warnings.warn(
        "adata's genes look like symbols of the mouse written in capitals, but the gene sets "
        f"({given.source}) are human: {format_thousands(len(seen.mouse))} names are the mouse's "
        f"alone ({seen.examples}) and {format_thousands(seen.n_human)} human alone; bring back the "
        f"mouse's symbols by {_restoring(column)} and take gene sets of the mouse, such as "
        "'mouse_gobp', or pass organism='human' if the genes are human.",
        UserWarning,
        stacklevel=4,
    )


def _refuse_capitals(adata: AnnData, column: str | None, *, wanted: str) -> None:
    """Say what keeps genes that are the mouse's, as somebody says, from being recognised."""
    seen = _capitals(adata, column) if wanted == "mouse" else None
    if seen is not None:
        raise ValueError(
            "adata's genes look like symbols of the mouse written in capitals "
            f"({seen.examples}), which match no gene of the mouse: bring back its symbols by "
            f"{_restoring(column)}."
        )


def _check_organism(
    adata: AnnData, given: GeneSets, match: GeneMatch, organism: str, *, n_wanted: int
) -> None:
    """Refuse gene sets of another organism, unless they were mapped or match all the same."""
    theirs, ours = match.wanted_organism, match.organism
    if ours is None or theirs is None:
        return
    if organism != "auto":
        seen = infer_organism(adata.var_names.astype(str))
        if match.column is None and seen not in (None, organism):
            _refuse_capitals(adata, match.column, wanted=organism)
            raise ValueError(
                f"organism={organism!r} was given, but adata's genes are {seen} genes "
                f"({str(adata.var_names[0])!r}): pass organism={seen!r} or leave it out."
            )
        return
    if ours == theirs or match.n_rows >= LOW_COVERAGE * min(n_wanted, adata.n_vars):
        return
    _refuse_capitals(adata, match.column, wanted=theirs)
    twins = [name for name in known_names() if name == given.source.replace(theirs, ours, 1)]
    advice = f"pass gene_sets={twins[0]!r}, or " if twins and given.is_named else "pass "
    raise ValueError(
        f"adata holds {ours} genes ({str(adata.var_names[0])!r}), but the gene sets "
        f"({given.source}) hold {theirs} genes ({given.genes[0]!r}): {advice}organism={ours!r} to "
        "map the gene sets by one-to-one orthology."
    )
