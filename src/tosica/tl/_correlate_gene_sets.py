"""Correlation of attention with a stage, an age or a pseudotime."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from tosica._annotated import read_attention
from tosica._groups import missing_column, read_groups
from tosica._logging import logger
from tosica._validation import check_flags, check_key_added, check_string, list_names

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

_MIN_REPLICATES = 4


def correlate_gene_sets(
    adata: AnnData,
    obs_key: str,
    *,
    groupby: str | None = None,
    sample_key: str | None = None,
    key: str = "tosica",
    key_added: str = "correlate_gene_sets",
    copy: bool = False,
) -> AnnData | None:
    """Find the gene sets that follow a pseudotime, an age or a stage, by rank correlation.

    The correlation is Spearman's, so only the order of the numbers matters.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    obs_key
        Column of ``adata.obs`` with numbers (an age, a pseudotime, a dose), or with an ordered
        categorical (a stage). Cells in which it is missing or infinite are left out.
    groupby
        Column of ``adata.obs``, such as the cell types; correlations are computed in each group. By
        default all cells are one group. Groups with fewer than four replicates, or in which the
        number is constant, are left out with a warning.
    sample_key
        Column of ``adata.obs`` with the samples, which are the replicates then: attention and
        number are averaged over each sample's cells in the group. Without it, p-values are too
        small where the number belongs to the sample, as an age does, because cells of a sample are
        not independent.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Key of ``adata.uns`` for the result.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written is a table, one row a group and gene set,
    from the highest absolute correlation down:

    ``adata.uns[key_added]``
        DataFrame with the columns ``group`` (``"all"`` without ``groupby``), ``gene_set``,
        ``correlation`` (−1 to 1; 0 where attention is constant), ``pval`` (two-sided, by
        Student's t as in :func:`scipy.stats.spearmanr`), ``pval_adj`` (Benjamini and Hochberg,
        over the gene sets of a group) and ``n`` (cells, or samples).

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If ``obs_key`` holds neither numbers nor an ordered categorical.
    ValueError
        If no group is left.

    Warns
    -----
    UserWarning
        If groups or cells were left out.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> attention = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> attention[:, 1] += adata.obs["n_counts"].rank() / adata.n_obs
    >>> adata.obsm["X_tosica"] = attention
    >>> tosica.tl.correlate_gene_sets(adata, "n_counts")
    >>> adata.uns["correlate_gene_sets"]["gene_set"].iloc[0]
    'phagocytosis'
    """
    check_string("obs_key", obs_key)
    check_key_added(key_added)
    check_flags(copy=copy)
    values, gene_sets = read_attention(adata, key)
    numbers = _numbers(adata, obs_key)
    groups = None if groupby is None else read_groups(adata, groupby)
    samples = None if sample_key is None else read_groups(adata, sample_key, name="sample_key")
    known = np.isfinite(numbers)
    if not known.any():
        raise ValueError(f"adata.obs[{obs_key!r}] has no value in any cell.")
    if not known.all():
        warnings.warn(
            f"adata.obs[{obs_key!r}] is missing or infinite in {(~known).sum()} of {len(known)} "
            f"cells, which were left out.",
            UserWarning,
            stacklevel=2,
        )
    names = ["all"] if groups is None else list(groups.categories)
    tables: list[pd.DataFrame] = []
    left_out: list[str] = []
    for code, name in enumerate(names):
        rows = known if groups is None else known & (groups.codes == code)
        y, x = numbers[rows], values[rows].astype(np.float64)
        if samples is not None and rows.any():
            y, x = _per_sample(y, x, np.asarray(samples.codes)[rows])
        if len(y) < _MIN_REPLICATES or np.ptp(y) == 0:
            left_out.append(name)
            continue
        correlation, pvals = _spearman(x, y)
        table = pd.DataFrame(
            {
                "group": name,
                "gene_set": gene_sets,
                "correlation": correlation,
                "pval": pvals,
                "pval_adj": stats.false_discovery_control(pvals),
                "n": len(y),
            }
        )
        tables.append(table.iloc[np.argsort(-np.abs(correlation), kind="stable")])
    what = "cells" if samples is None else "samples"
    if left_out:
        listed = list_names(left_out)
        why = f"fewer than {_MIN_REPLICATES} {what}, or the same {obs_key!r} in all of them"
        if not tables:
            raise ValueError(f"There is nothing to correlate in {listed}: {why}.")
        warnings.warn(f"Left out {listed}: {why}.", UserWarning, stacklevel=2)
    result = pd.concat(tables, ignore_index=True)
    kept = list(dict.fromkeys(result["group"]))
    result["group"] = pd.Categorical(result["group"], kept)
    # Row names in a file are strings.
    result.index = result.index.astype(str)
    target = adata.copy() if copy else adata
    target.uns[key_added] = result
    logger.info(
        "Correlated %d gene sets with %r in %d groups: added adata.uns[%r].",
        len(gene_sets),
        obs_key,
        len(tables),
        key_added,
    )
    return target if copy else None


def _numbers(adata: AnnData, obs_key: str) -> NDArray[np.float64]:
    if obs_key not in adata.obs:
        raise KeyError(missing_column(adata, obs_key))
    column = adata.obs[obs_key]
    if isinstance(column.dtype, pd.CategoricalDtype):
        if not column.cat.ordered:
            raise TypeError(
                f"adata.obs[{obs_key!r}] holds categories without an order: give it one with "
                f"adata.obs[{obs_key!r}].cat.as_ordered(), or use numbers."
            )
        codes = column.cat.codes.to_numpy().astype(np.float64)
        return np.where(codes < 0, np.nan, codes)
    if not pd.api.types.is_numeric_dtype(column.dtype):
        raise TypeError(
            f"adata.obs[{obs_key!r}] holds {column.dtype} values, not numbers or an order."
        )
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _per_sample(
    y: NDArray[np.float64], x: NDArray[np.float64], codes: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    present = np.unique(codes)
    means = [(y[codes == code].mean(), x[codes == code].mean(axis=0)) for code in present]
    return np.array([mean for mean, _ in means]), np.array([row for _, row in means])


def _spearman(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rank correlation of each column with ``y``; 0 and p-value 1 where one of them is constant."""
    ranks = stats.rankdata(x, axis=0)
    ranks -= ranks.mean(axis=0)
    against = stats.rankdata(y)
    against -= against.mean()
    length = np.sqrt((ranks**2).sum(axis=0) * (against**2).sum())
    varies = length > 0
    correlation = np.where(varies, (ranks * against[:, None]).sum(axis=0), 0.0)
    correlation = np.clip(correlation / np.where(varies, length, 1.0), -1, 1)
    df = len(y) - 2
    with np.errstate(divide="ignore"):
        t = correlation * np.sqrt(df / ((1 + correlation) * (1 - correlation)))
    return correlation, np.where(varies, 2 * stats.t.sf(np.abs(t), df), 1.0)
