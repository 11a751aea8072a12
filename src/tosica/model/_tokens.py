"""Choose the tokens: gene sets that separate the labels, and co-expression modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._settings import logger
from tosica._text import argument
from tosica.linear import LabeledRows, fit_regressions, subsample_by_label
from tosica.model._fields import MaskField
from tosica.model._modalities import field_keys, open_matrix, read_modalities
from tosica.module import REGISTRY_KEYS
from tosica.pp._modules import coexpression_sets

if TYPE_CHECKING:
    from tosica._types import FloatArray, IntArray, ObjectArray
    from tosica.model._modalities import Modality
    from tosica.model._setup import SetupMixin

# The choice hardly changes with more cells.
_MAX_CELLS = 2_000


class _LabeledExpression(NamedTuple):
    """Log-normalized expression, ``(n_cells, n_genes)``, and codes of the labels."""

    x: sp.csr_matrix
    codes: IntArray


def select_tokens(model: SetupMixin, max_gene_sets: int | None, modules: bool) -> None:
    """Replace the candidate gene sets in a model's registry by the chosen tokens.

    Tokens that were chosen earlier, such as those of a saved model, stay.

    Parameters
    ----------
    model
        The model, with its reference.
    max_gene_sets, modules
        As in :class:`tosica.TOSICA`, for each modality whose tokens are gene sets.

    Raises
    ------
    ValueError
        If there are more tokens than memory allows.
    """
    modalities = [m for m in model.modalities if m.kind.has_gene_sets]
    for modality in modalities:
        # Tokens of the original code's models mix gene sets.
        if MaskField.COLUMNS_KEY in modality.mask or modality.mask.get(
            MaskField.MIXED_KEY
        ):
            return
    fields = dict(model.registry_["field_registries"])
    n_tokens = 0
    for modality in modalities:
        state = _choose_tokens(model, modality, max_gene_sets, modules)
        _, mask_field = field_keys(modality.kind.role, modality.name)
        fields[mask_field] = fields[mask_field] | {"state_registry": state}
        n_tokens += len(state["gene_sets"])
    _check_memory(n_tokens)
    model.registry_ = model.registry_ | {"field_registries": fields}
    model.modalities = read_modalities(model.registry_)


def _choose_tokens(
    model: SetupMixin, modality: Modality, max_gene_sets: int | None, modules: bool
) -> dict[str, Any]:
    """Choose the tokens of one modality, and get the state of its mask with them.

    Genes in none of the chosen gene sets are put into modules, which come after the gene sets.
    Unannotated tokens come last.
    """
    mask = modality.mask
    names = np.asarray(mask["gene_sets"])
    n_sets = len(names) - int(mask["n_unannotated"])
    gene_names = modality.genes.to_numpy()
    all_tokens = sp.csr_matrix(
        (np.ones(len(mask["genes"])), mask["genes"], mask["indptr"]),
        shape=(len(names), len(gene_names)),
    )
    candidates = all_tokens[:n_sets]
    # A token of every gene leaves none for modules.
    modules = modules and n_sets == len(names)
    is_too_many = max_gene_sets is not None and n_sets > max_gene_sets
    columns = np.arange(n_sets)
    module_names: list[str] = []
    module_rows = sp.csr_matrix((0, len(gene_names)))
    if modules or is_too_many:
        cells = _read_cells(model, modality)
    if is_too_many:
        score = _score_gene_sets(cells, candidates, gene_names, modules)
        columns = np.sort(np.argsort(-score, kind="stable")[:max_gene_sets])
    if modules:
        module_names, module_rows = _find_modules(
            cells.x, candidates[columns], gene_names
        )
    n_modules = len(module_names)
    if n_modules or len(columns) < n_sets:
        logger.info(
            "TOSICA: %d of %d gene sets and %d modules of genes that none of them holds are tokens%s",
            len(columns),
            n_sets,
            n_modules,
            "" if modality.name is None else f" of {modality.name!r}",
        )
    tokens = sp.vstack(
        [candidates[columns], module_rows, all_tokens[n_sets:]], format="csr"
    )
    names_key, indptr_key, genes_key = MaskField.COLLECTION_KEYS
    return {
        **mask,
        "gene_sets": np.array(
            [*names[columns], *module_names, *names[n_sets:]], dtype=object
        ),
        "indptr": tokens.indptr.astype(np.int64),
        "genes": tokens.indices.astype(np.int64),
        MaskField.COLUMNS_KEY: np.concatenate(
            [columns, np.full(n_modules, -1), np.arange(n_sets, len(names))],
            dtype=np.int64,
        ),
        MaskField.MODULES_KEY: n_modules,
        names_key: names[:n_sets],
        indptr_key: candidates.indptr.astype(np.int32),
        genes_key: candidates.indices.astype(np.int32),
    }


def _read_cells(model: SetupMixin, modality: Modality) -> _LabeledExpression:
    """Read expression and labels of some labeled cells."""
    labels = model._registered_codes(REGISTRY_KEYS.LABELS_KEY)
    cells = subsample_by_label(labels, _MAX_CELLS)
    codes = np.unique(labels[cells], return_inverse=True)[1]
    matrix = open_matrix(model.adata, [modality])
    rows = LabeledRows(matrix, cells, codes, (modality.slice(),))
    return _LabeledExpression(rows.expression(), codes)


def _score_gene_sets(
    cells: _LabeledExpression,
    candidates: sp.csr_matrix,
    gene_names: ObjectArray,
    modules: bool,
) -> FloatArray:
    """Score gene sets by a group lasso over all of them, and over modules of the other genes.

    The score of a gene set is its largest share, over the labels, in the sum of the norms of
    all gene sets' weights, ``(n_candidates,)``.
    """
    gene_sets = candidates
    if modules:
        _, module_rows = _find_modules(cells.x, candidates, gene_names)
        gene_sets = sp.vstack([candidates, module_rows], format="csr")
    fitted = fit_regressions(cells.x, cells.codes, gene_sets=gene_sets)
    n_genes = np.asarray(gene_sets.sum(1)).ravel()
    norms = fitted.relevance * np.sqrt(n_genes)
    total = norms.sum(1, keepdims=True)
    shares: FloatArray = np.divide(
        norms, total, out=np.zeros_like(norms), where=total > 0
    )
    return shares.max(0)[: candidates.shape[0]]


def _find_modules(
    x: sp.csr_matrix, gene_sets: sp.csr_matrix, gene_names: ObjectArray
) -> tuple[list[str], sp.csr_matrix]:
    """Find co-expression modules of genes in no gene set: names, and a row of genes for each."""
    is_in_set = np.asarray(gene_sets.sum(0)).ravel() > 0
    names, modules = coexpression_sets(x, np.flatnonzero(~is_in_set), gene_names)
    genes = np.concatenate([np.empty(0, dtype=np.int64), *modules])
    indptr = np.cumsum([0, *map(len, modules)])
    rows = sp.csr_matrix(
        (np.ones(len(genes)), genes, indptr), shape=(len(modules), len(gene_names))
    )
    return names, rows


def _check_memory(n_tokens: int) -> None:
    """Refuse a number of tokens at which the attention of one cell exceeds the memory."""
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Attention weights of one cell: a few heads, single precision, forward and backward.
    required = 64 * n_tokens**2
    if required > memory:
        limit = int((memory / 64) ** 0.5)
        raise ValueError(
            f"{n_tokens} tokens are more than this machine's memory allows, since every token "
            f"attends to every other: choose at most {limit} with {argument('max_gene_sets')}."
        )
