"""Compute the mask of one AnnData: gene sets, matched to its genes and selected."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from tosica._logging import format_thousands, logger
from tosica._validation import check_data, check_key_added
from tosica.data import check_unique, user_stacklevel
from tosica.gs._gene_list import GeneList
from tosica.pp._match_gene_sets import (
    LOW_COVERAGE,
    explain_no_gene_sets,
    hint,
    match_gene_sets,
    weights_table,
)
from tosica.pp._read_gene_sets import read_gene_sets
from tosica.pp._select_gene_sets import draw_gene_sets, gene_variability, select_gene_sets

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from tosica.pp._mask_params import MaskParams
    from tosica.pp._read_gene_sets import GeneSets, GeneSetsLike

# Stands for human_gobp or mouse_gobp, depending on the data.
_GOBP = "gobp"
# The largest sets of a collection are nearly the same. Models without these repetitions are as
# accurate and easier to interpret (benchmarks/gene_sets.py).
_MAX_JACCARD = 0.5
# Number of random sets, as in the paper.
_N_RANDOM_SETS = 300


class Mask(NamedTuple):
    """A mask, ``(n_vars, n_gene_sets)`` bool, and its description for ``adata.uns``."""

    matrix: csr_matrix
    metadata: dict[str, Any]

    def write(self, adata: AnnData, key_added: str) -> None:
        """Write the mask to ``.varm[key_added]`` and ``.uns[key_added]``."""
        adata.varm[key_added] = self.matrix
        adata.uns[key_added] = self.metadata


@dataclass(frozen=True)
class _Selected:
    """The gene sets of a mask, and how they were found.

    ``members`` is ``(n_gene_sets, n_vars)`` bool, and ``n_candidates`` the number of gene sets that
    the user gave.
    """

    names: list[str]
    members: csr_matrix
    n_candidates: int
    max_jaccard: float
    source: str
    organism: str = "unknown"
    release: str = ""
    matched_by: str = "var_names"
    n_genes_mapped: int = 0
    weights: pd.DataFrame | None = None


def compute_mask(
    adata: AnnData, gene_sets: GeneSetsLike | None, params: MaskParams, key_added: str
) -> Mask:
    """Compute the mask of an AnnData, see :func:`tosica.pp.build_mask`; ``adata`` is not changed.

    ``key_added`` is the key that the mask will be written to.
    """
    _check_adata(adata, key_added)
    genes = GeneList(adata.var_names, adata.var)
    if gene_sets is None:
        read = None
        selected = _draw(len(genes), params)
    else:
        resolved = _resolve_gobp(gene_sets, genes, params.organism)
        read = read_gene_sets(resolved)
        # Choosing a collection says which organism adata has.
        selected = _match_and_select(adata, genes, read, params, log_organism=resolved is gene_sets)
    members, n_vars = selected.members, len(genes)
    n_covered = int(np.count_nonzero(np.bincount(members.indices, minlength=n_vars)))
    coverage = n_covered / n_vars
    if coverage < LOW_COVERAGE:
        advice = "raise mask_ratio or max_gene_sets"
        if read is not None:
            advice = hint(genes, read) or "pass gene sets with more of them"
        tokens = "fully connected tokens" if params.n_unannotated else "co-expression modules"
        warnings.warn(
            f"only {100 * coverage:.2g} % of adata's genes ({format_thousands(n_covered)} of "
            f"{format_thousands(n_vars)}) are in a gene set that was kept, so that all other genes "
            f"are only in {tokens}; {advice}.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
    sizes = np.diff(members.indptr)
    logger.info(
        "build_mask: kept %s of %s gene sets (%s–%s genes each), covering %s of %s genes "
        "(%.1f %%); added .varm[%r] and .uns[%r]",
        format_thousands(len(selected.names)),
        format_thousands(selected.n_candidates),
        format_thousands(sizes.min()),
        format_thousands(sizes.max()),
        format_thousands(n_covered),
        format_thousands(n_vars),
        100 * coverage,
        key_added,
        key_added,
    )
    unannotated = [f"unannotated_{i + 1}" for i in range(params.n_unannotated)]
    metadata = {
        "gene_sets": np.array([*selected.names, *unannotated], dtype=object),
        "source": selected.source,
        "organism": selected.organism,
        "release": selected.release,
        "matched_by": selected.matched_by,
        "n_genes_mapped": selected.n_genes_mapped,
        "params": params.stored(selected.max_jaccard),
        "n_unannotated": int(params.n_unannotated),
        "n_genes": n_vars,
        "n_genes_covered": n_covered,
        "coverage": coverage,
    }
    if selected.weights is not None:
        metadata["weights"] = selected.weights
    return Mask(_add_unannotated(members, params.n_unannotated), metadata)


def _check_adata(adata: AnnData, key_added: str) -> None:
    """Raise an error if no mask can be built for ``adata``, or stored under ``key_added``.

    Raises
    ------
    TypeError
        If ``adata`` is not an AnnData or ``key_added`` is not a string.
    ValueError
        If there are no cells, no genes or duplicated names of genes, or if ``key_added`` holds
        anything but an older mask, such as the loadings of a PCA.
    """
    check_data(adata)
    if adata.n_obs == 0 or adata.n_vars == 0:
        what = "cells" if adata.n_obs == 0 else "genes"
        raise ValueError(
            f"adata has no {what} (shape {adata.n_obs} × {adata.n_vars}): "
            "check the filters that were applied before."
        )
    check_unique(adata.var_names, "var_names", "adata.var_names_make_unique()")
    check_key_added(key_added)
    taken = []
    if key_added in adata.varm:
        stored = adata.varm[key_added]
        if not (issparse(stored) or isinstance(stored, np.ndarray)) or stored.dtype != bool:
            taken.append(f".varm[{key_added!r}]")
    if key_added in adata.uns:
        stored = adata.uns[key_added]
        if not (isinstance(stored, Mapping) and "gene_sets" in stored):
            taken.append(f".uns[{key_added!r}]")
    if taken:
        raise ValueError(
            f"adata has {' and '.join(taken)} already, which build_mask did not write: "
            "choose another key_added."
        )


def _resolve_gobp(gene_sets: GeneSetsLike, genes: GeneList, organism: str) -> GeneSetsLike:
    """Replace "gobp", alone or in a list, by the collection of the organism of the data's genes."""
    if not any(map(_is_gobp, gene_sets if isinstance(gene_sets, list | tuple) else [gene_sets])):
        return gene_sets
    if organism != "auto":
        chosen, reason = organism, f"organism={organism!r} was given"
    else:
        found, where = genes.organism, ""
        if found is None:
            for column, names in genes.columns:
                if names.organism is not None:
                    found, where = names.organism, f" in var[{column!r}]"
                    break
        chosen = found or "human"
        reason = f"adata holds {found} genes{where} (by overlap)"
        if found is None:
            reason = "it is not clear whether adata holds human or mouse genes"
    logger.info("build_mask: took %s_%s, since %s", chosen, _GOBP, reason)
    if isinstance(gene_sets, list | tuple):
        return [f"{chosen}_{part}" if _is_gobp(part) else part for part in gene_sets]
    return f"{chosen}_{gene_sets}"


def _is_gobp(part: object) -> bool:
    return isinstance(part, str) and part.partition("@")[0] == _GOBP


def _draw(n_vars: int, params: MaskParams) -> _Selected:
    """Draw random gene sets."""
    names, members = draw_gene_sets(
        n_vars,
        n_sets=_N_RANDOM_SETS if params.max_gene_sets is None else params.max_gene_sets,
        min_genes=params.min_genes,
        mask_ratio=params.mask_ratio,
        seed=params.seed,
    )
    max_jaccard = 1.0 if params.max_jaccard is None else params.max_jaccard
    return _Selected(names, members, len(names), max_jaccard, source="random")


def _match_and_select(
    adata: AnnData,
    genes: GeneList,
    gene_sets: GeneSets,
    params: MaskParams,
    *,
    log_organism: bool,
) -> _Selected:
    """Match gene sets to the genes of the data, and select those to keep."""
    members, weights, match = match_gene_sets(
        genes,
        gene_sets,
        organism=params.organism,
        identifiers=params.identifiers,
        log_organism=log_organism,
    )
    sizes = np.diff(members.indptr)
    min_genes, max_genes = params.min_genes, params.max_genes
    fits = np.flatnonzero((sizes >= min_genes) & (gene_sets.lengths <= max_genes))
    if fits.size == 0:
        raise ValueError(explain_no_gene_sets(genes, gene_sets, sizes, min_genes, max_genes))
    max_jaccard = params.max_jaccard
    if max_jaccard is None:
        max_jaccard = _MAX_JACCARD if gene_sets.is_named else 1.0
    use_variability = params.select == "variable"
    kept = fits[
        select_gene_sets(
            members[fits],
            len(fits) if params.max_gene_sets is None else params.max_gene_sets,
            select=params.select,
            max_jaccard=max_jaccard,
            variability=gene_variability(adata, params.layer) if use_variability else None,
        )
    ]
    names = [gene_sets.names[i] for i in kept]
    organism = match.organism if match.by_orthology else gene_sets.organism
    return _Selected(
        names,
        members[kept],
        len(gene_sets.names),
        max_jaccard,
        source=gene_sets.source,
        organism=organism or match.wanted_organism or "unknown",
        release=gene_sets.release,
        matched_by=match.column or "var_names",
        n_genes_mapped=sum(match.kinds.values()),
        weights=None if weights is None else weights_table(weights, kept, names, genes),
    )


def _add_unannotated(members: csr_matrix, n_unannotated: int) -> csr_matrix:
    """Transpose the members to ``(n_vars, n_gene_sets)``, with the fully connected columns last."""
    full = csr_matrix(np.ones((n_unannotated, members.shape[1]), dtype=bool))
    matrix = vstack([members, full]).T.tocsr()
    matrix.sort_indices()
    return matrix
