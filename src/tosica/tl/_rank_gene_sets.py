"""Which gene sets tell groups of cells apart, by a test on contributions or attention."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from scipy.stats import false_discovery_control

from tosica._annotated import read_attention, resolve_key
from tosica._groups import read_groups
from tosica._logging import logger
from tosica._statistics import (
    GroupMoments,
    TooFewSamplesError,
    compare_samples,
    group_moments,
    sample_means,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Method: TypeAlias = Literal["wilcoxon", "t-test", "t-test_overestim_var", "moderated-t"]

_OF_CELLS = ("wilcoxon", "t-test", "t-test_overestim_var")
_OF_SAMPLES = ("moderated-t", "t-test", "wilcoxon")

# Far below any value that matters (attention is about 1/P), so that 0 over 0 is no change.
_TINY = 1e-9


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
    """Rank gene sets by how much more they contribute in a group of cells than in others.

    :func:`scanpy.tl.rank_genes_groups` on what :func:`tosica.tl.attribute` wrote, or on the
    attention embedding, instead of on expression. With ``within``, one condition is held against
    another inside of each cell type; with ``sample_key``, the samples are the replicates, not their
    cells.

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
        Of cells: ``"wilcoxon"`` (rank sum, the default), ``"t-test"`` (Welch) or
        ``"t-test_overestim_var"`` (Welch, the rest counted as no larger than the group). scanpy's
        ``"logreg"`` is not offered: contributions and attention are so small that its penalty
        leaves the coefficients without meaning. Of samples: ``"moderated-t"`` (the default,
        :cite:t:`Smyth2004`: with few samples a gene set's variance is hardly known, and borrows
        from the others'), ``"t-test"`` (Welch) or ``"wilcoxon"``, which with fewer than four
        samples a side cannot reach a p-value of 0.05.
    within
        Column of ``adata.obs``, such as the cell types: ``groups`` are then compared with
        ``reference`` in the cells of each of its categories. Those in which a side is missing, or
        has too few cells or samples, are left out with a warning.
    sample_key
        Column of ``adata.obs`` with the samples (donors, mice, wells). Values are averaged over
        the cells that a sample has on a side, and samples are tested, two a side at least. If all
        samples have cells on both sides, the test is of the differences within samples. Positive
        means are compared by their logarithm.
    min_cells
        With ``sample_key``: samples with fewer cells on a side do not count there.
    rankby_abs
        Rank by the absolute score, so that what falls is not last.
    key
        What to test. ``None``: the presence that :func:`tosica.tl.attribute` wrote
        (``"tosica_presence"``) or, without it, the attention that ``model.annotate`` wrote
        (``"tosica"``); a log line says which.
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
        Benjamini and Hochberg (float64). With ``within``, one field a category of it; if several
        groups are compared, they are called ``"<group> in <category>"``.
    `adata.uns[key_added]["logfoldchanges"]`
        log2 (mean in the group / mean in the reference), float32. Contributions and attention are
        no logarithms, so they are divided as they are; what scanpy itself would compute here, a
        ratio of ``expm1``, is not kept. With ``sample_key``, means of the samples' means. NaN
        where a mean is negative, as it may be of contributions.
    `adata.uns[key_added]["effect_sizes"]`
        Difference of the means in standard deviations of cells within the two sides (Cohen's d),
        float32. Other than a score, it does not grow with the number of cells.
    `adata.uns[key_added]["params"]`
        Arguments of the call; ``key`` is what was tested.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If a column cannot be read as groups, or ``groups`` is a single name.
    ValueError
        If cells have no group, a group that is named or is the reference has a single cell, a group
        has a single sample, a group or the method is unknown, there is nothing to compare with, or
        the presence was written by another model than the annotation.

    Warns
    -----
    UserWarning
        If groups of a single cell were left out of all groups, or categories of ``within``.

    Notes
    -----
    Cells of one sample are not independent, so without ``sample_key`` p-values are too small; use
    them to rank.

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
    if n_gene_sets is not None and n_gene_sets < 1:
        raise ValueError(f"n_gene_sets must be at least 1, or None for all, not {n_gene_sets}.")
    key = resolve_key(adata, key)
    values, gene_sets = read_attention(adata, key)
    cells = read_groups(adata, groupby)
    reference = str(reference)
    samples = None if sample_key is None else read_groups(adata, sample_key)
    tested = _tested_groups(cells, groups, reference, groupby, alone_is_wrong=within is None)

    if within is None:
        found = _compare(values, cells, tested, reference, test, samples, min_cells, groupby)
    else:
        found = _compare_within(
            values, cells, tested, reference, test, samples, min_cells, groupby,
            read_groups(adata, within), within,
        )  # fmt: skip
    all_names = np.asarray(gene_sets, dtype=object)
    order = {
        name: _order(stats, rankby_abs=rankby_abs)[:n_gene_sets] for name, stats in found.items()
    }
    result: dict[str, Any] = {
        "params": {
            "groupby": groupby,
            "reference": reference,
            "method": test,
            "use_raw": False,
            "layer": None,
            "corr_method": "benjamini-hochberg",
            "key": key,
            "within": within,
            "sample_key": sample_key,
        },
        "names": _records({name: all_names[order[name]] for name in found}, "O"),
    }
    for field, dtype in _FIELDS.items():
        columns = {name: stats[field][order[name]] for name, stats in found.items()}
        result[field] = _records(columns, dtype)

    target = adata.copy() if copy else adata
    target.uns[key_added] = result
    logger.info(
        "Ranked %d gene sets in %d groups of %r: added adata.uns[%r].",
        len(gene_sets),
        len(found),
        groupby if within is None else within,
        key_added,
    )
    return target if copy else None


_FIELDS = {
    "scores": "float32",
    "pvals": "float64",
    "pvals_adj": "float64",
    "logfoldchanges": "float32",
    "effect_sizes": "float32",
}


def _checked_method(method: str | None, *, by_sample: bool) -> str:
    known = _OF_SAMPLES if by_sample else _OF_CELLS
    if method is None:
        return known[0]
    if method not in known:
        listed = ", ".join(map(repr, known))
        if method in get_args(Method):
            kind, other = ("samples", "with") if by_sample else ("cells", "without")
            msg = (
                f"method {method!r} cannot be used {other} sample_key: "
                f"of {kind}, it is one of {listed}."
            )
        else:
            msg = f"method must be one of {listed}, not {method!r}."
        raise ValueError(msg)
    return method


def _order(stats: dict[str, NDArray[Any]], *, rankby_abs: bool) -> NDArray[np.intp]:
    """From the highest score down; scanpy's own order, if there is one, decides between equals."""
    scores = np.abs(stats["scores"]) if rankby_abs else stats["scores"]
    if "order" in stats and not rankby_abs:
        return stats["order"]
    return np.argsort(-scores, kind="stable")


def _compare(
    values: NDArray[np.floating],
    cells: pd.Categorical,
    tested: list[str],
    reference: str,
    method: str,
    samples: pd.Categorical | None,
    min_cells: int,
    groupby: str,
) -> dict[str, dict[str, NDArray[np.floating]]]:
    """Statistics of each tested group, in the order of the gene sets."""
    moments = group_moments(values, cells)
    if samples is None:
        found = _scanpy_statistics(values, cells, tested, reference, method)
        ratios = _log2_ratios(moments, cells, tested, reference)
    else:
        found, ratios = {}, {}
        for name in tested:
            found[name], ratios[name] = _sample_statistics(
                values, cells, name, reference, method, samples, min_cells, groupby
            )
    for name in tested:
        found[name]["logfoldchanges"] = ratios[name]
        found[name]["effect_sizes"] = _effect_sizes(moments, cells, name, reference)
    return found


def _compare_within(
    values: NDArray[np.floating],
    cells: pd.Categorical,
    tested: list[str],
    reference: str,
    method: str,
    samples: pd.Categorical | None,
    min_cells: int,
    groupby: str,
    strata: pd.Categorical,
    within: str,
) -> dict[str, dict[str, NDArray[np.floating]]]:
    """Do what ``_compare`` does in each category of another column, where that can be done."""
    found: dict[str, dict[str, NDArray[np.floating]]] = {}
    left_out: dict[str, str] = {}
    for code, stratum in enumerate(strata.categories):
        rows = strata.codes == code
        inside = cells[rows].remove_unused_categories()
        for group in tested:
            name = stratum if len(tested) == 1 else f"{group} in {stratum}"
            try:
                _tested_groups(inside, [group], reference, groupby)
                found[name] = _compare(
                    values[rows], inside, [group], reference, method,
                    None if samples is None else samples[rows].remove_unused_categories(),
                    min_cells, groupby,
                )[group]  # fmt: skip
            except ValueError as error:
                left_out[name] = str(error)
    first = next(iter(left_out.items()), None)
    if first is not None:
        listed = _listed(list(left_out))
        if not found:
            raise ValueError(
                f"No category of adata.obs[{within!r}] can be compared ({listed}); "
                f"in {first[0]!r}: {first[1]}"
            )
        warnings.warn(
            f"Left out {listed} of adata.obs[{within!r}]; in {first[0]!r}: {first[1]}",
            UserWarning,
            stacklevel=3,
        )
    return found


def _tested_groups(
    cells: pd.Categorical,
    groups: Literal["all"] | Iterable[str],
    reference: str,
    groupby: str,
    *,
    alone_is_wrong: bool = True,
) -> list[str]:
    """Names of the groups to test, in the caller's order, once they can be tested.

    ``alone_is_wrong`` also refuses groups with a single cell.
    """
    available = list(cells.categories)
    sizes = dict(zip(available, np.bincount(cells.codes, minlength=len(available)), strict=True))
    if isinstance(groups, str):
        if groups != "all":
            raise TypeError(f"groups must be 'all' or a list of groups: write groups=[{groups!r}].")
        wanted = available
    else:
        wanted = list(dict.fromkeys(str(name) for name in groups))
        if not wanted:
            raise ValueError("groups is empty: name at least one group, or write groups='all'.")
    column = f"adata.obs[{groupby!r}]"
    against = [] if reference == "rest" else [reference]
    unknown = [name for name in [*wanted, *against] if name not in sizes]
    if unknown:
        raise ValueError(
            f"{column} has no cell in group {_listed(unknown)}: its groups are "
            f"{_listed(available)}."
        )
    if len(available) < 2:
        raise ValueError(
            f"All cells are {available[0]!r} in {column}: there is nothing to compare them with."
        )
    tested = [name for name in wanted if name != reference or reference == "rest"]
    if not tested:
        raise ValueError(
            f"groups holds nothing but the reference {reference!r}: name a group to compare."
        )
    if not alone_is_wrong:
        return tested
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
        raise ValueError(
            f"{column} has a single cell in {_listed(lonely)}, and a test needs two: "
            f"name the other groups in groups=[...], or leave that cell out."
        )
    n_cells = len(cells)
    alone = [name for name in tested if not against and n_cells - sizes[name] < 2]
    if alone:
        raise ValueError(
            f"{column} leaves a single cell to compare {alone[0]!r} with, and a test needs two."
        )
    return tested


def _listed(names: list[str], most: int = 10) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _scanpy_statistics(
    values: NDArray[np.floating],
    cells: pd.Categorical,
    tested: list[str],
    reference: str,
    method: str,
) -> dict[str, dict[str, NDArray[np.floating]]]:
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
    result = bare.uns["rank_genes_groups"]
    found = {}
    for name in tested:
        # scanpy has sorted each group by its scores.
        back = np.argsort(result["names"][name].astype(int))
        fields = ("scores", "pvals", "pvals_adj")
        found[name] = {field: np.asarray(result[field][name])[back] for field in fields}
        found[name]["order"] = np.argsort(back)
    return found


def _sample_statistics(
    values: NDArray[np.floating],
    cells: pd.Categorical,
    name: str,
    reference: str,
    method: str,
    samples: pd.Categorical,
    min_cells: int,
    groupby: str,
) -> tuple[dict[str, NDArray[np.floating]], NDArray[np.float64]]:
    """Test of one group with samples as replicates, and its log2 ratio."""
    rows = cells == name
    others = ~rows if reference == "rest" else cells == reference
    codes, names = np.asarray(samples.codes), list(samples.categories)
    sides = tuple(sample_means(values, codes, names, side, min_cells) for side in (rows, others))
    try:
        scores, pvals, _ = compare_samples(sides[0], sides[1], method)
    except TooFewSamplesError:
        counts = [len(side.names) for side in sides]
        short = (name, counts[0]) if counts[0] < 2 else (reference, counts[1])
        least = f" with at least {min_cells} cells" if min_cells > 1 else ""
        raise ValueError(
            f"{short[0]!r} of adata.obs[{groupby!r}] has {short[1]} sample"
            f"{'' if short[1] == 1 else 's'}{least}, and a test over samples needs two: leave "
            f"that group out, lower min_cells, or test cells without sample_key."
        ) from None
    means = [side.values.mean(axis=0) for side in sides]
    stats = {"scores": scores, "pvals": pvals, "pvals_adj": false_discovery_control(pvals)}
    return stats, _log2_ratio(*means)


def _effect_sizes(
    moments: GroupMoments, cells: pd.Categorical, name: str, reference: str
) -> NDArray[np.float64]:
    """Difference of the means in standard deviations of cells within the two sides."""
    names = list(cells.categories)
    row = names.index(name)
    chosen = np.arange(len(names)) != row if reference == "rest" else np.array(names) == reference
    weights = np.where(chosen, moments.n_cells, 0)
    other = np.average(moments.mean, axis=0, weights=weights)
    spread = moments.variance + (moments.mean - other) ** 2
    sizes = moments.n_cells[row], weights.sum()
    pooled = (sizes[0] * moments.variance[row] + (weights[:, None] * spread).sum(axis=0)) / sum(
        sizes
    )
    difference = moments.mean[row] - other
    deviation = np.sqrt(pooled)
    constant = deviation <= 1e-9 * np.abs(difference)
    return np.where(constant, 0.0, difference / np.where(constant, 1.0, deviation))


def _log2_ratios(
    moments: GroupMoments, cells: pd.Categorical, tested: list[str], reference: str
) -> dict[str, NDArray[np.float64]]:
    """log2 of the mean in each tested group over that in what it is compared with."""
    sums = moments.mean * moments.n_cells[:, None]
    row_of = {name: row for row, name in enumerate(cells.categories)}
    ratios = {}
    for name in tested:
        row = row_of[name]
        if reference == "rest":
            others = (sums.sum(axis=0) - sums[row]) / (len(cells) - moments.n_cells[row])
        else:
            others = moments.mean[row_of[reference]]
        ratios[name] = _log2_ratio(moments.mean[row], others)
    return ratios


def _log2_ratio(mean: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2 of a ratio of means; NaN where one of them is negative, beyond rounding."""
    negative = (mean < -_TINY) | (others < -_TINY)
    mean, others = np.maximum(mean, 0) + _TINY, np.maximum(others, 0) + _TINY
    return np.where(negative, np.nan, np.log2(mean / others))


def _records(columns: dict[str, NDArray[Any]], dtype: str) -> np.recarray[Any, Any]:
    """One field a group, as scanpy keeps its results."""
    length = len(next(iter(columns.values())))
    records = np.recarray((length,), dtype=[(name, dtype) for name in columns])
    for name, column in columns.items():
        records[name] = column
    return records
