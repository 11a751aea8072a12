"""Choose the tokens: gene sets that separate the labels, co-expression modules; weights of a network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from scipy.sparse import coo_matrix, csr_matrix

from tosica._checks import validate_params
from tosica._settings import logger
from tosica.linear import LabeledRows, fit_regressions, subsample_by_label
from tosica.model._fields import MaskField
from tosica.model._modalities import field_keys, open_matrix, read_modalities
from tosica.module import REGISTRY_KEYS
from tosica.pp._modules import coexpression_sets

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model._modalities import Modality
    from tosica.model._setup import SetupMixin

# The choice hardly changes with more cells.
_MAX_CELLS = 2_000


def select_tokens(model: SetupMixin, max_gene_sets: int | None, modules: bool) -> None:
    """Replace the candidate gene sets in a model's registry by the chosen tokens.

    Tokens that were chosen before, such as those of a saved model, stay.

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
    # Tokens of the original code's models mix gene sets.
    if any(
        MaskField.COLUMNS_KEY in m.mask or m.mask.get(MaskField.MIXED_KEY)
        for m in modalities
    ):
        return
    fields, n_tokens = dict(model.registry_["field_registries"]), 0
    for modality in modalities:
        state = _choose(model, modality, max_gene_sets, modules)
        key = field_keys(modality.kind.role, modality.name)[1]
        fields[key] = fields[key] | {"state_registry": state}
        n_tokens += len(state["gene_sets"])
    _check_memory(n_tokens)
    model.registry_ = model.registry_ | {"field_registries": fields}
    model.modalities = read_modalities(model.registry_)


def _choose(
    model: SetupMixin, modality: Modality, max_gene_sets: int | None, modules: bool
) -> dict[str, Any]:
    """Choose the tokens of one modality, and get the state of its mask with them.

    If there are too many gene sets, they are chosen by a group lasso over all of them, with a
    co-expression module for each group of other genes. The score of a gene set is its largest share,
    over the labels, in the sum of the norms of all gene sets' weights. Genes in none of the chosen
    gene sets are put into modules, which come after the gene sets.
    """
    state, gene_names = modality.mask, modality.genes.to_numpy()
    names, indptr, genes = (
        np.asarray(state[key]) for key in ("gene_sets", "indptr", "genes")
    )
    n_sets = len(names) - int(state["n_unannotated"])
    inside = indptr[n_sets]
    candidates = sp.csr_matrix(
        (np.ones(inside), genes[:inside], indptr[: n_sets + 1]),
        shape=(n_sets, len(gene_names)),
    )
    # A token of every gene leaves none for modules.
    modules = modules and n_sets == len(names)
    chosen, is_too_many = (
        np.arange(n_sets),
        max_gene_sets is not None and n_sets > max_gene_sets,
    )
    module_names: list[str] = []
    others: list[NDArray[np.integer]] = []
    if modules or is_too_many:
        x, codes = _read_cells(model, modality)
    if is_too_many:
        extra = _modules(x, candidates, gene_names)[1] if modules else []
        score = _score_gene_sets(
            x, codes, sp.vstack([candidates, _as_rows(extra, len(gene_names))]).tocsr()
        )
        chosen = np.sort(np.argsort(-score[:n_sets], kind="stable")[:max_gene_sets])
    members = candidates[chosen]
    members.sort_indices()
    if modules:
        module_names, others = _modules(x, members, gene_names)
    tokens = sp.vstack([members, _as_rows(others, len(gene_names))]).tocsr()
    if others or len(chosen) < n_sets:
        logger.info(
            "TOSICA: %d of %d gene sets and %d modules of genes that none of them holds are tokens%s",
            len(chosen),
            n_sets,
            len(others),
            "" if modality.name is None else f" of {modality.name!r}",
        )
    collection = (
        names[:n_sets],
        indptr[: n_sets + 1].astype(np.int32),
        genes[: indptr[n_sets]].astype(np.int32),
    )
    return {
        **state,
        "gene_sets": np.array(
            [*names[chosen], *module_names, *names[n_sets:]], dtype=object
        ),
        "indptr": np.append(
            tokens.indptr, tokens.indptr[-1] + indptr[n_sets + 1 :] - inside
        ).astype(np.int64),
        "genes": np.append(tokens.indices, genes[inside:]).astype(np.int64),
        MaskField.COLUMNS_KEY: np.concatenate(
            [chosen, np.full(len(others), -1), np.arange(n_sets, len(names))],
            dtype=np.int64,
        ),
        MaskField.MODULES_KEY: len(others),
        **dict(zip(MaskField.COLLECTION_KEYS, collection, strict=True)),
    }


def _read_cells(
    model: SetupMixin, modality: Modality
) -> tuple[sp.csr_matrix, NDArray[np.integer]]:
    """Read expression and labels of some labelled cells."""
    labels = model._codes(REGISTRY_KEYS.LABELS_KEY)
    known = np.flatnonzero(labels >= 0)
    drawn = known[subsample_by_label(labels[known], _MAX_CELLS)]
    rows = open_matrix(model.adata, [modality])
    codes = np.unique(labels[drawn], return_inverse=True)[1]
    return LabeledRows(rows, drawn, codes, (modality.slice(),)).expression(), codes


def _score_gene_sets(
    x: sp.csr_matrix, codes: NDArray[np.integer], gene_sets: sp.csr_matrix
) -> NDArray[np.floating]:
    norms = fit_regressions(x, codes, gene_sets=gene_sets).relevance * np.sqrt(
        np.asarray(gene_sets.sum(1)).ravel()
    )
    total = norms.sum(1, keepdims=True)
    shares: NDArray[np.floating] = np.divide(
        norms, total, out=np.zeros_like(norms), where=total > 0
    )
    return shares.max(0)


def _modules(
    x: sp.csr_matrix, members: sp.csr_matrix, gene_names: NDArray[np.object_]
) -> tuple[list[str], list[NDArray[np.integer]]]:
    held = np.asarray(members.sum(0)).ravel() > 0
    return coexpression_sets(x, np.flatnonzero(~held), gene_names)


def _as_rows(modules: list[NDArray[np.integer]], n_genes: int) -> sp.csr_matrix:
    sizes = [len(genes) for genes in modules]
    genes = np.concatenate([np.empty(0, dtype=np.int64), *modules])
    return sp.csr_matrix(
        (np.ones(len(genes)), genes, np.cumsum([0, *sizes])),
        shape=(len(modules), n_genes),
    )


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
    """Read the network's weights of pairs of gene and token, in the order of the embedding.

    Antibodies rarely have a network; weights in one modality are enough.
    """
    found: list[np.ndarray | None] = []
    missing: KeyError | None = None
    for modality in model.modalities:
        field = model.adata_manager.data_registry[
            field_keys(modality.kind.role, modality.name)[1]
        ]
        try:
            data = model.adata if modality.name is None else model.adata[modality.name]
            found.append(pair_weights(data, field["attr_key"], modality.mask))
        except KeyError as error:
            found.append(None)
            missing = error
    if missing is not None and all(weights is None for weights in found):
        raise missing
    return model.tokens.join_pairs(found)


# ------------------------------------------------------------------------------- weights of a network


@validate_params()
def network_weights(adata: AnnData, *, key: str = "tosica_mask") -> csr_matrix:
    """Get the signed weight of each gene in each gene set, from the network of the mask.

    Parameters
    ----------
    adata
        Reference with a mask from a table with a column ``weight``. It is not changed.
    key
        ``key_added`` of :func:`tosica.pp.build_mask`.

    Returns
    -------
    scipy.sparse.csr_matrix
        ``(n_vars, n_gene_sets)`` float32, rows and columns as those of ``adata.varm[key]``. An
        entry is stored where there is a weight, even if it is zero; fully connected columns have
        none.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no mask, or it was built from gene sets without weights.

    See Also
    --------
    tosica.TOSICA.start_from_network : starts training with them.

    Examples
    --------
    >>> import pandas as pd
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> network = pd.DataFrame(
    ...     {
    ...         "source": ["SPI1", "SPI1", "PAX5", "PAX5"],
    ...         "target": ["LYZ", "CST3", "CD79A", "LYZ"],
    ...         "weight": [1.0, 0.5, 2.0, -1.0],
    ...     }
    ... )
    >>> adata = adata[:, ["LYZ", "CST3", "CD79A"]].copy()
    >>> tosica.pp.build_mask(adata, network, min_genes=2)
    >>> tosica.get.network_weights(adata).toarray()
    array([[ 1. , -1. ],
           [ 0.5,  0. ],
           [ 0. ,  2. ]], dtype=float32)
    """
    mask = adata.uns.get(key)
    if (
        not isinstance(mask, Mapping)
        or "gene_sets" not in mask
        or "weights" not in mask
    ):
        raise KeyError(
            f"There is no mask in adata.uns[{key!r}], or it was built from gene sets without weights: call "
            "tosica.pp.build_mask with a table that has a column 'weight'."
        )
    table = mask["weights"]
    gene_sets = pd.Index(np.asarray(mask["gene_sets"], dtype=object))
    row = adata.var_names.get_indexer(pd.Index(table["gene"]))
    column = gene_sets.get_indexer(
        pd.Index(table["gene_set"].astype(str), dtype=object)
    )
    # Genes may have been left out since.
    found = (row >= 0) & (column >= 0)
    values = table["weight"].to_numpy(dtype=np.float32)[found]
    return coo_matrix(
        (values, (row[found], column[found])), shape=(adata.n_vars, len(gene_sets))
    ).tocsr()


def pair_weights(adata: AnnData, mask_key: str, state: dict[str, Any]) -> np.ndarray:
    """Get the weight of each pair of gene and token, ordered by token.

    Parameters
    ----------
    adata
        Reference with a mask from a network with weights.
    mask_key
        Key of the mask.
    state
        The mask as the model saves it: ``indptr``, ``genes`` and ``columns``.

    Returns
    -------
    Shape ``(n_pairs,)``, float32; NaN where the network has no weight.
    """
    weights = network_weights(adata, key=mask_key).tocoo()
    n_genes, n_columns = adata.varm[mask_key].shape
    columns = np.asarray(state.get("columns", np.arange(n_columns)))
    indptr, genes = np.asarray(state["indptr"]), np.asarray(state["genes"])
    token_of_column = np.full(n_columns, -1)
    token_of_column[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
    # Numbered, not multiplied: a weight may be zero.
    number = sp.csc_matrix(
        (np.arange(1, len(genes) + 1), genes, indptr), shape=(n_genes, len(columns))
    )
    token = token_of_column[weights.col]
    is_token = token >= 0
    pair = np.asarray(number[weights.row[is_token], token[is_token]]).ravel()
    pairs = np.full(len(genes), np.nan, dtype=np.float32)
    inside = pair > 0
    pairs[pair[inside] - 1] = weights.data[is_token][inside]
    return pairs
