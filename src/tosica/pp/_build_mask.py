"""Which gene is in which gene set: the mask that gives the model its tokens."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from mudata import MuData
from scipy.sparse import csr_matrix, vstack

from tosica._logging import format_thousands, logger
from tosica.gs._gene_table import ORGANISMS
from tosica.gs._match_genes import GeneMatch, Identifiers
from tosica.pp._build_masks import build_masks
from tosica.pp._mask_arguments import check_adata, check_key, check_params
from tosica.pp._match_gene_sets import (
    LOW_COVERAGE,
    hint,
    match_gene_sets,
    nothing_left,
    weights_table,
)
from tosica.pp._read_gene_sets import GeneSetsLike, read_gene_sets
from tosica.pp._select_gene_sets import Select, draw_gene_sets, gene_variability, select_gene_sets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

# The largest sets of a collection repeat each other: models without the repetitions are as accurate
# and easier to read (benchmarks/gene_sets.py).
_MAX_JACCARD = 0.5
_NOTHING = np.empty(0, dtype=np.intp)
# Random sets are as many as the paper has, unless told otherwise.
_RANDOM_SETS = 300


def build_mask(
    adata: AnnData | MuData,
    gene_sets: GeneSetsLike | None = "gobp",
    *,
    min_genes: int = 5,
    max_genes: int = 300,
    max_gene_sets: int | None = None,
    n_unannotated: int = 0,
    mask_ratio: float = 0.015,
    seed: int = 0,
    select: Select = "largest",
    max_jaccard: float | None = None,
    organism: str = "auto",
    identifiers: Identifiers = "auto",
    layer: str | None = None,
    modalities: Mapping[str, str] | None = None,
    groups: Mapping[str, Any] | None = None,
    key_added: str = "tosica_mask",
    copy: bool = False,
) -> AnnData | MuData | None:
    """Decide which gene sets may become the model's tokens, and which genes feed each of them.

    Sets are kept if they list at most `max_genes` genes, of which at least `min_genes` are in the
    data, in the order in which they were given. They are candidates: :class:`tosica.TOSICA` makes
    tokens of those by which its labels are told apart, and puts genes that none of them holds into
    co-expression modules, so that every gene that varies is in a token with a name.

    Genes are matched to `adata.var_names` by exact name. What is left of the genes of a named
    collection is matched by identifier: Ensembl IDs with or without version, Entrez numbers, old
    symbols and aliases are recognised and translated, `adata.var_names` stay as they are, and
    what was done is logged. A name that may be several genes is listed and left out, not guessed.

    Parameters
    ----------
    adata
        The reference, (n_obs, n_vars). Only its names of genes are read; X is not touched (and
        read for ``select="variable"`` only). Of a MuData each modality gets a mask: RNA that of
        `gene_sets`, any other one token a feature, such as an antibody, or `groups`.
    gene_sets
        Where the gene sets come from:

        - ``"gobp"``: the collection ``human_gobp`` or ``mouse_gobp``, by whose genes `adata` has
          (see `organism`; human if that is not clear), which is logged;
        - name of a collection, see :func:`tosica.gs.collections`, such as ``"human_reactome"``
          or, to name its version, ``"human_reactome@2023.2"``;
        - path of a ``.gmt`` or ``.gmt.gz`` file (a collection's name wins over a file so called);
        - dict of name to genes;
        - long table with the columns ``source`` (the set) and ``target`` (the gene), as decoupler's
          networks have (``genesymbol`` is understood as the gene, ``geneset``, ``pathway``
          and ``cell_type`` as the set, as its resources have them). Rows with a missing set
          or gene are left out. A column ``weight`` is kept, see below;
        - list of names and paths, joined by :func:`tosica.gs.join`;
        - None for random sets: `max_gene_sets` of them, ``random_1``, ``random_2``, …, that
          each hold each gene with probability `mask_ratio`. A set that gets fewer than `min_genes`
          genes is topped up to `min_genes` with genes drawn at random; `max_genes` does not apply.
    min_genes
        Fewest genes of a set that must be in the data.
    max_genes
        Most genes that a set may list, whether they are in the data or not.
    max_gene_sets
        Most gene sets to keep, the fully connected columns not counted. By default all that fit are
        kept, and :class:`tosica.TOSICA` chooses among them those that tell its labels apart; random
        sets are 300.
    n_unannotated
        Number of fully connected columns at the end; may be 0.
    mask_ratio
        Probability, above 0 and up to 1, that a gene is in a random set. Of no effect otherwise.
    seed
        Seed of the random sets, independent of any global state. Of no effect otherwise.
    select
        Which sets are kept if more than `max_gene_sets` fit:

        - ``"largest"``: those with the most genes in the data, of equally large ones the earlier;
        - ``"coverage"``: one after the other the set with the most genes that no earlier one has,
          until nothing is left to cover; usually fewer and less redundant sets;
        - ``"variable"``: those whose genes vary most among the cells of `adata`, compared with
          genes that are expressed as much (sum of their standardised dispersions over the square
          root of their number).

        Random sets are not chosen from.
    max_jaccard
        Going through the sets in the order of `select`, pass over those that share more than this
        of their genes in the data with one kept before (Jaccard index, above 0); 1 keeps all. None
        is 0.5 for named collections, in which many sets say nearly the same, and 1 for gene sets of
        your own.
    organism
        Whose genes `adata` has. ``"auto"`` decides by overlap, says so, and refuses gene sets of
        the other organism. ``"human"`` or ``"mouse"`` maps gene sets of the other organism to it by
        one-to-one orthology.
    identifiers
        How genes are matched. ``"exact"``: by name only. ``"map"``: by name, and what is left by
        identifier. ``"auto"``: as ``"map"`` for named collections, whose names are known to be
        symbols of NCBI Gene or MGI; for gene sets of your own, as ``"exact"``, unless that gives
        less than half of the genes. If neither `var_names` nor their translation match half of the
        genes, a text column of `.var` (``gene_symbols``, ``gene_ids``, ``feature_name``, …) is
        used that matches clearly better.
    layer
        Layer with the expression for ``select="variable"``, counts or log-normalised; by default
        `.X`. Of a MuData that of RNA.
    modalities
        Role to name of a MuData's modalities, as in :meth:`tosica.TOSICA.setup_mudata`. By default
        "rna" and "protein", as far as there are modalities of these names.
    groups
        For a MuData, the name of a modality other than RNA to groups of its features, in any form
        that `gene_sets` has; features are then matched by exact name, and `min_genes` is 1. A
        modality that is not named gets one token a feature, and no fully connected column.
    key_added
        Key of `.varm` and `.uns` to write to, of a MuData those of each modality. An older mask
        there is replaced.
    copy
        Return a changed copy and leave `adata` as it is.

    Returns
    -------
    None, or the copy if `copy=True`. Written are, with P the number of gene sets kept and of
    fully connected columns together:

    `adata.varm[key_added]`
        Which gene is in which set, (n_vars, P) sparse bool (:class:`scipy.sparse.csr_matrix`).
    `adata.uns[key_added]`
        A dict:

        - ``gene_sets``: names of the columns, (P,); the last ones are ``unannotated_1``, … if
          `n_unannotated` asks for them
        - ``source``: the collection's name, the file's name, "dict", "table" or "random"
        - ``organism``: whose genes the sets hold in this mask, "human", "mouse" or "unknown"
        - ``release``: the collection's release, else ""
        - ``matched_by``: "var_names", or the column of `.var` that genes were matched by
        - ``n_genes_mapped``: number of genes matched by other than their exact name
        - ``params``: `min_genes`, `max_genes`, `max_gene_sets`, `n_unannotated`, `mask_ratio`,
          `seed`, `select`, `max_jaccard` and `identifiers`
        - ``n_unannotated``: number of fully connected columns
        - ``n_genes``: number of genes in the data
        - ``n_genes_covered``: how many of them are in a gene set (fully connected columns aside)
        - ``coverage``: the share, 0 to 1, that these are
        - ``weights``: of a table with weights only, a DataFrame with a row for each pair of gene
          and gene set in the mask that has one: ``gene`` (its name in the data), ``gene_set`` and
          ``weight``. See :func:`tosica.get.network_weights`

    Nothing else changes. A view becomes an actual AnnData with anndata's usual
    :class:`~anndata.ImplicitModificationWarning`, and its parent stays as it was. To a backed
    AnnData the mask is added in memory only; its file changes when it is written. (anndata copies
    neither it nor a view of it in memory: call `.to_memory()` before `copy=True`, or before
    passing the view.)

    Raises
    ------
    TypeError
        `adata` is no AnnData or MuData, `gene_sets` none of the above, a set's genes are one string
        instead of a list, a name is no string, weights or a parameter are no numbers.
    ValueError
        No cells or genes, duplicated `var_names`, a parameter out of range, a table without the
        two columns, nothing in `gene_sets`, a set called ``unannotated_<number>``, no set left
        (with the likely reason, such as names lost in a conversion), gene sets of another
        organism (with the collection to take instead), a `key_added` under which something else is
        stored, no such collection (:func:`tosica.gs.load`), or a file that is not GMT
        (:func:`tosica.gs.read_gmt`).
    KeyError
        `modalities` or `groups` name what a MuData does not have.
    FileNotFoundError, IsADirectoryError
        No such file, or a folder (:func:`tosica.gs.read_gmt`).
    ConnectionError, OSError
        A collection cannot be downloaded or kept (:func:`tosica.gs.load`).

    Warns
    -----
    UserWarning
        Under 10 % of the data's genes are in a gene set that was kept.

    Notes
    -----
    With ``max_gene_sets=300``, ``n_unannotated=1``, ``max_jaccard=1`` and ``identifiers="exact"``,
    sets are chosen and genes matched as by Chen et al., Nat. Commun. 14, 223 (2023), but for two
    details: their code counts the fully connected column among the 300, and leaves open which of
    equally large sets stay.

    Examples
    --------
    >>> import numpy as np
    >>> from anndata import AnnData
    >>> import tosica
    >>> adata = AnnData(np.ones((2, 5), dtype=np.float32))
    >>> adata.var_names = ["CD3D", "CD3E", "CD19", "MS4A1", "LYZ"]
    >>> gene_sets = {"T cell": ["CD3D", "CD3E", "CD2"], "B cell": ["CD19", "MS4A1"]}
    >>> tosica.pp.build_mask(adata, gene_sets, min_genes=2)
    >>> adata.uns["tosica_mask"]["gene_sets"].tolist()
    ['T cell', 'B cell']
    >>> adata.varm["tosica_mask"].toarray().astype(int)
    array([[1, 0],
           [1, 0],
           [0, 1],
           [0, 1],
           [0, 0]])
    >>> adata.uns["tosica_mask"]["coverage"]
    0.8
    """
    if isinstance(adata, MuData):
        arguments = locals()
        return build_masks(build_mask, arguments.pop("adata"), **arguments)
    if modalities is not None or groups is not None:
        raise TypeError("modalities and groups are for a MuData, and adata is an AnnData.")
    check_adata(adata)
    check_key(adata, key_added)
    params = check_params(
        min_genes=min_genes,
        max_genes=max_genes,
        max_gene_sets=max_gene_sets,
        n_unannotated=n_unannotated,
        mask_ratio=mask_ratio,
        seed=seed,
        select=select,
        max_jaccard=1.0 if max_jaccard is None else max_jaccard,
        identifiers=identifiers,
    )
    if organism not in ("auto", *ORGANISMS):
        raise ValueError(f"organism must be 'auto', 'human' or 'mouse', not {organism!r}.")

    match, weights, release = GeneMatch(_NOTHING, _NOTHING), None, ""
    found_organism: str | None
    if gene_sets is None:
        names, members = draw_gene_sets(
            adata.n_vars,
            n_sets=_RANDOM_SETS if max_gene_sets is None else max_gene_sets,
            min_genes=min_genes,
            mask_ratio=mask_ratio,
            seed=seed,
        )
        source, found_organism, n_given = "random", "unknown", len(names)
    else:
        given = read_gene_sets(gene_sets, adata, organism=organism)
        if max_jaccard is None and given.is_named:
            params["max_jaccard"] = _MAX_JACCARD
        members, weights, match = match_gene_sets(
            adata, given, organism=organism, identifiers=identifiers
        )
        sizes = np.diff(members.indptr)
        fits = np.flatnonzero((sizes >= min_genes) & (given.lengths <= max_genes))
        if fits.size == 0:
            raise ValueError(nothing_left(adata, given, sizes, min_genes, max_genes))
        chosen = select_gene_sets(
            members[fits],
            len(fits) if max_gene_sets is None else max_gene_sets,
            select=select,
            max_jaccard=params["max_jaccard"],
            variability=gene_variability(adata, layer) if select == "variable" else None,
        )
        kept = fits[chosen]
        names, members = [given.names[i] for i in kept], members[kept]
        source, release, n_given = given.source, given.release, len(given.names)
        if weights is not None:
            weights = weights_table(weights, kept, names, adata.var_names)
        found_organism = match.organism if match.by_orthology else given.organism
        found_organism = found_organism or match.wanted_organism or "unknown"

    sizes = np.diff(members.indptr)
    n_covered = int(np.count_nonzero(np.bincount(members.indices, minlength=adata.n_vars)))
    coverage = n_covered / adata.n_vars
    if coverage < LOW_COVERAGE:
        # Names that fit neither by kind nor by species let a few sets through by chance.
        if gene_sets is None:
            advice = "raise mask_ratio or max_gene_sets"
        else:
            advice = hint(adata, given) or "pass gene sets that hold more of them"
        rest = "only the fully connected tokens" if n_unannotated else "only modules"
        warnings.warn(
            f"only {100 * coverage:.2g} % of adata's genes ({format_thousands(n_covered)} of "
            f"{format_thousands(adata.n_vars)}) are in a gene set that was kept, so that {rest} "
            f"will see the others; {advice}.",
            UserWarning,
            stacklevel=2,
        )

    result = adata.copy() if copy else adata
    result.varm[key_added] = _assemble(members, n_unannotated)
    result.uns[key_added] = {
        "gene_sets": np.array(
            [*names, *(f"unannotated_{i + 1}" for i in range(n_unannotated))], dtype=object
        ),
        "source": source,
        "organism": found_organism,
        "release": release,
        "matched_by": match.column or "var_names",
        "n_genes_mapped": sum(match.kinds.values()),
        "params": params,
        "n_unannotated": params["n_unannotated"],
        "n_genes": adata.n_vars,
        "n_genes_covered": n_covered,
        "coverage": coverage,
    }
    if weights is not None:
        result.uns[key_added]["weights"] = weights
    logger.info(
        "build_mask: kept %s of %s gene sets (%s–%s genes each), covering %s of %s genes "
        "(%.1f %%); added .varm[%r] and .uns[%r]",
        format_thousands(len(names)),
        format_thousands(n_given),
        format_thousands(sizes.min()),
        format_thousands(sizes.max()),
        format_thousands(n_covered),
        format_thousands(adata.n_vars),
        100 * coverage,
        key_added,
        key_added,
    )
    return result if copy else None


def _assemble(members: csr_matrix, n_unannotated: int) -> csr_matrix:
    """The mask, (n_vars, P), with its fully connected columns last."""
    full = csr_matrix(np.ones((n_unannotated, members.shape[1]), dtype=bool))
    mask = vstack([members, full]).T.tocsr()
    mask.sort_indices()
    return mask
