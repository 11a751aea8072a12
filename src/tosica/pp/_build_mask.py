"""Build the mask of genes and gene sets that defines the tokens of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from mudata import MuData
from scipy.sparse import csr_matrix, vstack

from tosica._checks import (
    FileKey,
    Fraction,
    InstanceOf,
    Integer,
    OneOf,
    validate_params,
)
from tosica._settings import logger, warn_user
from tosica._text import format_thousands
from tosica.data import (
    DEFAULT_MODALITIES,
    MODALITY_KINDS,
    check_mudata,
    check_unique,
    load_annotations,
    resolve_modalities,
)
from tosica.gs._genes import ORGANISMS, GeneList
from tosica.gs._match import Identifiers
from tosica.pp._gene_sets import (
    LOW_COVERAGE,
    MaskParams,
    Select,
    explain_no_gene_sets,
    hint,
    match_gene_sets,
    read_gene_sets,
    say_left_out,
    weights_table,
)
from tosica.pp._select import (
    draw_gene_sets,
    drop_similar,
    gene_variability,
    select_gene_sets,
)

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.pp._gene_sets import GeneSets, GeneSetsLike

# Stands for human_gobp or mouse_gobp, depending on the data.
_GOBP = "gobp"
# The largest sets of a collection are nearly the same. Models without these repetitions are as
# accurate and easier to interpret (benchmarks/gene_sets.py).
_MAX_JACCARD = 0.5
# Most features with a token each: the cost of attention grows with the square of their number.
_MAX_FEATURES = 1000


@validate_params(
    n_unannotated=Integer(least=0),
    mask_ratio=Fraction(zero=False),
    seed=Integer(least=0),
    select=OneOf(*get_args(Select)),
    max_jaccard=Fraction(zero=False, optional=True),
    organism=OneOf("auto", *ORGANISMS),
    identifiers=OneOf(*get_args(Identifiers)),
    groups=InstanceOf(
        "a dict of modality to groups of its features", Mapping, optional=True
    ),
    key_added=FileKey(),
)
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
    """Build a mask of which genes are in which gene sets, for the tokens of the model.

    Gene sets are kept, in their order, if they list at most ``max_genes`` genes and at least
    ``min_genes`` of them are in the data. They are candidates for tokens. :class:`tosica.TOSICA`
    selects those that distinguish its labels, and groups genes outside of them into co-expression
    modules, so that every variable gene is in a named token.

    Genes are first matched to ``adata.var_names`` by their exact names. Other genes of a named
    collection are then matched by identifier: Ensembl IDs with or without version, Entrez numbers,
    old symbols and aliases are translated, and the log reports it. ``adata.var_names`` do not
    change. Ambiguous names are listed in the log and left out.

    Parameters
    ----------
    adata
        The reference, ``(n_obs, n_vars)``. Only names of genes are read; the expression is read for
        ``select="variable"`` only. For a MuData, each modality gets a mask: RNA and gene activity
        that of ``gene_sets``, antibodies one token each, or their ``groups``.
    gene_sets
        Gene sets, in one of these forms:

        - ``"gobp"``: the collection ``human_gobp`` or ``mouse_gobp``, depending on the organism of
          ``adata`` (human if it is not clear); the log reports which;
        - name of a collection, see :func:`tosica.gs.collections`, such as ``"human_reactome"``, or
          ``"human_reactome@2023.2"`` for one of its versions;
        - path of a ``.gmt`` or ``.gmt.gz`` file; if a file has the name of a collection, the
          collection is used;
        - dict of name to genes;
        - long table with the columns ``source`` (gene set) and ``target`` (gene), like decoupler's
          networks. The names of columns in decoupler's resources are also accepted:
          ``genesymbol`` for the gene, and ``geneset``, ``pathway`` or ``cell_type`` for the set.
          Rows with a missing set or gene are left out. A column ``weight`` is kept, see below;
        - list of names and paths, joined by :func:`tosica.gs.join`;
        - None for random sets ``random_1``, ``random_2``, …, which contain each gene with
          probability ``mask_ratio``. Sets with fewer than ``min_genes`` genes are filled up to
          ``min_genes`` with random genes; ``max_genes`` does not apply.
    min_genes
        Smallest number of genes of a set that must be in the data.
    max_genes
        Largest number of genes that a set may list, whether they are in the data or not.
    max_gene_sets
        Largest number of gene sets to keep, without the fully connected columns. By default all
        sets with a fitting size are kept, and 300 random sets are drawn.
    n_unannotated
        Number of fully connected columns at the end; may be 0.
    mask_ratio
        Probability, above 0 and up to 1, that a gene is in a random set. Only for random sets.
    seed
        Seed of the random sets, independent of any global state. Only for random sets.
    select
        Gene sets that are kept if there are more than ``max_gene_sets``. Not for random sets.

        - ``"largest"``: the sets with the most genes in the data; the earlier one in case of ties;
        - ``"coverage"``: again and again the set with the most genes that are not covered yet,
          until none is left, which usually gives fewer and less redundant sets;
        - ``"variable"``: the sets whose genes vary most among cells, compared to genes with similar
          mean expression (sum of standardised dispersions over the square root of their number).
    max_jaccard
        Largest Jaccard index, above 0, of the genes in the data of two sets that are kept. Of sets
        that are more alike, the one that lists the fewest genes is kept, since it says more; 1 keeps
        all. None is 0.5 for named collections, in which many sets are nearly the same, and 1 with
        gene sets of your own.
    organism
        Organism of ``adata``. ``"auto"`` decides by overlap, logs the result, and refuses gene sets
        of the other organism. ``"human"`` or ``"mouse"`` maps gene sets of the other organism to it
        by one-to-one orthology.
    identifiers
        How genes are matched. ``"exact"``: by name only. ``"map"``: by name, also with ``-`` for
        ``_`` and the other way round (Seurat exchanges them) if only one name fits, and all other
        genes by identifier. ``"auto"``: like ``"map"`` for named collections, whose names are
        symbols of NCBI Gene or MGI; for gene sets of your own, by name and with ``-`` for ``_``
        only, unless this finds less than half of the genes of ``"map"``. If neither ``var_names``
        nor their translations match half of the genes, a text column of ``.var``
        (``gene_symbols``, ``gene_ids``, ``feature_name``, …) is used instead if it matches clearly
        better.
    layer
        Layer with counts or log-normalised expression for ``select="variable"``; by default ``.X``.
        For a MuData, a layer of RNA, and of gene activity if it has this layer.
    modalities
        Role to name of the modalities of a MuData, as in :meth:`tosica.TOSICA.setup_mudata`. By
        default those of "rna" and "protein" that are there.
    groups
        For a MuData, name of a modality without gene sets, such as antibodies, to groups of its
        features, in any form of ``gene_sets``. Features are matched by exact name, and
        ``min_genes`` is 1. A modality without groups gets one token per feature, and no fully
        connected column.
    key_added
        Key of ``.varm`` and ``.uns`` to write to, for a MuData those of each modality. An older
        mask there is replaced.
    copy
        Return a changed copy, and do not change ``adata``.

    Returns
    -------
    AnnData, MuData or None
        The copy if ``copy=True``, else None. These fields are added, where ``n_gene_sets`` counts
        the gene sets that were kept and the fully connected columns:

        ``adata.varm[key_added]``
            Which gene is in which set, ``(n_vars, n_gene_sets)`` sparse bool
            (:class:`scipy.sparse.csr_matrix`).
        ``adata.uns[key_added]``
            A dict:

            - ``gene_sets``: names of the columns, ``(n_gene_sets,)``; fully connected columns are
              called ``unannotated_1``, …
            - ``source``: name of the collection or file, "dict", "table" or "random"
            - ``organism``: organism of the genes in the mask, "human", "mouse" or "unknown"
            - ``release``: release of the collection, else ""
            - ``matched_by``: "var_names", or the column of ``.var`` that was used instead
            - ``n_genes_mapped``: number of genes that were not matched by their exact name
            - ``params``: ``min_genes``, ``max_genes``, ``max_gene_sets``, ``n_unannotated``,
              ``mask_ratio``, ``seed``, ``select``, ``max_jaccard`` and ``identifiers``
            - ``n_unannotated``: number of fully connected columns
            - ``n_genes``: number of genes in the data
            - ``n_genes_covered``: number of genes in a gene set, without fully connected columns
            - ``coverage``: their share, 0 to 1
            - ``left_out`` and ``unknown_genes``: only for gene sets of your own, DataFrames of the sets that were
              not kept, with the ``reason``, and of ``gene`` names that are not in the data, with a ``similar``
              one that is
            - ``weights``: only for a table with weights, a DataFrame with a row per pair of gene
              and gene set that has one: ``gene`` (its name in the data), ``gene_set`` and
              ``weight``. See :func:`tosica.get.network_weights`

    Raises
    ------
    TypeError
        If ``adata`` is not an AnnData or MuData, ``gene_sets`` has none of the forms above, the
        genes of a set are one string instead of a list, a name is not a string, or weights or a
        parameter are not numbers.
    ValueError
        If there are no cells or genes, ``var_names`` are duplicated, a parameter is out of range, a
        table lacks one of the two columns, ``gene_sets`` is empty, a set is called
        ``unannotated_<number>``, no set is kept (the message names the likely reason, such as lost
        names), the gene sets are of another organism (the message names the collection to use), the
        field of ``key_added`` is used for something else, there is no such collection
        (:func:`tosica.gs.load`), or a file is not GMT (:func:`tosica.gs.read_gmt`).
    KeyError
        If ``modalities`` or ``groups`` name a modality that the MuData does not have.
    FileNotFoundError, IsADirectoryError
        If there is no such file, or it is a folder (:func:`tosica.gs.read_gmt`).
    ConnectionError, OSError
        If a collection cannot be downloaded or cached (:func:`tosica.gs.load`).

    Warns
    -----
    UserWarning
        If less than 10 % of the data's genes are in a gene set that was kept, or if mouse symbols
        in upper case are matched to human gene sets.

    Notes
    -----
    The function has 17 parameters because it replaces four steps that depend on each other: read
    gene sets (``gene_sets``, ``mask_ratio``, ``seed``), match genes (``organism``,
    ``identifiers``), select sets (``min_genes`` to ``n_unannotated``, ``select``, ``max_jaccard``,
    ``layer``), and write the mask (``key_added``, ``copy``; ``modalities`` and ``groups`` for a
    MuData). All have defaults, and most calls pass none or one.

    A view becomes an actual AnnData with anndata's usual
    :class:`~anndata.ImplicitModificationWarning`, and its parent does not change. For a backed
    AnnData, the mask is added in memory only; the file changes when it is written. anndata cannot
    copy a backed AnnData or a view of it in memory: call ``.to_memory()`` before ``copy=True``, or
    before passing the view.

    With ``max_gene_sets=300``, ``n_unannotated=1``, ``max_jaccard=1`` and ``identifiers="exact"``,
    sets are selected and genes matched as by Chen et al., Nat. Commun. 14, 223 (2023), except for
    two details: their code includes the fully connected column in the 300, and does not define
    which of several equally large sets are kept.

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
    if max_genes < min_genes:
        raise ValueError(
            f"max_genes ({max_genes}) must not be below min_genes ({min_genes})."
        )
    sizes = min_genes, max_genes, max_gene_sets, n_unannotated
    params = MaskParams(
        *sizes, mask_ratio, seed, select, max_jaccard, organism, identifiers, layer
    )
    masks: dict[str | None, tuple[csr_matrix, dict[str, Any]]]
    if isinstance(adata, MuData):
        masks = {
            name: _compute_mask(adata[name], sets, of_name, key_added)
            for name, sets, of_name in _plan_modalities(
                adata, gene_sets, params, modalities, groups
            )
        }
    elif modalities is not None or groups is not None:
        raise TypeError(
            "modalities and groups are for a MuData, and adata is an AnnData."
        )
    else:
        load_annotations(adata)
        masks = {None: _compute_mask(adata, gene_sets, params, key_added)}
    result = adata.copy() if copy else adata
    for name, (matrix, about) in masks.items():
        part = result if name is None else result[name]
        part.varm[key_added], part.uns[key_added] = matrix, about
    return result if copy else None


def _plan_modalities(
    mdata: MuData,
    gene_sets: GeneSetsLike | None,
    params: MaskParams,
    modalities: Mapping[str, str] | None,
    groups: Mapping[str, Any] | None,
) -> list[tuple[str, Any, MaskParams]]:
    """Say which sets and parameters each modality of a MuData gets."""
    check_mudata(mdata)
    if modalities is None:
        modalities = {
            r: name for r, name in DEFAULT_MODALITIES.items() if name in mdata.mod
        } or None
    roles = resolve_modalities(mdata, modalities)
    groups = groups or {}
    panels = [
        name for role, name in roles.items() if not MODALITY_KINDS[role].has_gene_sets
    ]
    unknown = [name for name in groups if name not in panels]
    if unknown:
        raise KeyError(
            f"groups names {unknown[0]!r}, but is for antibodies, here {panels}."
        )
    # Features of a panel are few and may have the names of other genes; variability is for RNA.
    of_panel = replace(
        params,
        min_genes=1,
        select="largest",
        organism="auto",
        identifiers="exact",
        layer=None,
    )
    plan: list[tuple[str, Any, MaskParams]] = []
    for role, name in roles.items():
        logger.info("build_mask: modality %r (%s)", name, role)
        adata, kind = mdata[name], MODALITY_KINDS[role]
        kind.check_names(adata.var_names, f"mdata[{name!r}]")
        if kind.has_gene_sets:
            # The layer is that of RNA; gene activity may lack it.
            of_rna = role == "rna" or "rna" not in roles
            layer = params.layer if of_rna or params.layer in adata.layers else None
            plan.append((name, gene_sets, replace(params, layer=layer)))
        elif name in groups:
            plan.append((name, groups[name], of_panel))
        elif adata.n_vars > _MAX_FEATURES:
            raise ValueError(
                f"mdata[{name!r}] has {adata.n_vars} features, too many for one token each (at most {_MAX_FEATURES}): "
                f"pass groups={{{name!r}: ...}}, or modalities= if its role is another."
            )
        else:
            # A fully connected token would add nothing, and no two sets are similar.
            single = replace(
                of_panel,
                n_unannotated=0,
                max_jaccard=1.0,
                max_gene_sets=adata.n_vars or None,
                source="single features",
            )
            plan.append((name, {str(f): [f] for f in adata.var_names}, single))
    return plan


def _compute_mask(
    adata: AnnData, gene_sets: GeneSetsLike | None, params: MaskParams, key_added: str
) -> tuple[csr_matrix, dict[str, Any]]:
    """Compute the mask, ``(n_vars, n_gene_sets)`` bool, and its description for ``uns``."""
    _check_adata(adata, key_added)
    genes = GeneList(adata.var_names, adata.var)
    if gene_sets is None:
        names, members = draw_gene_sets(len(genes), params)
        read, n_candidates = None, len(names)
        about: dict[str, Any] = {
            "source": "random",
            "organism": "unknown",
            "release": "",
            "matched_by": "var_names",
        }
        about |= {
            "n_genes_mapped": 0,
            "params": params.stored(params.max_jaccard or 1.0),
        }
    else:
        resolved = _resolve_gobp(gene_sets, genes, params.organism)
        read = read_gene_sets(resolved)
        # Choosing a collection says which organism adata has.
        names, members, about = _match_and_select(
            adata, genes, read, params, log_organism=resolved is gene_sets
        )
        n_candidates = len(read.names)
    n_vars, sizes = len(genes), np.diff(members.indptr)
    n_covered = len(np.unique(members.indices))
    covering = f"{format_thousands(n_covered)} of {format_thousands(n_vars)}"
    if n_covered < LOW_COVERAGE * n_vars:
        advice = "raise mask_ratio or max_gene_sets"
        if read is not None:
            advice = hint(genes, read) or "pass gene sets with more of them"
        tokens = (
            "fully connected tokens"
            if params.n_unannotated
            else "co-expression modules"
        )
        warn_user(
            f"only {100 * n_covered / n_vars:.2g} % of adata's genes ({covering}) are in a gene "
            f"set that was kept, so that all other genes are only in {tokens}; {advice}."
        )
    kept, of, least, most = map(
        format_thousands, (len(names), n_candidates, sizes.min(), sizes.max())
    )
    logger.info(
        f"build_mask: kept {kept} of {of} gene sets ({least}–{most} genes each), covering {covering} genes "
        f"({100 * n_covered / n_vars:.1f} %); added .varm[{key_added!r}] and .uns[{key_added!r}]"
    )
    unannotated = [f"unannotated_{i + 1}" for i in range(params.n_unannotated)]
    matrix = vstack(
        [members, csr_matrix(np.ones((len(unannotated), n_vars), dtype=bool))]
    ).T.tocsr()
    matrix.sort_indices()
    return matrix, {
        "gene_sets": np.array([*names, *unannotated], dtype=object),
        **about,
        "n_unannotated": len(unannotated),
        "n_genes": n_vars,
        "n_genes_covered": n_covered,
        "coverage": n_covered / n_vars,
    }


def _check_adata(adata: AnnData, key_added: str) -> None:
    """Raise an error if no mask can be built, or if ``key_added`` holds anything but a mask."""
    if adata.n_obs == 0 or adata.n_vars == 0:
        raise ValueError(
            f"adata has no {'genes' if adata.n_obs else 'cells'} (shape {adata.n_obs} × {adata.n_vars}): undo a filter."
        )
    check_unique(adata.var_names, "var_names", "adata.var_names_make_unique()")
    mask, about = adata.varm.get(key_added), adata.uns.get(key_added)
    is_mask = mask is None or getattr(mask, "dtype", None) == np.dtype(bool)
    is_about = about is None or (isinstance(about, Mapping) and "gene_sets" in about)
    if not (is_mask and is_about):
        raise ValueError(
            f"adata.{'uns' if is_mask else 'varm'}[{key_added!r}] is not of build_mask: choose another key_added."
        )


def _resolve_gobp(
    gene_sets: GeneSetsLike, genes: GeneList, organism: str
) -> GeneSetsLike:
    """Replace "gobp", alone or in a list, by the collection of the organism of the data's genes."""
    parts = gene_sets if isinstance(gene_sets, list | tuple) else [gene_sets]
    is_gobp = [
        isinstance(part, str) and part.partition("@")[0] == _GOBP for part in parts
    ]
    if not any(is_gobp):
        return gene_sets
    chosen, reason = organism, f"organism={organism!r} was given"
    if organism == "auto":
        chosen, reason = (
            "human",
            "it is not clear whether adata holds human or mouse genes",
        )
        for where, names in (
            ("", genes),
            *((f" in var[{column!r}]", names) for column, names in genes.columns),
        ):
            if names.organism is not None:
                chosen, reason = (
                    names.organism,
                    f"adata holds {names.organism} genes{where} (by overlap)",
                )
                break
    logger.info("build_mask: took %s_%s, since %s", chosen, _GOBP, reason)
    resolved: list[Any] = [
        f"{chosen}_{part}" if this else part
        for part, this in zip(parts, is_gobp, strict=True)
    ]
    return resolved if isinstance(gene_sets, list | tuple) else resolved[0]


def _match_and_select(
    adata: AnnData,
    genes: GeneList,
    gene_sets: GeneSets,
    params: MaskParams,
    *,
    log_organism: bool,
) -> tuple[list[str], csr_matrix, dict[str, Any]]:
    """Match gene sets to the genes of the data, and select those to keep."""
    members, match = match_gene_sets(
        genes, gene_sets, params, log_organism=log_organism
    )
    sizes, n_listed = np.diff(members.indptr), np.diff(gene_sets.contains.indptr)
    fits = np.flatnonzero((sizes >= params.min_genes) & (n_listed <= params.max_genes))
    if fits.size == 0:
        raise ValueError(explain_no_gene_sets(genes, gene_sets, sizes, params))
    max_jaccard = params.max_jaccard
    if max_jaccard is None:
        max_jaccard = _MAX_JACCARD if gene_sets.is_named else 1.0
    fits = fits[drop_similar(members[fits], n_listed[fits], max_jaccard)]
    selected = select_gene_sets(
        members[fits],
        len(fits) if params.max_gene_sets is None else params.max_gene_sets,
        select=params.select,
        variability=gene_variability(adata, params.layer)
        if params.select == "variable"
        else None,
    )
    kept = fits[selected]
    names = [gene_sets.names[i] for i in kept]
    organism = match.organism if match.by_orthology else gene_sets.organism
    about = {
        "source": params.source or gene_sets.source,
        "organism": organism or match.wanted_organism or "unknown",
        "release": gene_sets.release,
        "matched_by": match.column or "var_names",
        "n_genes_mapped": sum(match.kinds.values()),
        "params": params.stored(max_jaccard),
    }
    if not gene_sets.is_named:
        about |= say_left_out(
            genes, gene_sets, match, sizes, np.isin(np.arange(len(sizes)), kept), params
        )
    if gene_sets.weights is not None:
        about["weights"] = weights_table(genes, gene_sets, match, kept)
    return names, members[kept], about
