"""Rank gene sets by a test between groups of cells, or by their correlation with a number."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from scipy import stats

from tosica._obs import (
    ATTRIBUTION,
    HETEROGENEOUS,
    UNKNOWN,
    annotation_key,
    check_target,
    read_attention,
    read_groups,
    read_labels,
    read_numbers,
)
from tosica._parallel import keep_torch_threads
from tosica._settings import logger, warn_user
from tosica._text import count, list_names
from tosica._validate import (
    CellData,
    Either,
    FileKey,
    Flag,
    Integer,
    Names,
    OneOf,
    String,
    as_names,
    validate_params,
)
from tosica.tl._group_tests import (
    are_paired,
    compare_samples,
    group_moments,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tosica._types import BoolArray, FloatArray

Method: TypeAlias = Literal["wilcoxon", "t-test", "t-test_overestim_var", "moderated-t"]

_METHODS_OF_CELLS: tuple[Method, ...] = ("wilcoxon", "t-test", "t-test_overestim_var")
_METHODS_OF_SAMPLES: tuple[Method, ...] = ("moderated-t", "t-test", "wilcoxon")

# What scanpy.tl.rank_genes_groups writes, and the effect sizes.
_DTYPES = {
    "names": "O",
    "scores": "float32",
    "pvals": "float64",
    "pvals_adj": "float64",
    "logfoldchanges": "float32",
    "effect_sizes": "float32",
}
# Fewest cells, or samples, to correlate.
_MIN_REPLICATES = 4
# Fewest samples on a side whose adjusted p-values are evidence.
_MIN_SAMPLES = 3
# Why p-values of a test only rank, and without adjusted ones.
FEW_SAMPLES = f"fewer than {_MIN_SAMPLES} samples on a side"
CIRCULAR = "circular: the groups are labels of the model"
# Why they only rank, with adjusted ones.
CELLS = "cells are the replicates, and not independent: pass sample_key if there are samples"
# Parameters of both functions.
_OF_BOTH = {
    "sample_key": String(optional=True),
    "key": String(),
    "key_added": FileKey(),
    "copy": Flag(),
}


@validate_params(
    adata=CellData(mudata=True),
    groups=Names(),
    reference=Either(first=String(), second=Integer(least=0)),
    method=OneOf(*get_args(Method), optional=True),
    **_OF_BOTH,
)
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
    key: str = ATTRIBUTION,
    key_added: str = "rank_gene_sets",
    n_gene_sets: int | None = None,
    copy: bool = False,
) -> AnnData | None:
    """Rank the gene sets that characterize each group of cells, as sc.tl.rank_genes_groups does.

    The test is on what the genes of each set add to the score of the cells' labels, as
    :func:`tosica.tl.attribute` wrote it with ``cells=True``, instead of on expression. With ``within``,
    conditions are compared in each cell type; with ``sample_key``, the samples are the replicates,
    not their cells.

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
        ``"logreg"`` is not offered: contributions are so small that its penalty
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
        ``key_added`` of :func:`tosica.tl.attribute`, run with ``cells=True``.
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
        Benjamini and Hochberg (float64). ``pvals_adj`` is NaN where p-values are no evidence: with fewer
        than three samples on a side, which do not tell a condition from a sample, and where the groups are
        labels of the model, whose scores the gene sets explain, so that the test is circular. With
        ``within``, one field a category of it, or, if several groups are compared, one field
        ``"<group> in <category>"`` each.
    ``adata.uns[key_added]["logfoldchanges"]``
        Mean in the group less that in the reference, with ``sample_key`` of the means over samples,
        divided by log 2, float32. Contributions are in logits, so that it is by how much the set
        multiplies the odds of the label, as a log2: 1 means odds twice as high.
    ``adata.uns[key_added]["effect_sizes"]``
        Difference of the means in standard deviations of cells within the two sides (Cohen's d),
        float32. Unlike a score, it does not grow with the number of cells.
    ``adata.uns[key_added]["params"]``
        Arguments of the call; ``key`` is what was tested, ``"paired"`` says for each field whether samples were
        paired. ``"caveats"`` says for each field why its
        ``pvals_adj`` is NaN, or that cells are the replicates, as the log does; else it is empty.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If a column cannot be read as groups, or ``groups`` is a single name.
    ValueError
        If cells have no group, all groups or the reference have a single cell, a group has a single
        sample, a group or the method is unknown, or all cells are in one group.

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
    Random numbers stand for what ``attribute`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica_attribution"] = {
    ...     "gene_sets": np.array(["B cell activation", "phagocytosis"])
    ... }
    >>> added = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> added[:, 0] += adata.obs["bulk_labels"] == "CD19+ B"
    >>> adata.obsm["X_tosica_attribution"] = added
    >>> tosica.tl.rank_gene_sets(adata, "bulk_labels")
    >>> adata.uns["rank_gene_sets"]["names"]["CD19+ B"][0]
    'B cell activation'
    >>> sc.get.rank_genes_groups_df(adata, None, key="rank_gene_sets").shape
    (20, 6)
    """
    check_target(adata, "rank_gene_sets", copy=copy)
    method = _check_method(method, sample_key)
    values, gene_sets = read_attention(adata, key)
    samples = _read_samples(adata, sample_key)
    comparison = Comparison(
        values,
        read_groups(adata, groupby),
        groupby,
        str(reference),
        method,
        samples,
        min_cells,
    )
    tested = comparison.select_groups(groups, allow_single_cells=within is not None)
    if within is None:
        tables = comparison.test(tested)
    else:
        categories = read_groups(adata, within, name="within")
        tables = _test_within(comparison, tested, within, categories)
    caveats = _find_caveats(adata, comparison, tables, key)
    for name, caveat in caveats.items():
        if caveat in (CIRCULAR, FEW_SAMPLES):
            tables[name]["pvals_adj"] = np.nan
    result = adata.copy() if copy else adata
    paired = [bool(table.attrs.get("is_paired")) for table in tables.values()]
    result.uns[key_added] = {
        "params": {
            "groupby": groupby,
            "groups": np.array(tested, dtype=object),
            "reference": comparison.reference,
            "method": method,
            "use_raw": False,
            "layer": None,
            "corr_method": "benjamini-hochberg",
            "key": key,
            "within": within,
            "sample_key": sample_key,
            "paired": np.array(paired),
            "caveats": np.array(list(caveats.values()), dtype=object),
        },
        **_records(tables, gene_sets, n_gene_sets, rankby_abs),
    }
    logger.info(
        "Ranked %d gene sets in %s of %r: added adata.uns[%r].",
        len(gene_sets),
        count(len(tables), "group"),
        within or groupby,
        key_added,
    )
    if samples is not None:
        _log_pairing(paired, method)
    _log_caveats(caveats)
    return result if copy else None


def _log_pairing(paired: list[bool], method: Method) -> None:
    """Say whether the samples of the tests are paired."""
    if all(paired):
        pairing = "paired"
    elif any(paired):
        pairing = f"paired in {sum(paired)} of {len(paired)} groups"
    else:
        pairing = "unpaired"
    logger.info("rank_gene_sets: samples are %s, by %s", pairing, method)


def _log_caveats(caveats: dict[str, str]) -> None:
    """Say once for each caveat which tests have it."""
    for caveat in dict.fromkeys(filter(None, caveats.values())):
        of_groups = [name for name in caveats if caveats[name] == caveat]
        if caveat == CELLS:
            logger.info("rank_gene_sets: p-values rank only: %s", caveat)
            continue
        logger.warning(
            "rank_gene_sets: pvals_adj of %s is NaN, and p-values rank only: %s",
            list_names(of_groups),
            caveat,
        )


def _read_samples(adata: AnnData, sample_key: str | None) -> pd.Categorical | None:
    """Read the sample of each cell, if samples are compared."""
    if sample_key is None:
        return None
    return read_groups(adata, sample_key, name="sample_key")


def _check_method(method: Method | None, sample_key: str | None) -> Method:
    """Choose the default test, or check that the test fits cells or samples."""
    methods = _METHODS_OF_CELLS if sample_key is None else _METHODS_OF_SAMPLES
    if method is None:
        return methods[0]
    if method not in methods:
        use = "without" if sample_key is None else "with"
        raise ValueError(
            f"method {method!r} cannot be used {use} sample_key: use one of {list_names(methods)}."
        )
    return method


def _find_caveats(
    adata: AnnData, comparison: Comparison, tables: dict[str, pd.DataFrame], key: str
) -> dict[str, str]:
    """Say for each test why its p-values only rank; nothing if they are evidence."""
    annotation = annotation_key(adata, key)
    labels = read_labels(adata, annotation)
    named = set(comparison.groups.categories) - {UNKNOWN, HETEROGENEOUS}
    # Broader levels, and terms above labels, are sums of the labels' probabilities.
    levels = adata.uns.get(annotation, {}).get("levels", ())
    written = {f"{annotation}_prediction_{level}" for level in levels}
    written.add(f"{annotation}_confident")
    if labels and (named <= set(labels) or comparison.groupby in written):
        return dict.fromkeys(tables, CIRCULAR)
    if comparison.samples is None:
        return dict.fromkeys(tables, CELLS)
    return {
        name: FEW_SAMPLES if table["pvals_adj"].isna().all() else ""
        for name, table in tables.items()
    }


def _records(
    tables: dict[str, pd.DataFrame],
    gene_sets: list[str],
    n_gene_sets: int | None,
    rankby_abs: bool,
) -> dict[str, np.recarray]:
    """Make a record array of each statistic, with one field a group, as scanpy stores its results."""
    names = np.array(gene_sets, dtype=object)
    ranked = {}
    for group, table in tables.items():
        ranked[group] = table.assign(names=names[table.index])
        if rankby_abs:
            ranked[group] = (
                ranked[group]
                .sort_index()
                .sort_values("scores", key=lambda scores: -scores.abs(), kind="stable")
            )
    records = {}
    for field, dtype in _DTYPES.items():
        values = {
            group: table[field].to_numpy()[:n_gene_sets]
            for group, table in ranked.items()
        }
        records[field] = pd.DataFrame(values).to_records(
            index=False, column_dtypes=dtype
        )
    return records


def _test_within(
    comparison: Comparison, tested: list[str], within: str, categories: pd.Categorical
) -> dict[str, pd.DataFrame]:
    """Test in each category of the column ``within`` that has enough cells."""
    tables: dict[str, pd.DataFrame] = {}
    left_out: dict[str, str] = {}
    for code, category in enumerate(categories.categories):
        in_category = comparison.subset(categories.codes == code)
        for group in tested:
            name = category if len(tested) == 1 else f"{group} in {category}"
            try:
                groups = in_category.select_groups([group])
                tables[name] = in_category.test(groups)[group]
            except ValueError as error:
                left_out[name] = str(error)
    if left_out:
        example, reason = next(iter(left_out.items()))
        names = list_names(list(left_out))
        if not tables:
            raise ValueError(
                f"No category of adata.obs[{within!r}] can be compared ({names}); in {example!r}: {reason}"
            )
        warn_user(
            f"Left out {names} of adata.obs[{within!r}]; in {example!r}: {reason}"
        )
    return tables


@dataclass(frozen=True)
class Comparison:
    """Values of cells in groups, and how groups are to be compared with a reference."""

    values: FloatArray
    """Contributions, shape ``(n_cells, n_gene_sets)``."""
    groups: pd.Categorical
    """Group of each cell; all categories have cells."""
    groupby: str
    """Column of ``adata.obs`` with the groups."""
    reference: str
    """``"rest"`` for all other cells, or the name of a group."""
    method: str
    """Test, of cells or, if there are ``samples``, of samples."""
    samples: pd.Categorical | None
    """Sample of each cell."""
    min_cells: int
    """Fewest cells that a sample must have on a side."""

    def subset(self, rows: BoolArray) -> Comparison:
        """Make the same comparison in some of the cells."""
        samples = None
        if self.samples is not None:
            samples = self.samples[rows].remove_unused_categories()
        return replace(
            self,
            values=self.values[rows],
            groups=self.groups[rows].remove_unused_categories(),
            samples=samples,
        )

    def select_groups(
        self,
        groups: Literal["all"] | Iterable[str],
        *,
        allow_single_cells: bool = False,
    ) -> list[str]:
        """Choose the groups to test, in the caller's order.

        Parameters
        ----------
        groups
            Names of groups, or ``"all"``.
        allow_single_cells
            Do not check that each side has two cells.

        Raises
        ------
        TypeError, ValueError
            As :func:`tosica.tl.rank_gene_sets`.
        """
        available = list(self.groups.categories)
        if isinstance(groups, str) and groups != "all":
            raise TypeError(
                f"groups must be 'all' or a list of groups: write groups=[{groups!r}]."
            )
        names = available
        if not isinstance(groups, str):
            names = list(dict.fromkeys(as_names(groups)))
        references = [] if self.reference == "rest" else [self.reference]
        unknown = [name for name in [*names, *references] if name not in available]
        if unknown:
            raise ValueError(
                f"{self._column} has no cell in group {list_names(unknown)}: its groups are {list_names(available)}."
            )
        tested = [name for name in names if name not in references]
        if not tested or len(available) < 2:
            raise ValueError(
                f"There is nothing to compare: groups must name a group of {self._column} that is not the only one, "
                f"nor the reference {self.reference!r}; its groups are {list_names(available)}."
            )
        return tested if allow_single_cells else self._with_two_cells(tested)

    @property
    def _column(self) -> str:
        return f"adata.obs[{self.groupby!r}]"

    def _with_two_cells(self, tested: list[str]) -> list[str]:
        """Leave out groups with a single cell on a side; refuse them if there are no others."""
        sizes = dict(self.groups.value_counts())
        single = []
        for name in tested:
            n_reference = len(self.groups) - sizes[name]
            if self.reference != "rest":
                n_reference = sizes[self.reference]
            if min(sizes[name], n_reference) < 2:
                single.append(name)
        if single:
            message = (
                f"{self._column} has a single cell in {list_names(single)} or in what these are compared with, and a "
                "test needs two"
            )
            if len(single) == len(tested):
                raise ValueError(f"{message}: name other groups in groups=[...].")
            warn_user(f"{message}: left out.")
        return [name for name in tested if name not in single]

    def test(self, tested: list[str]) -> dict[str, pd.DataFrame]:
        """Compare groups with the reference, gene set by gene set.

        Returns
        -------
        A table for each group, from the highest score down: positions of gene sets as its index, and
        the statistics of ``_DTYPES`` as its columns.

        Raises
        ------
        ValueError
            If samples are too few.
        """
        if self.samples is None:
            tables = self._test_cells(tested)
        else:
            tables = {name: self._test_samples(name, self.samples) for name in tested}
        moments = group_moments(self.values, self.groups)
        names = list(self.groups.categories)
        for name, table in tables.items():
            is_reference = self.groups.categories == self.reference
            if self.reference == "rest":
                is_reference = self.groups.categories != name
            difference, effect_sizes = moments.compare(names.index(name), is_reference)
            if self.samples is None:
                table["logfoldchanges"] = difference[table.index] / np.log(2)
            table["effect_sizes"] = effect_sizes[table.index]
        return tables

    def _test_cells(self, tested: list[str]) -> dict[str, pd.DataFrame]:
        """Test with :func:`scanpy.tl.rank_genes_groups`, each cell a replicate."""
        # Gene sets are named by their positions, since a name may occur twice.
        cells = AnnData(self.values)
        cells.obs["group"] = self.groups
        with keep_torch_threads(), warnings.catch_warnings():
            # scanpy fills its table column by column, which pandas finds slow beyond 100 columns.
            warnings.simplefilter("ignore", pd.errors.PerformanceWarning)
            # scanpy's fold change, a ratio of expm1, may overflow; it is not used.
            warnings.simplefilter("ignore", RuntimeWarning)
            sc.tl.rank_genes_groups(
                cells,
                "group",
                groups=tested,
                reference=self.reference,
                method=self.method,
                use_raw=False,
            )
        tests = cells.uns["rank_genes_groups"]
        tables = {}
        for name in tested:
            tables[name] = pd.DataFrame(
                {
                    "scores": tests["scores"][name],
                    "pvals": tests["pvals"][name],
                    "pvals_adj": tests["pvals_adj"][name],
                },
                index=tests["names"][name].astype(int),
            )
        return tables

    def _test_samples(self, name: str, samples: pd.Categorical) -> pd.DataFrame:
        """Test one group, each sample a replicate."""
        in_group = self.groups == name
        in_reference = ~in_group
        if self.reference != "rest":
            in_reference = self.groups == self.reference
        group = self._sample_means(name, in_group, samples)
        reference = self._sample_means(self.reference, in_reference, samples)
        scores, pvals = compare_samples(group, reference, self.method)
        difference = (group.mean() - reference.mean()).to_numpy()
        table = pd.DataFrame(
            {
                "scores": scores,
                "pvals": pvals,
                "pvals_adj": stats.false_discovery_control(pvals),
                "logfoldchanges": difference / np.log(2),
            }
        )
        if min(len(group), len(reference)) < _MIN_SAMPLES:
            table["pvals_adj"] = np.nan
        ranked = table.iloc[np.argsort(-scores, kind="stable")].copy()
        ranked.attrs["is_paired"] = are_paired(group, reference)
        return ranked

    def _sample_means(
        self, side: str, rows: BoolArray, samples: pd.Categorical
    ) -> pd.DataFrame:
        """Average the cells of a side in each sample; two samples at least."""
        values = pd.DataFrame(self.values[rows], dtype=np.float64)
        of_sample = values.groupby(pd.Index(samples[rows]), observed=True)
        means = of_sample.mean()[of_sample.size() >= self.min_cells]
        if len(means) < 2:
            raise ValueError(
                f"{side!r} of {self._column} has {count(len(means), 'sample')} with at least {self.min_cells} cells, "
                "and a test over samples needs two: leave that group out, lower min_cells, or test cells without "
                "sample_key."
            )
        return means


@validate_params(adata=CellData(mudata=True), **_OF_BOTH)
def correlate_gene_sets(
    adata: AnnData,
    obs_key: str,
    *,
    groupby: str | None = None,
    sample_key: str | None = None,
    key: str = ATTRIBUTION,
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
        Column of ``adata.obs`` with numbers (an age, a pseudotime, a dose), booleans (treated or
        not, as 1 and 0), or with an ordered categorical (a stage). Cells in which it is missing or
        infinite are left out.
    groupby
        Column of ``adata.obs``, such as the cell types; correlations are computed in each group. By
        default all cells are one group. Groups with fewer than four replicates, or in which the
        number is constant, are left out with a warning.
    sample_key
        Column of ``adata.obs`` with the samples, which are the replicates then: contributions and
        number are averaged over each sample's cells in the group. Without it, p-values are too
        small where the number belongs to the sample, as an age does, because cells of a sample are
        not independent.
    key
        ``key_added`` of :func:`tosica.tl.attribute`, as in :func:`rank_gene_sets`.
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
        ``correlation`` (−1 to 1; 0 where contributions are constant), ``pval`` (two-sided, by
        Student's t as in :func:`scipy.stats.spearmanr`), ``pval_adj`` (Benjamini and Hochberg,
        over the gene sets of a group) and ``n`` (cells, or samples).

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If ``obs_key`` holds neither numbers, booleans nor an ordered categorical.
    ValueError
        If no group is left.

    Warns
    -----
    UserWarning
        If groups or cells were left out.

    Examples
    --------
    Random numbers stand for what ``attribute`` writes.

    >>> import numpy as np
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> adata.uns["tosica_attribution"] = {
    ...     "gene_sets": np.array(["B cell activation", "phagocytosis"])
    ... }
    >>> added = np.random.default_rng(0).random((adata.n_obs, 2), np.float32)
    >>> added[:, 1] += adata.obs["n_counts"].rank() / adata.n_obs
    >>> adata.obsm["X_tosica_attribution"] = added
    >>> tosica.tl.correlate_gene_sets(adata, "n_counts")
    >>> adata.uns["correlate_gene_sets"]["gene_set"].iloc[0]
    'phagocytosis'
    """
    check_target(adata, "correlate_gene_sets", copy=copy)
    values, gene_sets = read_attention(adata, key)
    numbers = _numbers(adata, obs_key)
    groups = None if groupby is None else read_groups(adata, groupby)
    samples = _read_samples(adata, sample_key)
    is_finite = _finite_cells(numbers, obs_key)
    tables: list[pd.DataFrame] = []
    left_out: list[str] = []
    for name in ["all"] if groups is None else groups.categories:
        rows = is_finite if groups is None else is_finite & (groups == name)
        x = values[rows].astype(np.float64)
        y = numbers[rows]
        if samples is not None:
            by_sample = samples.codes[rows]
            x = pd.DataFrame(x).groupby(by_sample).mean().to_numpy(np.float64)
            y = pd.DataFrame(y).groupby(by_sample).mean().to_numpy(np.float64)[:, 0]
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
    if left_out:
        replicates = "cells" if samples is None else "samples"
        reason = f"fewer than {_MIN_REPLICATES} {replicates}, or the same {obs_key!r} in all of them"
        if not tables:
            raise ValueError(
                f"There is nothing to correlate in {list_names(left_out)}: {reason}."
            )
        warn_user(f"Left out {list_names(left_out)}: {reason}.")
    correlations = pd.concat(tables, ignore_index=True)
    correlations["group"] = pd.Categorical(
        correlations["group"], correlations["group"].unique()
    )
    # Row names in a file are strings.
    correlations.index = correlations.index.astype(str)
    result = adata.copy() if copy else adata
    result.uns[key_added] = correlations
    logger.info(
        "Correlated %d gene sets with %r in %d groups: added adata.uns[%r].",
        len(gene_sets),
        obs_key,
        len(tables),
        key_added,
    )
    return result if copy else None


def _finite_cells(numbers: FloatArray, obs_key: str) -> BoolArray:
    """Tell which cells have a number; warn of the others."""
    is_finite = np.isfinite(numbers)
    if not is_finite.any():
        raise ValueError(f"adata.obs[{obs_key!r}] has no value in any cell.")
    if not is_finite.all():
        n_missing = f"{(~is_finite).sum()} of {len(is_finite)} cells"
        warn_user(
            f"adata.obs[{obs_key!r}] is missing or infinite in {n_missing}, which were left out."
        )
    return is_finite


def _numbers(adata: AnnData, obs_key: str) -> FloatArray:
    """Read numbers, 0 and 1 of booleans, or positions of ordered categories; NaN where they are missing."""
    column = adata.obs.get(obs_key)
    dtype = getattr(column, "dtype", None)
    if isinstance(dtype, pd.CategoricalDtype):
        if not dtype.ordered:
            raise TypeError(
                f"adata.obs[{obs_key!r}] holds categories without an order: give it one with "
                f"adata.obs[{obs_key!r}].cat.as_ordered(), or use numbers."
            )
        codes = column.cat.codes.to_numpy().astype(np.float64)
        return np.where(codes < 0, np.nan, codes)
    if dtype is not None and pd.api.types.is_bool_dtype(dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return read_numbers(adata, obs_key)


def _spearman(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rank correlation of each column with ``y``; 0 and p-value 1 where one of them is constant."""
    ranks = stats.rankdata(x, axis=0)
    ranks -= ranks.mean(axis=0)
    ranks_of_y = stats.rankdata(y) - (len(y) + 1) / 2
    length = np.sqrt((ranks**2).sum(axis=0) * (ranks_of_y**2).sum())
    varies = length > 0
    products = (ranks * ranks_of_y[:, None]).sum(axis=0)
    correlation = np.clip(products / np.where(varies, length, 1.0), -1, 1)
    df = len(y) - 2
    with np.errstate(divide="ignore"):
        t = correlation * np.sqrt(df / ((1 + correlation) * (1 - correlation)))
    return correlation, np.where(varies, 2 * stats.t.sf(np.abs(t), df), 1.0)
