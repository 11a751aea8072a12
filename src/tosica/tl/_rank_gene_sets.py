"""Rank gene sets by a test between groups of cells, on contributions or attention."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from tosica._annotated import read_attention, resolve_key
from tosica._groups import read_groups
from tosica._logging import logger
from tosica._validation import (
    check_count,
    check_data,
    check_flags,
    check_key_added,
    check_names,
    check_string,
    list_names,
)
from tosica.tl._comparison import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.tl._comparison import Statistics

Method: TypeAlias = Literal["wilcoxon", "t-test", "t-test_overestim_var", "moderated-t"]

_METHODS_OF_CELLS = ("wilcoxon", "t-test", "t-test_overestim_var")
_METHODS_OF_SAMPLES = ("moderated-t", "t-test", "wilcoxon")

# What scanpy.tl.rank_genes_groups writes, and the effect sizes.
_DTYPES = {
    "scores": "float32",
    "pvals": "float64",
    "pvals_adj": "float64",
    "logfoldchanges": "float32",
    "effect_sizes": "float32",
}


def rank_gene_sets(
    adata: AnnData,
    groupby: str,
    *,
    groups: Literal["all"] | Iterable[str] = "all",
    reference: str = "rest",
    method: Method | None = None,
    within: str | None = None,
    sample_key: str | None = None,
    min_cells: int = 10,
    rankby_abs: bool = False,
    key: str | None = None,
    key_added: str = "rank_gene_sets",
    n_gene_sets: int | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Rank the gene sets that characterize each group of cells, as sc.tl.rank_genes_groups does.

    The test is on what :func:`tosica.tl.attribute` wrote, or on the attention, instead of on
    expression. With ``within``, conditions are compared in each cell type; with ``sample_key``, the
    samples are the replicates, not their cells.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``. Categories
        without cells are ignored.
    groups
        Groups to test, or ``"all"``. Cells of other groups still belong to the rest.
    reference
        What each group is compared with: ``"rest"``, all other cells, or the name of a group.
    method
        Without ``sample_key``: ``"wilcoxon"`` (rank sum, the default), ``"t-test"`` (Welch) or
        ``"t-test_overestim_var"`` (Welch, the rest counted as no larger than the group). scanpy's
        ``"logreg"`` is not offered: contributions and attention are so small that its penalty
        leaves the coefficients without meaning. With ``sample_key``: ``"moderated-t"`` (the
        default, :cite:t:`Smyth2004`: a variance that few samples estimate is shrunken towards those
        of the other gene sets), ``"t-test"`` (Welch) or ``"wilcoxon"``, which with fewer than four
        samples a side cannot reach a p-value of 0.05.
    within
        Column of ``adata.obs``, such as the cell types: ``groups`` are then compared with
        ``reference`` in the cells of each of its categories. Categories in which a side has too few
        cells or samples are left out with a warning.
    sample_key
        Column of ``adata.obs`` with the samples (donors, mice, wells). Values are averaged over
        the cells that a sample has on a side, and samples are tested, two a side at least. If all
        samples have cells on both sides, the test is paired. Positive means are compared by their
        logarithm.
    min_cells
        With ``sample_key``: samples with fewer cells on a side are left out there.
    rankby_abs
        Rank by the absolute score, as scanpy does.
    key
        What to test. ``None``: the presence that :func:`tosica.tl.attribute` wrote
        (``"tosica_presence"``) or, without it, the attention that ``model.annotate`` wrote
        (``"tosica"``); a log line says which.
    key_added
        Key of ``adata.uns`` for the result.
    n_gene_sets
        Gene sets to keep for each group, from the highest score down; ``None`` keeps all.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written, in the format of
    :func:`scanpy.tl.rank_genes_groups`, so that its readers and plots find what they expect:

    ``adata.uns[key_added]["names"]``, ``["scores"]``, ``["pvals"]``, ``["pvals_adj"]``
        Record arrays with one field a group, sorted by score: gene set names, the test's
        statistics (float32), p-values, and p-values adjusted for the number of gene sets by
        Benjamini and Hochberg (float64). With ``within``, one field a category of it, or, if
        several groups are compared, one field ``"<group> in <category>"`` each.
    ``adata.uns[key_added]["logfoldchanges"]``
        log2 (mean in the group / mean in the reference), float32; with ``sample_key``, of the means
        over samples. scanpy's own formula, a ratio of ``expm1``, is for logarithms, and
        contributions and attention are none. NaN where a mean is negative, as that of contributions
        may be.
    ``adata.uns[key_added]["effect_sizes"]``
        Difference of the means in standard deviations of cells within the two sides (Cohen's d),
        float32. Unlike a score, it does not grow with the number of cells.
    ``adata.uns[key_added]["params"]``
        Arguments of the call; ``key`` is what was tested.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If a column cannot be read as groups, or ``groups`` is a single name.
    ValueError
        If cells have no group, a group that is named or is the reference has a single cell, a group
        has a single sample, a group or the method is unknown, all cells are in one group, or the
        presence was written by another model than the annotation.

    Warns
    -----
    UserWarning
        If groups of a single cell were left out, or categories of ``within``.

    Notes
    -----
    Cells of one sample are not independent, so without ``sample_key`` p-values are too small: use
    them to rank only.

    There are 13 parameters because those of :func:`scanpy.tl.rank_genes_groups` keep their names.

    See Also
    --------
    tosica.get.rank_gene_sets_df : the result as a tidy table.
    tosica.pl.gene_set_heatmap : means of the groups.

    Examples
    --------
    Random numbers stand for what ``model.annotate`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica"] = {"gene_sets": np.array(["B cell activation", "phagocytosis"])}
    >>> attention = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> attention[:, 0] += adata.obs["bulk_labels"] == "CD19+ B"
    >>> adata.obsm["X_tosica"] = attention
    >>> tosica.tl.rank_gene_sets(adata, "bulk_labels")
    >>> adata.uns["rank_gene_sets"]["names"]["CD19+ B"][0]
    'B cell activation'
    >>> sc.get.rank_genes_groups_df(adata, None, key="rank_gene_sets").shape
    (20, 6)
    """
    test = _checked_method(method, by_sample=sample_key is not None)
    check_data(adata, mudata=True)
    (reference,) = check_names("reference", [reference])
    check_count("min_cells", min_cells)
    check_count("n_gene_sets", n_gene_sets, optional=True)
    check_flags(rankby_abs=rankby_abs, copy=copy)
    check_key_added(key_added)
    key = resolve_key(adata, key)
    values, gene_sets = read_attention(adata, key)
    comparison = Comparison(
        values,
        read_groups(adata, groupby),
        groupby,
        reference,
        test,
        None if sample_key is None else read_groups(adata, sample_key, name="sample_key"),
        min_cells,
    )
    tested = comparison.select_groups(groups, allow_single_cells=within is not None)
    if within is None:
        statistics = comparison.statistics(tested)
    else:
        statistics = _compare_within(
            comparison, tested, within, read_groups(adata, within, name="within")
        )

    target = adata.copy() if copy else adata
    target.uns[key_added] = {
        "params": {
            "groupby": groupby,
            "reference": comparison.reference,
            "method": test,
            "use_raw": False,
            "layer": None,
            "corr_method": "benjamini-hochberg",
            "key": key,
            "within": within,
            "sample_key": sample_key,
        },
        **_tables(statistics, gene_sets, n_gene_sets, rankby_abs=rankby_abs),
    }
    logger.info(
        "Ranked %d gene sets in %d groups of %r: added adata.uns[%r].",
        len(gene_sets),
        len(statistics),
        groupby if within is None else within,
        key_added,
    )
    return target if copy else None


def _checked_method(method: str | None, *, by_sample: bool) -> str:
    check_string("method", method, optional=True)
    known = _METHODS_OF_SAMPLES if by_sample else _METHODS_OF_CELLS
    if method is None:
        return known[0]
    if method in known:
        return method
    if method in get_args(Method):
        kind, use = ("samples", "with") if by_sample else ("cells", "without")
        raise ValueError(
            f"method {method!r} cannot be used {use} sample_key: of {kind}, it is one of "
            f"{list_names(known)}."
        )
    raise ValueError(f"method must be one of {list_names(known)}, not {method!r}.")


def _compare_within(
    comparison: Comparison, tested: list[str], within: str, categories: pd.Categorical
) -> dict[str, Statistics]:
    """Make a comparison in each category of the column ``within`` that has enough cells."""
    statistics: dict[str, Statistics] = {}
    left_out: dict[str, str] = {}
    for code, category in enumerate(categories.categories):
        part = comparison.subset(categories.codes == code)
        for group in tested:
            name = category if len(tested) == 1 else f"{group} in {category}"
            try:
                statistics[name] = part.statistics(part.select_groups([group]))[group]
            except ValueError as error:
                left_out[name] = str(error)
    if left_out:
        first, reason = next(iter(left_out.items()))
        names = list_names(list(left_out))
        if not statistics:
            raise ValueError(
                f"No category of adata.obs[{within!r}] can be compared ({names}); in {first!r}: "
                f"{reason}"
            )
        warnings.warn(
            f"Left out {names} of adata.obs[{within!r}]; in {first!r}: {reason}",
            UserWarning,
            stacklevel=3,
        )
    return statistics


def _tables(
    statistics: dict[str, Statistics],
    gene_sets: list[str],
    n_gene_sets: int | None,
    *,
    rankby_abs: bool,
) -> dict[str, np.recarray[Any, Any]]:
    """Sort each group's gene sets, and make a record array of each statistic."""
    order = {}
    for name, group in statistics.items():
        ranked = group["order"]
        if rankby_abs:
            ranked = np.argsort(-np.abs(group["scores"]), kind="stable")
        order[name] = ranked[:n_gene_sets]
    names = np.asarray(gene_sets, dtype=object)
    tables = {"names": _records({name: names[order[name]] for name in statistics}, "O")}
    for field, dtype in _DTYPES.items():
        columns = {name: statistics[name][field][order[name]] for name in statistics}
        tables[field] = _records(columns, dtype)
    return tables


def _records(columns: dict[str, NDArray[Any]], dtype: str) -> np.recarray[Any, Any]:
    """One field a group, as scanpy stores its results."""
    length = len(next(iter(columns.values())))
    records = np.recarray((length,), dtype=[(name, dtype) for name in columns])
    for name, column in columns.items():
        records[name] = column
    return records
