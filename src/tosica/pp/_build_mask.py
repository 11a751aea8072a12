"""Build the mask of genes and gene sets that defines the tokens of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mudata import MuData

from tosica._validation import check_data, check_flags, check_key_added
from tosica.data import load_annotations
from tosica.pp._build_masks import build_masks
from tosica.pp._mask import compute_mask
from tosica.pp._mask_params import MaskParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData

    from tosica.gs._match_genes import Identifiers
    from tosica.pp._read_gene_sets import GeneSetsLike
    from tosica.pp._select_gene_sets import Select


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
        Largest Jaccard index, above 0, of the genes in the data of two sets that are kept. Sets are
        considered in the order of ``select``, and skipped if they are too similar to a kept one; 1
        keeps all. None is 0.5 for named collections, in which many sets are nearly the same, and 1
        for gene sets of your own.
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
    params = MaskParams(
        min_genes=min_genes,
        max_genes=max_genes,
        max_gene_sets=max_gene_sets,
        n_unannotated=n_unannotated,
        mask_ratio=mask_ratio,
        seed=seed,
        select=select,
        max_jaccard=max_jaccard,
        organism=organism,
        identifiers=identifiers,
        layer=layer,
    )
    check_data(adata, mudata=True)
    check_flags(copy=copy)
    if isinstance(adata, MuData):
        check_key_added(key_added)
        return build_masks(
            adata,
            gene_sets,
            params,
            modalities=modalities,
            groups=groups,
            key_added=key_added,
            copy=copy,
        )
    if modalities is not None or groups is not None:
        raise TypeError("modalities and groups are for a MuData, and adata is an AnnData.")
    load_annotations(adata)
    mask = compute_mask(adata, gene_sets, params, key_added)
    result = adata.copy() if copy else adata
    mask.write(result, key_added)
    return result if copy else None
