"""Choose the tokens: gene sets that separate the labels, and co-expression modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._settings import logger
from tosica.data import CellMatrix, JointMatrix, pair_weights
from tosica.linear import fit_logistic_regression, read_normalized, subsample_by_label
from tosica.model._fields import MaskField
from tosica.model._labels_field import LabelsField
from tosica.model._modalities import field_keys, is_joint, read_modalities
from tosica.module import REGISTRY_KEYS
from tosica.pp._select import coexpression_sets

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray

    from tosica.model._modalities import Modality
    from tosica.model._setup import SetupMixin

# The choice hardly changes with more cells.
_MAX_CELLS = 2_000


def select_tokens(
    registry: dict[str, Any],
    adata: AnnData | MuData,
    codes_of: Callable[[str], NDArray[np.integer]],
    max_gene_sets: int | None,
    modules: bool,
) -> dict[str, Any]:
    """Replace the candidate gene sets in a registry by the chosen tokens.

    Parameters
    ----------
    registry
        Registry that :meth:`tosica.TOSICA.setup_anndata` made; it is not changed. Tokens that were
        chosen before, such as those of a saved model, stay.
    adata
        The reference.
    codes_of
        Returns the codes of a registered field, in the order of the reference's cells.
    max_gene_sets, modules
        As in :class:`tosica.TOSICA`, for each modality whose tokens are gene sets.

    Raises
    ------
    ValueError
        If there are more tokens than memory allows.
    """
    joint = is_joint(registry)
    fields = registry["field_registries"]
    modalities = [m for m in read_modalities(registry) if m.kind.has_gene_sets]
    # A loaded model has its tokens already; tokens of the original code's models mix gene sets.
    if any(MaskField.COLUMNS_KEY in m.mask or m.mask.get(MaskField.MIXED_KEY) for m in modalities):
        return registry
    of_labels = fields[REGISTRY_KEYS.LABELS_KEY]["state_registry"]
    known = np.asarray(of_labels[LabelsField.CATEGORICAL_MAPPING_KEY], dtype=object)
    labels = codes_of(REGISTRY_KEYS.LABELS_KEY).astype(np.int64)
    labels = np.where(known[labels] == of_labels[LabelsField.UNLABELED_KEY], -1, labels)
    changed = {}
    for modality in modalities:
        rows: CellMatrix | JointMatrix
        if joint:
            key = field_keys(modality.kind.role)[1]
            rows = JointMatrix(adata, {str(modality.name): modality.layer})
        else:
            key, rows = REGISTRY_KEYS.MASK_KEY, CellMatrix(adata, layer=modality.layer)
        state = _select_tokens(modality, rows, labels, max_gene_sets, modules)
        changed[key] = {**fields[key], "state_registry": state}
    _check_memory(sum(len(field["state_registry"]["gene_sets"]) for field in changed.values()))
    return {**registry, "field_registries": {**fields, **changed}}


def _select_tokens(
    modality: Modality,
    rows: CellMatrix | JointMatrix,
    labels: NDArray[np.integer],
    max_gene_sets: int | None,
    modules: bool,
) -> dict[str, Any]:
    """Choose the tokens of one modality, and get the state of its mask with them."""
    state = modality.mask
    n_unannotated = int(state["n_unannotated"])
    n_sets = len(state["gene_sets"]) - n_unannotated
    indptr, genes = np.asarray(state["indptr"]), np.asarray(state["genes"])
    candidates = sp.csr_matrix(
        (np.ones(indptr[n_sets]), genes[: indptr[n_sets]], indptr[: n_sets + 1]), shape=(n_sets, len(modality.genes))
    )
    names = np.asarray(state["gene_sets"], dtype=object)
    chosen = choose_tokens(
        lambda cells: read_normalized(rows, cells, modality.slice),
        labels,
        candidates,
        names[:n_sets],
        modality.genes.to_numpy(),
        max_gene_sets=n_sets if max_gene_sets is None else max_gene_sets,
        modules=modules and n_unannotated == 0,
    )
    n_modules = int((chosen.columns < 0).sum())
    if n_modules or len(chosen.names) < n_sets:
        logger.info(
            "TOSICA: %d of %d gene sets and %d modules of genes that none of them holds are tokens%s",
            len(chosen.names) - n_modules,
            n_sets,
            n_modules,
            "" if modality.name is None else f" of {modality.name!r}",
        )
    collection = names[:n_sets], indptr[: n_sets + 1].astype(np.int32), genes[: indptr[n_sets]].astype(np.int32)
    return {
        **state,
        "gene_sets": np.append(chosen.names, names[n_sets:]),
        "indptr": np.append(chosen.indptr, chosen.indptr[-1] + indptr[n_sets + 1 :] - indptr[n_sets]),
        "genes": np.append(chosen.genes, genes[indptr[n_sets] :]),
        MaskField.COLUMNS_KEY: np.append(chosen.columns, np.arange(n_sets, len(names), dtype=np.int64)),
        MaskField.MODULES_KEY: n_modules,
        **dict(zip(MaskField.COLLECTION_KEYS, collection, strict=True)),
    }


def _check_memory(n_tokens: int) -> None:
    """Refuse a number of tokens at which the attention of one cell exceeds the memory."""
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Attention weights of one cell: a few heads, single precision, forward and backward.
    needed = 64 * n_tokens**2
    if needed > memory:
        limit = int((memory / 64) ** 0.5)
        raise ValueError(
            f"{n_tokens} tokens are more than this machine's memory allows, since every token "
            f"attends to every other: choose at most {limit} with max_gene_sets."
        )


def read_network_weights(model: SetupMixin) -> np.ndarray:
    """Read the network's weights of pairs of gene and token, in the order of the embedding."""
    registry = model.adata_manager.data_registry
    if not is_joint(model.registry_):
        state = model.modalities[0].mask
        return pair_weights(model.adata, registry[REGISTRY_KEYS.MASK_KEY]["attr_key"], state)
    found: list[np.ndarray | None] = []
    error: KeyError | None = None
    for modality in model.modalities:
        key = registry[field_keys(modality.kind.role)[1]]["attr_key"]
        try:
            found.append(pair_weights(model.adata[modality.name], key, modality.mask))
        except KeyError as missing:
            found.append(None)
            error = missing
    # Antibodies rarely have a network; weights in one modality are enough.
    if error is not None and all(weights is None for weights in found):
        raise error
    return model.tokens.join_pairs(found)


class Tokens(NamedTuple):
    """Chosen tokens: their names, and their genes as ``indptr`` and ``indices`` of a CSC matrix.

    ``columns`` are the positions of the tokens among the candidates, -1 for modules.
    """

    names: NDArray[np.object_]
    indptr: NDArray[np.int64]
    genes: NDArray[np.int64]
    columns: NDArray[np.int64]


def choose_tokens(
    read: Callable[[NDArray[np.integer]], sp.csr_matrix],
    labels: NDArray[np.integer],
    candidates: sp.csr_matrix,
    names: NDArray[np.object_],
    gene_names: NDArray[np.object_],
    *,
    max_gene_sets: int,
    modules: bool,
    max_cells: int = _MAX_CELLS,
) -> Tokens:
    """Choose gene sets by a group lasso over all candidates; put the other genes into modules.

    The regression of :func:`~tosica.linear.fit_logistic_regression` goes
    through all candidates. The score of a gene set is its largest share, over the labels, in the
    sum of the norms of all gene sets' weights. Genes in none of the chosen gene sets are put into
    co-expression modules.

    Parameters
    ----------
    read
        Returns log-normalized expression, ``(n, n_genes)``, of cells given by their positions in
        ``labels``.
    labels
        Code of each cell's label, -1 for none, shape ``(n_cells,)``.
    candidates
        Which gene is in which gene set, shape ``(n_gene_sets, n_genes)``.
    names
        Names of the gene sets.
    gene_names
        Names of the genes.
    max_gene_sets
        Largest number of gene sets to choose. If there are no more candidates, all are taken.
    modules
        Whether to make modules.
    max_cells
        Largest number of cells to fit the regression to.

    Returns
    -------
    The tokens: gene sets in the order of the candidates, then modules.
    """
    chosen = np.arange(candidates.shape[0])
    x: sp.csr_matrix | None = None
    if modules or len(chosen) > max_gene_sets:
        known = np.flatnonzero(labels >= 0)
        drawn = known[subsample_by_label(labels[known], max_cells)]
        _, codes = np.unique(labels[drawn], return_inverse=True)
        x = read(drawn)
    if x is not None and len(chosen) > max_gene_sets:
        _, extra = _modules(x, candidates, gene_names) if modules else ([], [])
        given = sp.vstack([candidates, _members(extra, candidates.shape[1])]).tocsr()
        found = fit_logistic_regression(x, codes, gene_sets=given)
        assert found.relevance is not None
        norms = found.relevance * np.sqrt(np.asarray(given.sum(1)).ravel())
        total = norms.sum(1, keepdims=True)
        shares = np.divide(norms, total, out=np.zeros_like(norms), where=total > 0)
        score = shares.max(0)[: len(chosen)]
        chosen = np.sort(np.argsort(-score, kind="stable")[:max_gene_sets])
    members = candidates[chosen]
    members.sort_indices()
    module_names: list[str] = []
    of_modules: list[NDArray[np.integer]] = []
    if modules and x is not None:
        module_names, of_modules = _modules(x, members, gene_names)
    tokens = sp.vstack([members, _members(of_modules, candidates.shape[1])]).tocsr()
    return Tokens(
        np.array([*names[chosen], *module_names], dtype=object),
        tokens.indptr.astype(np.int64),
        tokens.indices.astype(np.int64),
        np.append(chosen, np.full(len(of_modules), -1)).astype(np.int64),
    )


def _modules(
    x: sp.csr_matrix, members: sp.csr_matrix, gene_names: NDArray[np.object_]
) -> tuple[list[str], list[NDArray[np.integer]]]:
    held = np.asarray(members.sum(0)).ravel() > 0
    return coexpression_sets(x, np.flatnonzero(~held), gene_names)


def _members(modules: list[NDArray[np.integer]], n_genes: int) -> sp.csr_matrix:
    sizes = [len(genes) for genes in modules]
    indices = np.concatenate(modules) if modules else np.empty(0, dtype=np.int64)
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return sp.csr_matrix((np.ones(len(indices)), indices, indptr), shape=(len(modules), n_genes))
