"""Build the mask of genes and gene sets that defines the tokens of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd
from mudata import MuData

from tosica._settings import logger, warn_user
from tosica._text import format_thousands
from tosica._validate import (
    FileKey,
    Fraction,
    InstanceOf,
    OneOf,
    validate_params,
)
from tosica.data import (
    DEFAULT_MODALITIES,
    MODALITY_KINDS,
    check_mudata,
    check_unique,
    load_annotations,
    resolve_modalities,
)
from tosica.gs._gene_list import GeneList
from tosica.gs._gene_sets import concatenate
from tosica.gs._gene_table import ORGANISMS
from tosica.pp._explain import explain_no_gene_sets, hint, report_left_out
from tosica.pp._match_gene_sets import (
    LOW_COVERAGE,
    find_organism,
    match_gene_sets,
)
from tosica.pp._params import Identifiers, MaskParams
from tosica.pp._read_gene_sets import read_gene_sets
from tosica.pp._select import drop_similar, select_largest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from scipy.sparse import csr_matrix

    from tosica._types import AnnOrMuData
    from tosica.gs._gene_sets import GeneSets
    from tosica.pp._match_gene_sets import MatchedGeneSets
    from tosica.pp._read_gene_sets import GeneSetsLike

# Stands for human_gobp or mouse_gobp, depending on the data.
_GOBP = "gobp"
# The largest sets of a collection are nearly the same. Models without these repetitions are as
# accurate and easier to interpret.
_MAX_JACCARD = 0.5
# Most features with a token each: the cost of attention grows with the square of their number.
_MAX_FEATURES = 1000


@validate_params(
    max_jaccard=Fraction(zero=False, optional=True),
    organism=OneOf("auto", *ORGANISMS),
    identifiers=OneOf(*get_args(Identifiers)),
    groups=InstanceOf(
        "a dict of modality to groups of its features", Mapping, optional=True
    ),
    key_added=FileKey(),
)
def build_mask(
    adata: AnnOrMuData,
    gene_sets: GeneSetsLike = "gobp",
    *,
    min_genes: int = 5,
    max_genes: int = 300,
    max_gene_sets: int | None = None,
    max_jaccard: float | None = None,
    organism: str = "auto",
    identifiers: Identifiers = "auto",
    modalities: Mapping[str, str] | None = None,
    groups: Mapping[str, Any] | None = None,
    key_added: str = "tosica_mask",
    copy: bool = False,
) -> AnnOrMuData | None:
    """Build a mask of which genes are in which gene sets, for the tokens of the model.

    Gene sets are kept, in their order, if they list at most ``max_genes`` genes and at least
    ``min_genes`` of them are in the data. They are candidates for tokens. :class:`tosica.TOSICA`
    selects those that distinguish its labels, and groups genes outside of them into co-expression
    modules, so that every variable gene is in a named token.

    Genes are first matched to ``adata.var_names`` by their exact names. All others are then matched
    by identifier: Ensembl IDs with or without version, Entrez numbers, old symbols and aliases are
    translated, and the log reports it. ``adata.var_names`` do not change. Ambiguous names are
    listed in the log and left out. Each source of gene sets is matched for itself, so that joined
    sets match as well as alone.

    Parameters
    ----------
    adata
        The reference, ``(n_obs, n_vars)``. Only names of genes are read. For a MuData, each modality
        gets a mask: RNA and gene activity that of ``gene_sets``, antibodies one token each, or their
        ``groups``.
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
        - list of names and paths, joined by :func:`tosica.gs.join`.
    min_genes
        Smallest number of genes of a set that must be in the data.
    max_genes
        Largest number of genes that a set may list, whether they are in the data or not.
    max_gene_sets
        Largest number of gene sets to keep: those with the most genes in the data, and the earlier
        one in case of ties. By default all sets with a fitting size are kept.
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
        How genes are matched. ``"auto"``: by name, also with ``-`` for ``_`` and the other way round
        (Seurat exchanges them) if only one name fits, and all other genes by identifier. If neither
        ``var_names`` nor their translations match half of the genes, a text column of ``.var``
        (``gene_symbols``, ``gene_ids``, ``feature_name``, …) is used instead if it matches clearly
        better. ``"exact"``: by name only.
    modalities
        Role to name of the modalities of a MuData, as in :meth:`tosica.TOSICA.setup_mudata`. By
        default those of "rna" and "protein" that are there.
    groups
        For a MuData, name of a modality without gene sets, such as antibodies, to groups of its
        features, in any form of ``gene_sets``. Features are matched by exact name, and
        ``min_genes`` is 1. A modality without groups gets one token per feature.
    key_added
        Key of ``.varm`` and ``.uns`` to write to, for a MuData those of each modality. An older
        mask there is replaced.
    copy
        Return a changed copy, and do not change ``adata``.

    Returns
    -------
    AnnData, MuData or None
        The copy if ``copy=True``, else None. These fields are added, where ``n_gene_sets`` counts
        the gene sets that were kept:

        ``adata.varm[key_added]``
            Which gene is in which set, ``(n_vars, n_gene_sets)`` sparse bool
            (:class:`scipy.sparse.csr_matrix`).
        ``adata.uns[key_added]``
            A dict:

            - ``gene_sets``: names of the columns, ``(n_gene_sets,)``
            - ``source``: name of the collection or file, "dict" or "table"; several are joined by " + "
            - ``organism``: organism of the genes in the mask, "human", "mouse" or "unknown"
            - ``release``: release of the collection, else ""
            - ``matched_by``: "var_names", or the column of ``.var`` that was used instead
            - ``n_genes_mapped``: number of genes that were not matched by their exact name
            - ``params``: ``min_genes``, ``max_genes``, ``max_gene_sets``, ``max_jaccard`` and
              ``identifiers``
            - ``n_genes``: number of genes in the data
            - ``n_genes_covered``: number of genes in a gene set
            - ``coverage``: their share, 0 to 1
            - ``left_out`` and ``unknown_genes``: only for gene sets of your own, DataFrames of those
              that were not kept, with the ``reason``, and of ``gene`` names in them that are not in
              the data, with a ``similar`` one that is
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
        table lacks one of the two columns or gives a gene in a set two weights, ``gene_sets`` is empty,
        no set is kept (the message names
        the likely reason, such as lost names), the gene sets are of another organism (the message
        names the collection to use), the field of ``key_added`` is used for something else, there
        is no such collection (:func:`tosica.gs.load`), or a file is not GMT
        (:func:`tosica.gs.read_gmt`).
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
    The function has 12 parameters because it replaces four steps that depend on each other: read
    gene sets (``gene_sets``), match genes (``organism``, ``identifiers``), select sets
    (``min_genes`` to ``max_jaccard``), and write the mask (``key_added``, ``copy``; ``modalities``
    and ``groups`` for a MuData). All have defaults, and most calls pass none or one.

    A view becomes an actual AnnData with anndata's usual
    :class:`~anndata.ImplicitModificationWarning`, and its parent does not change. For a backed
    AnnData, the mask is added in memory only; the file changes when it is written. anndata cannot
    copy a backed AnnData or a view of it in memory: call ``.to_memory()`` before ``copy=True``, or
    before passing the view.

    With ``max_gene_sets=299``, ``max_jaccard=1`` and ``identifiers="exact"``, sets are selected and
    genes matched as by Chen et al., Nat. Commun. 14, 223 (2023), except that their code adds a
    column with every gene, and does not define which of several equally large sets are kept.

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
    params = MaskParams(
        min_genes=min_genes,
        max_genes=max_genes,
        max_gene_sets=max_gene_sets,
        max_jaccard=max_jaccard,
        organism=organism,
        identifiers=identifiers,
    )
    masks: dict[str | None, tuple[csr_matrix, dict[str, Any]]] = {}
    if isinstance(adata, MuData):
        plan = _plan_modalities(adata, gene_sets, params, modalities, groups)
        for name, sets, modality_params in plan:
            masks[name] = _compute_mask(adata[name], sets, modality_params, key_added)
    elif modalities is not None or groups is not None:
        raise TypeError(
            "modalities and groups are for a MuData, and adata is an AnnData."
        )
    else:
        load_annotations(adata)
        masks[None] = _compute_mask(adata, gene_sets, params, key_added)
    target = adata.copy() if copy else adata
    for modality_name, (mask, description) in masks.items():
        modality = target if modality_name is None else target[modality_name]
        modality.varm[key_added] = mask
        modality.uns[key_added] = description
    return target if copy else None


def _plan_modalities(
    mdata: MuData,
    gene_sets: GeneSetsLike,
    params: MaskParams,
    modalities: Mapping[str, str] | None,
    groups: Mapping[str, Any] | None,
) -> list[tuple[str, GeneSetsLike, MaskParams]]:
    """List the name, gene sets and parameters of each modality of a MuData."""
    check_mudata(mdata)
    if modalities is None:
        defaults = DEFAULT_MODALITIES.items()
        modalities = {role: name for role, name in defaults if name in mdata.mod}
    roles = resolve_modalities(mdata, modalities or None)
    groups = groups or {}
    panels = [
        name for role, name in roles.items() if not MODALITY_KINDS[role].has_gene_sets
    ]
    for name in groups:
        if name not in panels:
            raise KeyError(
                f"groups names {name!r}, but is for antibodies, here {panels}."
            )
    # Features of a panel are few and may have the names of other genes.
    panel_params = replace(params, min_genes=1, organism="auto", identifiers="exact")
    plan: list[tuple[str, GeneSetsLike, MaskParams]] = []
    for role, name in roles.items():
        logger.info("build_mask: modality %r (%s)", name, role)
        adata = mdata[name]
        kind = MODALITY_KINDS[role]
        kind.check_names(adata.var_names, f"mdata[{name!r}]")
        if kind.has_gene_sets:
            plan.append((name, gene_sets, params))
        elif name in groups:
            plan.append((name, groups[name], panel_params))
        elif adata.n_vars > _MAX_FEATURES:
            raise ValueError(
                f"mdata[{name!r}] has {adata.n_vars} features, too many for one token each (at most {_MAX_FEATURES}): "
                f"pass groups={{{name!r}: ...}}, or modalities= if its role is another."
            )
        else:
            single = replace(panel_params, max_gene_sets=None, source="single features")
            features = {str(feature): [feature] for feature in adata.var_names}
            plan.append((name, features, single))
    return plan


def _compute_mask(
    adata: AnnData, gene_sets: GeneSetsLike, params: MaskParams, key_added: str
) -> tuple[csr_matrix, dict[str, Any]]:
    """Compute the mask, ``(n_vars, n_gene_sets)`` bool, and its description for ``uns``."""
    _check_adata(adata, key_added)
    genes = GeneList(adata.var_names, adata.var)
    resolved = _resolve_gobp(gene_sets, genes, params.organism)
    listed = read_gene_sets(resolved)
    sources = [
        match_gene_sets(
            genes,
            of_source,
            params.organism,
            params.identifiers,
            # The choice of a collection has said which organism adata has.
            log_organism=resolved is gene_sets and of_source is listed[0],
            log_source=len(listed) > 1,
        )
        for of_source in listed
    ]
    gene_sets_on_data = concatenate([source.on_data(genes) for source in sources])
    mask, description = _select(genes, sources, gene_sets_on_data, params)
    n_vars = len(genes)
    n_covered = description["n_genes_covered"]
    covering = f"{format_thousands(n_covered)} of {format_thousands(n_vars)}"
    if n_covered < LOW_COVERAGE * n_vars:
        warn_user(
            f"only {100 * n_covered / n_vars:.2g} % of adata's genes ({covering}) are in a gene "
            f"set that was kept, so that all other genes are only in co-expression modules; "
            f"{hint(genes, sources) or 'pass gene sets with more of them'}."
        )
    sizes = mask.sizes
    n_candidates = format_thousands(len(gene_sets_on_data))
    logger.info(
        f"build_mask: kept {format_thousands(len(mask))} of {n_candidates} gene sets "
        f"({format_thousands(sizes.min())}–{format_thousands(sizes.max())} genes each), covering {covering} genes "
        f"({100 * n_covered / n_vars:.1f} %); added .varm[{key_added!r}] and .uns[{key_added!r}]"
    )
    return mask.members.T.tocsr(), description


def _check_adata(adata: AnnData, key_added: str) -> None:
    """Raise an error if no mask can be built, or if ``key_added`` holds anything but a mask."""
    if adata.n_obs == 0 or adata.n_vars == 0:
        raise ValueError(
            f"adata has no {'genes' if adata.n_obs else 'cells'} (shape {adata.n_obs} × {adata.n_vars}): undo a filter."
        )
    check_unique(adata.var_names, "var_names", "adata.var_names_make_unique()")
    mask = adata.varm.get(key_added)
    description = adata.uns.get(key_added)
    is_mask = mask is None or getattr(mask, "dtype", None) == np.dtype(bool)
    is_description = description is None or (
        isinstance(description, Mapping) and "gene_sets" in description
    )
    if not (is_mask and is_description):
        raise ValueError(
            f"adata.{'uns' if is_mask else 'varm'}[{key_added!r}] is not of build_mask: choose another key_added."
        )


def _resolve_gobp(
    gene_sets: GeneSetsLike, genes: GeneList, organism: str
) -> GeneSetsLike:
    """Replace "gobp", alone or in a list, by the collection of the organism of the data's genes."""
    if isinstance(gene_sets, list | tuple):
        if any(_is_gobp(source) for source in gene_sets):
            organism = _choose_organism(genes, organism)
            return [
                f"{organism}_{source}" if _is_gobp(source) else source
                for source in gene_sets
            ]
    elif _is_gobp(gene_sets):
        return f"{_choose_organism(genes, organism)}_{gene_sets}"
    return gene_sets


def _is_gobp(source: object) -> bool:
    return isinstance(source, str) and source.partition("@")[0] == _GOBP


def _choose_organism(genes: GeneList, organism: str) -> str:
    """Choose the organism of the Gene Ontology, and log the reason."""
    reason = f"organism={organism!r} was given"
    if organism == "auto":
        recognized, names, column = find_organism(genes)
        place = "" if column is None else f" in var[{column!r}]"
        if recognized is None:
            reason = "it is not clear whether adata holds human or mouse genes"
        elif recognized == "human" and names.upper_case_mouse:
            reason = f"adata's genes{place} are in capitals, as human genes are"
        else:
            reason = f"adata holds {recognized} genes{place} (by overlap)"
        organism = recognized or "human"
    logger.info("build_mask: took %s_%s, since %s", organism, _GOBP, reason)
    return organism


def _select(
    genes: GeneList,
    sources: Sequence[MatchedGeneSets],
    gene_sets: GeneSets,
    params: MaskParams,
) -> tuple[GeneSets, dict[str, Any]]:
    """Select the gene sets of the mask, and describe it for ``uns``."""
    n_listed = np.concatenate([source.listed.sizes for source in sources])
    fits = (gene_sets.sizes >= params.min_genes) & (n_listed <= params.max_genes)
    selected = np.flatnonzero(fits)
    if not len(selected):
        raise ValueError(
            explain_no_gene_sets(genes, sources, gene_sets, n_listed, params)
        )
    max_jaccard = params.max_jaccard
    if max_jaccard is None:
        max_jaccard = _MAX_JACCARD if gene_sets.is_named else 1.0
    fitting = gene_sets.subset(selected)
    selected = selected[drop_similar(fitting, n_listed[selected], max_jaccard)]
    if params.max_gene_sets is not None:
        distinct = gene_sets.subset(selected)
        selected = selected[select_largest(distinct, params.max_gene_sets)]
    mask = gene_sets.subset(selected)
    columns = [source.match.column or "var_names" for source in sources]
    organisms = [source.organism for source in sources if source.organism is not None]
    translated = [source.match.rows[source.match.n_by_name :] for source in sources]
    n_covered = len(np.unique(mask.members.indices))
    description = {
        "gene_sets": mask.names,
        "source": params.source or gene_sets.source,
        "organism": organisms[0] if organisms else "unknown",
        "release": gene_sets.release,
        "matched_by": " + ".join(dict.fromkeys(columns)),
        "n_genes_mapped": len(np.unique(np.concatenate(translated))),
        "params": params.stored(max_jaccard),
        **report_left_out(genes, sources, gene_sets, n_listed, selected, params),
        "n_genes": len(genes),
        "n_genes_covered": n_covered,
        "coverage": n_covered / len(genes),
    }
    if mask.weights is not None:
        pairs = mask.weights.sort_values(["gene_set", "gene"])
        table = pd.DataFrame(index=np.arange(len(pairs)).astype(str).astype(object))
        table["gene"] = mask.gene_names.to_numpy(dtype=object)[pairs["gene"]]
        table["gene_set"] = pd.Categorical.from_codes(
            pairs["gene_set"], pd.Index(mask.names)
        )
        table["weight"] = pairs["weight"].to_numpy(dtype=np.float32)
        description["weights"] = table
    return mask, description
