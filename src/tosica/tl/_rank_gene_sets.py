"""Which gene sets tell groups of cells apart, by a test on attention."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData

from tosica._logging import logger
from tosica.get._group_moments import GroupMoments, group_moments
from tosica.get._read_attention import read_attention
from tosica.get._read_groups import read_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Method: TypeAlias = Literal["wilcoxon", "t-test", "t-test_overestim_var"]

# Far below any attention that matters (about 1/P), so that 0 over 0 is no change.
_TINY = 1e-9


def rank_gene_sets(
    adata: AnnData,
    groupby: str,
    *,
    groups: Literal["all"] | Iterable[str] = "all",
    reference: str = "rest",
    method: Method = "wilcoxon",
    key: str = "tosica",
    key_added: str = "rank_gene_sets",
    n_gene_sets: int | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Rank gene sets by how much more attention a group of cells pays to them.

    :func:`scanpy.tl.rank_genes_groups` on the attention embedding instead of on expression.

    Parameters
    ----------
    adata
        Query that ``model.annotate`` has annotated.
    groupby
        Column of ``adata.obs`` with the groups, such as ``"tosica_prediction"``. Categories
        without cells are no groups.
    groups
        Groups to test, or ``"all"``. Cells of other groups still belong to the rest.
    reference
        What each group is compared with: ``"rest"``, all other cells, or the name of a group.
    method
        ``"wilcoxon"`` (rank sum), ``"t-test"`` (Welch) or ``"t-test_overestim_var"`` (Welch, the
        rest counted as no larger than the group). scanpy's ``"logreg"`` is not offered: attention
        is so small a number that its penalty leaves the coefficients without meaning.
    key
        ``key_added`` of ``model.annotate``.
    key_added
        Key of ``adata.uns`` for the result.
    n_gene_sets
        Gene sets to keep for each group, from the highest score down; ``None`` keeps all P−m.
    copy
        Leave ``adata`` as it is and return a copy with the result.

    Returns
    -------
    ``None``, or with ``copy=True`` an AnnData. Written, in the format of
    :func:`scanpy.tl.rank_genes_groups`, so that its readers and plots find what they expect:

    `adata.uns[key_added]["names"]`, `["scores"]`, `["pvals"]`, `["pvals_adj"]`
        Record arrays with one field a group, sorted by score: gene set names, the test's
        statistics (float32), p-values, and p-values adjusted for the number of gene sets by
        Benjamini and Hochberg (float64).
    `adata.uns[key_added]["logfoldchanges"]`
        log2 (mean attention in the group / mean attention in the reference), float32. Attention
        is not a logarithm, so it is divided as it is; what scanpy itself would compute here, a
        ratio of ``expm1``, is not kept.
    `adata.uns[key_added]["params"]`
        Arguments of the call.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or ``groupby`` is missing.
    TypeError
        If ``groupby`` cannot be read as groups, or ``groups`` is a single name.
    ValueError
        If cells have no group, a group that is named or is the reference has a single cell, a group
        or the method is unknown, or there is nothing to compare with.

    Warns
    -----
    UserWarning
        If groups of a single cell were left out of all groups.

    Notes
    -----
    Cells of one sample are not independent, so p-values are too small; use them to rank.

    See Also
    --------
    tosica.get.rank_gene_sets_df : the result as a tidy table.
    tosica.pl.attention_heatmap : mean attention of the groups.

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
    if method not in get_args(Method):
        msg = f"method must be one of {', '.join(map(repr, get_args(Method)))}, not {method!r}."
        raise ValueError(msg)
    if n_gene_sets is not None and n_gene_sets < 1:
        msg = f"n_gene_sets must be at least 1, or None for all, not {n_gene_sets}."
        raise ValueError(msg)
    values, gene_sets = read_attention(adata, key)
    cells = read_groups(adata, groupby)
    tested = _tested_groups(cells, groups, str(reference), groupby)

    stats = _scanpy_statistics(values, cells, tested, str(reference), method)
    # By the group's own order of gene sets, because scanpy sorts each group by its scores.
    order = {name: stats["names"][name].astype(int)[:n_gene_sets] for name in tested}
    ratios = _log2_ratios(group_moments(values, cells), cells, tested, str(reference))
    all_names = np.asarray(gene_sets, dtype=object)
    result: dict[str, Any] = {
        "params": {
            "groupby": groupby,
            "reference": str(reference),
            "method": method,
            "use_raw": False,
            "layer": None,
            "corr_method": "benjamini-hochberg",
            "key": key,
        },
        "names": _records({name: all_names[order[name]] for name in tested}, "O"),
        "logfoldchanges": _records({name: ratios[name][order[name]] for name in tested}, "float32"),
    }
    for field, dtype in {"scores": "float32", "pvals": "float64", "pvals_adj": "float64"}.items():
        columns = {name: stats[field][name][:n_gene_sets] for name in tested}
        result[field] = _records(columns, dtype)

    target = adata.copy() if copy else adata
    target.uns[key_added] = result
    logger.info(
        "Ranked %d gene sets in %d groups of %r: added adata.uns[%r].",
        len(gene_sets),
        len(tested),
        groupby,
        key_added,
    )
    return target if copy else None


def _tested_groups(
    cells: pd.Categorical,
    groups: Literal["all"] | Iterable[str],
    reference: str,
    groupby: str,
) -> list[str]:
    """Names of the groups to test, in the caller's order, once they can be tested."""
    available = list(cells.categories)
    sizes = dict(zip(available, np.bincount(cells.codes, minlength=len(available)), strict=True))
    if isinstance(groups, str):
        if groups != "all":
            msg = f"groups must be 'all' or a list of groups: write groups=[{groups!r}]."
            raise TypeError(msg)
        wanted = available
    else:
        wanted = list(dict.fromkeys(str(name) for name in groups))
        if not wanted:
            msg = "groups is empty: name at least one group, or write groups='all'."
            raise ValueError(msg)
    column = f"adata.obs[{groupby!r}]"
    against = [] if reference == "rest" else [reference]
    unknown = [name for name in [*wanted, *against] if name not in sizes]
    if unknown:
        msg = (
            f"{column} has no cell in group {_listed(unknown)}: its groups are "
            f"{_listed(available)}."
        )
        raise ValueError(msg)
    if len(available) < 2:
        msg = f"All cells are {available[0]!r} in {column}: there is nothing to compare them with."
        raise ValueError(msg)
    tested = [name for name in wanted if name != reference or reference == "rest"]
    if not tested:
        msg = f"groups holds nothing but the reference {reference!r}: name a group to compare."
        raise ValueError(msg)
    lonely = [name for name in dict.fromkeys([*tested, *against]) if sizes[name] < 2]
    left = [name for name in tested if name not in lonely]
    if lonely and left and wanted is available and not set(against).intersection(lonely):
        # Rare predictions are no reason to know nothing of the others.
        warnings.warn(
            f"{column} has a single cell in {_listed(lonely)}, and a test needs two: left out.",
            UserWarning,
            stacklevel=3,
        )
        tested, lonely = left, []
    if lonely:
        msg = (
            f"{column} has a single cell in {_listed(lonely)}, and a test needs two: "
            f"name the other groups in groups=[...], or leave that cell out."
        )
        raise ValueError(msg)
    n_cells = len(cells)
    alone = [name for name in tested if not against and n_cells - sizes[name] < 2]
    if alone:
        msg = f"{column} leaves a single cell to compare {alone[0]!r} with, and a test needs two."
        raise ValueError(msg)
    return tested


def _listed(names: list[str], most: int = 10) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _scanpy_statistics(
    values: NDArray[np.floating],
    cells: pd.Categorical,
    tested: list[str],
    reference: str,
    method: Method,
) -> dict[str, Any]:
    """The test of scanpy on an AnnData that holds nothing else, its columns named 0, 1, 2, …

    Numbers instead of names, because a name that occurs twice could not be traced back.
    """
    n_obs, n_vars = values.shape
    bare = AnnData(
        X=values,
        obs=pd.DataFrame({"group": cells}, index=[str(i) for i in range(n_obs)]),
        var=pd.DataFrame(index=[str(i) for i in range(n_vars)]),
    )
    with warnings.catch_warnings():
        # scanpy fills its table column by column, which pandas finds slow beyond 100 columns.
        warnings.simplefilter("ignore", pd.errors.PerformanceWarning)
        # The ratio of expm1 that is thrown away here may overflow.
        warnings.simplefilter("ignore", RuntimeWarning)
        sc.tl.rank_genes_groups(
            bare, "group", groups=tested, reference=reference, method=method, use_raw=False
        )
    return bare.uns["rank_genes_groups"]


def _log2_ratios(
    moments: GroupMoments, cells: pd.Categorical, tested: list[str], reference: str
) -> dict[str, NDArray[np.float64]]:
    """log2 of the mean attention in each tested group over that in what it is compared with."""
    sums = moments.mean * moments.n_cells[:, None]
    row_of = {name: row for row, name in enumerate(cells.categories)}
    ratios = {}
    for name in tested:
        row = row_of[name]
        if reference == "rest":
            others = (sums.sum(axis=0) - sums[row]) / (len(cells) - moments.n_cells[row])
        else:
            others = moments.mean[row_of[reference]]
        ratios[name] = np.log2((moments.mean[row] + _TINY) / (np.maximum(others, 0) + _TINY))
    return ratios


def _records(columns: dict[str, NDArray[Any]], dtype: str) -> np.recarray[Any, Any]:
    """One field a group, as scanpy keeps its results."""
    length = len(next(iter(columns.values())))
    records = np.recarray((length,), dtype=[(name, dtype) for name in columns])
    for name, column in columns.items():
        records[name] = column
    return records
