"""Weights of genes in gene sets, as a tidy table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from tosica._annotated import find_gene_sets
from tosica._validation import check_choice, check_count
from tosica.model._check_model import check_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica.model import TOSICA


def gene_weights(
    model: TOSICA,
    gene_sets: str | Iterable[str] | None = None,
    *,
    how: Literal["mean", "max"] = "mean",
    n_genes: int | None = None,
) -> pd.DataFrame:
    """Weight of each gene in each gene set, as a tidy table with one row a pair.

    The weights are those of :meth:`tosica.TOSICA.get_gene_weights`; pairs outside the mask are left
    out.

    Parameters
    ----------
    model
        The model. Before training its weights are random.
    gene_sets
        Gene set or gene sets to return, in this order; ``None`` returns all, without the
        unannotated tokens.
    how
        ``"mean"`` of the absolute weights over the dimensions of the embedding (the paper,
        :cite:t:`Chen2023`), or ``"max"`` (the paper's code).
    n_genes
        Genes to keep of each gene set, from the highest weight down; ``None`` keeps all.

    Returns
    -------
    DataFrame, sorted by gene set and, within one, from the highest weight down:

    ``gene_set``
        Name of the gene set (categorical).
    ``gene``
        Name of the gene.
    ``weight``
        Float32, at least 0, without a unit.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If there is no such gene set; similar names are suggested.
    ValueError
        If ``how`` is unknown, ``n_genes`` is below 1, or ``gene_sets`` is empty.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> ref = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(ref, max_gene_sets=50)
    >>> tosica.TOSICA.setup_anndata(ref, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(ref, embed_dim=8)
    >>> table = tosica.get.gene_weights(model, model.gene_sets[0], n_genes=3)
    >>> table.shape
    (3, 3)
    """
    check_model(model)
    check_choice("how", how, ("mean", "max"))
    check_count("n_genes", n_genes, optional=True)
    names = model.gene_sets
    wanted = names if gene_sets is None else find_gene_sets(gene_sets, names, "the model")
    weights = model.get_gene_weights(how)
    indptr = model.module.embedding.indptr.cpu().numpy()
    genes = model.module.embedding.genes.cpu().numpy()
    positions = {name: i for i, name in reversed(list(enumerate(names)))}
    columns = range(len(names)) if gene_sets is None else [positions[name] for name in wanted]
    values = weights.to_numpy()
    rows: list[np.ndarray] = []
    kept_weights: list[np.ndarray] = []
    for column in columns:
        members = genes[indptr[column] : indptr[column + 1]]
        order = members[np.argsort(-values[members, column], kind="stable")][:n_genes]
        rows.append(order)
        kept_weights.append(values[order, column])
    sizes = [len(part) for part in rows]
    categories = pd.Index(dict.fromkeys(names[column] for column in columns))
    codes = categories.get_indexer(pd.Index([names[column] for column in columns]))
    return pd.DataFrame(
        {
            "gene_set": pd.Categorical.from_codes(np.repeat(codes, sizes), categories),
            "gene": weights.index.to_numpy()[np.concatenate(rows)],
            "weight": np.concatenate(kept_weights),
        }
    )
