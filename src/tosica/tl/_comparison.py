"""Groups of cells that are compared with a reference, and what the comparison finds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from scipy.stats import false_discovery_control

from tosica._parallel import keep_torch_threads
from tosica._statistics import (
    TooFewSamplesError,
    compare_samples,
    group_moments,
    sample_means,
    standardized_difference,
)
from tosica._validation import check_names, list_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tosica._statistics import GroupMoments, Reference

# Fields of the result of one group by their names, and under "order" the positions of the gene sets
# from the highest score down; each of shape (n_gene_sets,).
Statistics: TypeAlias = dict[str, "NDArray[Any]"]

# Far below any value that matters (attention is about 1 / n_gene_sets), so that 0 / 0 is no change.
_PSEUDOCOUNT = 1e-9


@dataclass(frozen=True)
class Comparison:
    """Values of cells in groups, and how groups are to be compared with a reference."""

    values: NDArray[np.floating]
    """Attention or contributions, shape ``(n_cells, n_gene_sets)``."""
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

    def subset(self, rows: NDArray[np.bool_]) -> Comparison:
        """Make the same comparison in some of the cells."""
        return replace(
            self,
            values=self.values[rows],
            groups=self.groups[rows].remove_unused_categories(),
            samples=None if self.samples is None else self.samples[rows].remove_unused_categories(),
        )

    def select_groups(
        self, wanted: Literal["all"] | Iterable[str], *, allow_single_cells: bool = False
    ) -> list[str]:
        """Names of the groups to test, in the caller's order.

        Parameters
        ----------
        wanted
            Names of groups, or ``"all"``.
        allow_single_cells
            Do not check that each side has two cells.

        Raises
        ------
        TypeError, ValueError
            As :func:`tosica.tl.rank_gene_sets`.
        """
        available = list(self.groups.categories)
        if isinstance(wanted, str):
            if wanted != "all":
                raise TypeError(
                    f"groups must be 'all' or a list of groups: write groups=[{wanted!r}]."
                )
            names = available
        else:
            names = list(dict.fromkeys(check_names("groups", wanted)))
            if not names:
                raise ValueError("groups is empty: name at least one group, or write groups='all'.")
        against = [] if self.reference == "rest" else [self.reference]
        unknown = [name for name in [*names, *against] if name not in available]
        if unknown:
            raise ValueError(
                f"{self._column} has no cell in group {list_names(unknown)}: its groups are "
                f"{list_names(available)}."
            )
        if len(available) < 2:
            raise ValueError(
                f"All cells are {available[0]!r} in {self._column}: there is nothing to compare "
                "them with."
            )
        tested = [name for name in names if name not in against]
        if not tested:
            raise ValueError(
                f"groups holds nothing but the reference {self.reference!r}: name a group to "
                "compare."
            )
        if allow_single_cells:
            return tested
        return self._with_two_cells(tested, against, named=names is not available)

    @property
    def _column(self) -> str:
        return f"adata.obs[{self.groupby!r}]"

    def _with_two_cells(self, tested: list[str], against: list[str], *, named: bool) -> list[str]:
        """Leave out groups of a single cell, or refuse them if the caller has named them."""
        sizes = self.groups.value_counts()
        single = [name for name in [*tested, *against] if sizes[name] < 2]
        kept = [name for name in tested if name not in single]
        if single and (named or not kept or set(against).intersection(single)):
            raise ValueError(
                f"{self._column} has a single cell in {list_names(single)}, and a test needs two: "
                f"name the other groups in groups=[...], or leave that cell out."
            )
        if single:
            warnings.warn(
                f"{self._column} has a single cell in {list_names(single)}, and a test needs two: "
                "left out.",
                UserWarning,
                stacklevel=4,
            )
        n_cells = len(self.groups)
        without_rest = [name for name in kept if not against and n_cells - sizes[name] < 2]
        if without_rest:
            raise ValueError(
                f"{self._column} leaves a single cell to compare {without_rest[0]!r} with, and a "
                "test needs two."
            )
        return kept

    def statistics(self, tested: list[str]) -> dict[str, Statistics]:
        """Compare groups with the reference, gene set by gene set.

        Raises
        ------
        ValueError
            If samples are too few.
        """
        moments = group_moments(self.values, self.groups)
        if self.samples is None:
            results = self._test_cells(tested, moments)
        else:
            results = {name: self._test_samples(name, self.samples) for name in tested}
        for name in tested:
            results[name]["effect_sizes"] = standardized_difference(
                moments, *self._positions(name), within="both sides"
            )
        return results

    def _positions(self, name: str) -> tuple[int, Reference]:
        """Positions of a group and of the reference among the groups."""
        names = list(self.groups.categories)
        reference = self.reference
        return names.index(name), "rest" if reference == "rest" else names.index(reference)

    def _test_cells(self, tested: list[str], moments: GroupMoments) -> dict[str, Statistics]:
        """Test with :func:`scanpy.tl.rank_genes_groups`, each cell a replicate."""
        n_cells, n_gene_sets = self.values.shape
        # Gene sets are named by their positions, since a name may occur twice.
        cells = AnnData(
            X=self.values,
            obs=pd.DataFrame({"group": self.groups}, index=[str(i) for i in range(n_cells)]),
            var=pd.DataFrame(index=[str(i) for i in range(n_gene_sets)]),
        )
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
        result = cells.uns["rank_genes_groups"]
        results: dict[str, Statistics] = {}
        for name in tested:
            order = result["names"][name].astype(int)
            # scanpy has sorted each group by its scores.
            unsorted = np.argsort(order)
            fields = ("scores", "pvals", "pvals_adj")
            results[name] = {field: np.asarray(result[field][name])[unsorted] for field in fields}
            results[name]["order"] = order
            group, reference = self._positions(name)
            results[name]["logfoldchanges"] = _log2_ratio(
                moments.mean[group], moments.reference_mean(group, reference)
            )
        return results

    def _test_samples(self, name: str, samples: pd.Categorical) -> Statistics:
        """Test one group, each sample a replicate."""
        rows = self.groups == name
        others = ~rows if self.reference == "rest" else self.groups == self.reference
        codes, names = np.asarray(samples.codes), list(samples.categories)
        group, reference = (
            sample_means(self.values, codes, names, side, self.min_cells) for side in (rows, others)
        )
        try:
            scores, pvals = compare_samples(group, reference, self.method)
        except TooFewSamplesError:
            n_samples = len(group.names)
            short = name
            if n_samples >= 2:
                short, n_samples = self.reference, len(reference.names)
            least = f" with at least {self.min_cells} cells" if self.min_cells > 1 else ""
            raise ValueError(
                f"{short!r} of {self._column} has {n_samples} sample"
                f"{'' if n_samples == 1 else 's'}{least}, and a test over samples needs two: leave "
                f"that group out, lower min_cells, or test cells without sample_key."
            ) from None
        return {
            "scores": scores,
            "pvals": pvals,
            "pvals_adj": false_discovery_control(pvals),
            "logfoldchanges": _log2_ratio(group.values.mean(axis=0), reference.values.mean(axis=0)),
            "order": np.argsort(-scores, kind="stable"),
        }


def _log2_ratio(mean: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """log2 of a ratio of means; NaN where one of them is negative, beyond rounding."""
    negative = (mean < -_PSEUDOCOUNT) | (reference < -_PSEUDOCOUNT)
    mean, reference = (np.maximum(side, 0) + _PSEUDOCOUNT for side in (mean, reference))
    return np.where(negative, np.nan, np.log2(mean / reference))
