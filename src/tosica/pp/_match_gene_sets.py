"""Match the genes of gene sets with those of the data, and refuse another organism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tosica._settings import logger, warn_user
from tosica._text import in_python, list_names, parameter
from tosica.gs._collections import COLLECTIONS
from tosica.gs._gene_list import GeneList
from tosica.gs._match import match_by_name, match_genes

if TYPE_CHECKING:
    from tosica.gs._gene_sets import GeneSets
    from tosica.gs._match import GeneMatch
    from tosica.pp._params import Identifiers

# With a smaller share of the data's genes in gene sets, the user is warned.
LOW_COVERAGE = 0.1


@dataclass(frozen=True)
class MatchedGeneSets:
    """Gene sets of one source, as they are listed, and their match with the genes of the data."""

    listed: GeneSets
    match: GeneMatch

    def on_data(self, genes: GeneList) -> GeneSets:
        """Gene sets on the genes of the data."""
        return self.listed.on_genes(genes.names, self.match.targets, self.match.rows)

    @property
    def organism(self) -> str | None:
        """Organism of the genes in the mask."""
        if self.match.by_orthology:
            return self.match.organism
        return self.listed.organism or self.match.target_organism


def find_organism(genes: GeneList) -> tuple[str | None, GeneList, str | None]:
    """Recognize the organism of the data's genes, by their names or a column of ``var``.

    Returns
    -------
    organism
        ``"human"`` or ``"mouse"``; None if it is not clear.
    names
        The names that it is recognized by.
    column
        Their column of ``var``, None for the index.
    """
    if genes.organism is not None:
        return genes.organism, genes, None
    for column, names in genes.columns:
        if names.organism is not None:
            return names.organism, names, column
    return None, genes, None


def match_gene_sets(
    genes: GeneList,
    gene_sets: GeneSets,
    organism: str,
    identifiers: Identifiers,
    *,
    log_organism: bool,
    log_source: bool,
) -> MatchedGeneSets:
    """Find the genes of gene sets among the genes of the data.

    Parameters
    ----------
    genes
        Genes of the data.
    gene_sets
        Gene sets of one source.
    organism, identifiers
        As in :func:`tosica.pp.build_mask`.
    log_organism
        Whether the log says which organism was recognized.
    log_source
        Whether the log names the source of the gene sets.
    """
    targets = GeneList(gene_sets.gene_names)
    if identifiers == "exact":
        match = match_by_name(genes, targets)
    else:
        # A few genes do not tell their organism; it is that of the data then.
        target_organism = gene_sets.organism or targets.organism
        if target_organism is None and organism == "auto":
            target_organism = find_organism(genes)[0]
        match = match_genes(
            genes, targets, organism=organism, target_organism=target_organism
        )
    _check_organism(gene_sets, targets, match, organism)
    clauses = [gene_sets.source] if log_source else []
    are_capitals = match.organism == "human" and match.names.upper_case_mouse
    is_recognized = organism == "auto" and log_organism and not are_capitals
    if match.organism and (is_recognized or match.by_orthology):
        overlap = " (by overlap)" if organism == "auto" else ""
        clauses.append(f"adata holds {match.organism} genes{overlap}")
    if summary := match.summary():
        clauses.append(summary)
    if len(clauses) > log_source:
        logger.info("build_mask: %s", "; ".join(clauses))
    return MatchedGeneSets(gene_sets, match)


def _check_organism(
    gene_sets: GeneSets, targets: GeneList, match: GeneMatch, organism: str
) -> None:
    """Raise an error for gene sets of another organism, unless enough genes match all the same."""
    example = repr(match.names.names[0])
    recognized = match.names.organism or match.organism
    seems_human = "human" in (recognized, gene_sets.organism, match.target_organism)
    advice = _restore_case(match) if seems_human else ""
    holds = f"adata holds {recognized} genes ({example})"
    if advice:
        holds = f"adata's genes are in capitals, as human genes are ({example})"
    if organism != "auto":
        is_other = match.names.organism not in (None, organism)
        if match.target_organism is not None and match.column is None and is_other:
            if organism != "mouse" or not advice:
                advice = f"pass {parameter('organism', recognized)} or leave it out"
            raise ValueError(
                f"{holds}, but {parameter('organism', organism)} was given: {advice}."
            )
        return
    n_possible = min(len(targets), len(match.names))
    matches_few = match.n_rows < LOW_COVERAGE * n_possible
    target_organism = match.target_organism
    if (
        match.organism is not None
        and target_organism not in (None, match.organism)
        and matches_few
    ):
        counterpart = gene_sets.source.replace(target_organism, match.organism, 1)
        offer = ""
        if counterpart in COLLECTIONS:
            offer = f"{parameter('gene_sets', counterpart)}, or "
        if target_organism != "mouse" or not advice:
            advice = f"pass {offer}{parameter('organism', match.organism)} to map the gene sets by one-to-one orthology"
        raise ValueError(
            f"{holds}, but the gene sets ({gene_sets.source}) hold {target_organism} genes ({targets.names[0]!r}): "
            f"{advice}."
        )
    is_human = (gene_sets.organism or target_organism) == "human"
    # Gene sets of a user may be mouse symbols in upper case too.
    may_warn = is_human and (gene_sets.is_named or not targets.upper_case_mouse)
    if advice and may_warn:
        warn_user(
            f"the gene sets ({gene_sets.source}) are human, but {advice}, and use mouse gene sets, such as "
            f"'mouse_gobp', or pass {parameter('organism', 'human')} if the genes are human."
        )


def _restore_case(match: GeneMatch) -> str:
    """Say how to restore mouse symbols that were written in upper case; empty if they were not."""
    symbols = match.names.upper_case_mouse
    if not symbols:
        return ""
    names = "adata.var_names"
    if match.column is not None:
        names = f"adata.var[{match.column!r}]"
    examples = list_names(symbols[:: len(symbols) // 3 + 1])
    cure = in_python(
        f" by {names} = [new or old for old, new in "
        f"tosica.gs.map_genes({names}, organism='mouse', ignore_case=True).items()]"
    )
    return f"adata's genes look like mouse symbols written in upper case ({examples}): restore their case{cure}"
