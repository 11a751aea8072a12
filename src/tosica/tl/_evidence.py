"""The evidence for an annotation: the cells, their genes and known markers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._obs import (
    UNKNOWN,
    read_attention,
    read_groups,
    read_labels,
    read_numbers,
    read_probabilities,
    stands_for_no_label,
)
from tosica._settings import only_warnings, query_logger
from tosica._text import call, did_you_mean, in_python, list_names, parameter
from tosica._validate import CellData, Flag, Names, String, as_names
from tosica.data import ExpressionSource, LogNormalization, detect_values
from tosica.gs._gene_list import GeneList
from tosica.gs._match import match_genes
from tosica.model._tosica import MODEL

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica._types import AnnOrMuData, FloatArray, IntArray, ObjectArray
    from tosica.model import TOSICA

# Parameters of functions that run the model on cells that it annotated.
ANNOTATED_BY_MODEL = {
    "adata": CellData(),
    "model": MODEL,
    "layer": String(optional=True),
    "use_raw": Flag(),
    "key": String(),
    "copy": Flag(),
}


def refuse_mudata(model: TOSICA) -> None:
    """Raise a ``ValueError`` for models of several modalities."""
    if model.modalities[0].name is not None:
        names = [str(modality.name) for modality in model.modalities]
        function = in_python("function", "command")
        cure = in_python(f", as by TOSICA.setup_anndata(mdata[{names[0]!r}], ...)")
        raise ValueError(
            f"The model was set up with a MuData ({list_names(names)}), and this {function} takes models of an AnnData "
            f"only: train a model of one modality{cure}."
        )


def annotating_model(
    adata: AnnOrMuData, model: TOSICA, key: str, *, mudata: bool = False
) -> TOSICA:
    """Get the model that annotated cells: this one, or the one of those of its labels that could occur.

    Parameters
    ----------
    adata
        Annotated query.
    model
        The model that ``annotate`` was called on.
    key
        ``key_added`` of ``model.annotate``.
    mudata
        Accept a model of several modalities.

    Returns
    -------
    ``model``, or ``model.subset(labels)`` if ``annotate`` was called with ``labels``.

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`~tosica._obs.read_attention`.
    RuntimeError
        If the model is not trained.
    ValueError
        If the model has several modalities, or another model annotated ``adata``.
    """
    if not mudata:
        refuse_mudata(model)
    model._check_trained()
    read_attention(adata, key)
    record = adata.uns[key]
    written_by = str(record.get("model", ""))
    if str(record.get("subset_of", "")) == model.fingerprint:
        model = model.subset(read_labels(adata, key))
    if written_by != model.fingerprint:
        writer = "an unknown model"
        if written_by:
            writer = f"a model with the fingerprint {written_by!r}"
        adapted = ""
        if record.get("adapted"):
            adapted = in_python(" (after adapting, model.adapted_)")
        raise ValueError(
            f"adata.uns[{key!r}] was written by {writer}, and this model's is {model.fingerprint!r}: "
            f"pass the model that annotated adata{adapted}, or run "
            f"{call('model.annotate', f'adata, key_added={key!r}')} with this one."
        )
    return model


# Cells in which markers are looked for: as many for each label in the mean, and at least as many of each label that
# has them.
_N_TESTED = 200


class Agreement(NamedTuple):
    """Agreement of the cells that have a label and are known as one of the model."""

    share: float
    """Share of them that got this label."""
    probability: float
    """Their mean probability."""
    n: int
    """How many they are."""


class Cells:
    """The cells of an annotated AnnData, which is not changed.

    ``labels`` are those that occur, "Unknown" too, ``codes`` the position of each cell's label in
    them, ``(n_obs,)``, ``predicted`` its name, ``n_cells`` how many each label has, ``types`` the
    positions of those that are cell types, and ``all_labels`` those of the model. ``record`` is what
    ``model.annotate`` wrote to ``uns``. ``second`` is the second best label of each label's cells and
    its mean probability in them. ``levels`` has the groups and probabilities of each broader level, from
    broad to fine. ``probability``, ``probability_before`` the model was adapted, ``novelty`` and
    ``novelty_pvalue`` are ``(n_obs,)``; ``has_novelty_of_clusters`` says that :func:`tosica.tl.novelty` wrote the
    novelty, ``is_corrected`` that it took off what the cells have in common, and ``clusters`` is its table. ``samples``
    and ``known``, the labels that were known before, are there if the caller named their columns.

    Parameters
    ----------
    adata
        The annotated cells.
    key
        ``key_added`` of ``model.annotate``.
    labels_key, sample_key
        Columns of ``adata.obs`` with labels that were known before, and with samples.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If a column is of the wrong kind.
    ValueError
        If there are no cells, or cells without a label, sample or probability.
    """

    def __init__(
        self,
        adata: AnnData,
        key: str,
        *,
        labels_key: str | None = None,
        sample_key: str | None = None,
    ) -> None:
        read_attention(adata, key)
        prediction = read_groups(adata, f"{key}_prediction")
        self.probability = read_probabilities(adata, key)
        self.key = key
        self.sample_key = sample_key
        self.labels_key = labels_key
        self.labels: list[str] = list(prediction.categories)
        self.codes = np.asarray(prediction.codes, dtype=np.int64)
        self.n_obs = len(self.codes)
        self.n_cells = np.bincount(self.codes, minlength=len(self.labels))
        self.predicted = np.array(self.labels, dtype=object)[self.codes]
        self.types = [
            code for code, label in enumerate(self.labels) if label != UNKNOWN
        ]
        type_names = [label for label in self.labels if label != UNKNOWN]
        self.all_labels = read_labels(adata, key) or type_names
        self.record: Mapping[str, Any] = adata.uns[key]
        # Label of each label's cells that is second best, and its mean probability.
        self.second = {
            label: (str(second), float(probability))
            for label, second, probability in zip(
                self.all_labels,
                self.record.get("second_label", ()),
                self.record.get("second_probability", ()),
                strict=False,
            )
            if second
        }
        self.levels = {
            str(level): (
                read_groups(adata, f"{key}_prediction_{level}"),
                read_numbers(adata, f"{key}_probability_{level}"),
            )
            for level in self.record.get("levels", ())
        }
        self.probability_before: FloatArray | None = None
        if f"{key}_probability_before" in adata.obs:
            self.probability_before = read_numbers(adata, f"{key}_probability_before")
        self.novelty: FloatArray | None = None
        self.novelty_pvalue: FloatArray | None = None
        if {f"{key}_novelty", f"{key}_novelty_pvalue"} <= set(adata.obs):
            self.novelty = read_numbers(adata, f"{key}_novelty")
            self.novelty_pvalue = read_numbers(adata, f"{key}_novelty_pvalue")
        self.has_novelty_of_clusters = f"{key}_novelty_cluster" in adata.obs
        # Files that do not say so were corrected by default.
        self.is_corrected = self.has_novelty_of_clusters and bool(
            self.record.get("novelty_corrected", True)
        )
        self.clusters = _read_clusters_of_novelty(adata, key)
        self.samples = None
        if sample_key is not None:
            self.samples = read_groups(adata, sample_key, name="sample_key")
        self.known = None
        if labels_key is not None:
            self.known = read_known_labels(adata, labels_key, self.all_labels)

    def by_type(self, values: NDArray[Any]) -> Any:
        """Group values of the cells, ``(n_obs,)``, by cell type."""
        is_type = self.predicted != UNKNOWN
        return pd.Series(values[is_type]).groupby(self.predicted[is_type])

    def agreement(self) -> Agreement | None:
        """Compare labels with known ones; ``None`` if no cell has both."""
        if self.known is None:
            return None
        # The last name is that of cells without a known label, which have code -1.
        names = np.array([*self.known.categories, ""], dtype=object)
        labels = names[self.known.codes]
        is_comparable = np.isin(labels, self.all_labels) & (self.predicted != UNKNOWN)
        if not is_comparable.any():
            return None
        is_same = self.predicted == labels
        return Agreement(
            float(is_same[is_comparable].mean()),
            float(self.probability[is_comparable].mean()),
            int(is_comparable.sum()),
        )


def read_known_labels(
    adata: AnnOrMuData, labels_key: str, labels: Sequence[str]
) -> pd.Categorical:
    """Read known labels; "Unassigned" and the like are none (code -1).

    Parameters
    ----------
    adata
        Annotated cells.
    labels_key
        Column of ``adata.obs``.
    labels
        Those of the model, whose spelling of numbers counts.
    """
    known = read_groups(
        adata, labels_key, name="labels_key", allow_missing=True, known=labels
    )
    none = [
        name
        for name in known.categories
        if stands_for_no_label(name) and name not in labels
    ]
    return known.remove_categories(none)


def _read_clusters_of_novelty(adata: AnnOrMuData, key: str) -> pd.DataFrame | None:
    """Read what :func:`tosica.tl.novelty` wrote of clusters; of a subset, those that still have cells."""
    table: pd.DataFrame | None = adata.uns.get(f"{key}_novelty")
    if table is None:
        return None
    # Files that were written before clusters were compared.
    if "similar_to" not in table:
        table = table.assign(similar_to="")
    column = f"{key}_novelty_group"
    if column not in adata.obs:
        return table
    n_cells = read_groups(adata, column, allow_missing=True).value_counts()
    table = table.assign(
        n_cells=n_cells.reindex(table["cluster"], fill_value=0).to_numpy()
    )
    table = table[table["n_cells"] > 0]
    # Of clusters whose first one has no cells left, the next one is the first.
    is_led = table["similar_to"] != ""
    is_orphan = is_led & ~table["similar_to"].isin(table["cluster"])
    successor = table["cluster"].groupby(table["similar_to"]).transform("first")
    is_successor = is_orphan & (successor == table["cluster"])
    similar_to = table["similar_to"].mask(is_orphan, successor).mask(is_successor, "")
    return table.assign(similar_to=similar_to)


@dataclass(frozen=True)
class Evidence:
    """The evidence for an annotation.

    ``tested`` are the positions of the cells of ``expression``, which is log-normalized;
    ``no_expression`` is the reason if there is none. ``known`` has the caller's markers: ``label``,
    ``gene``, the label that it is ``highest_in``, empty if the data lack it, the ``share`` of the
    label's cells that express it, and its ``name`` in the data.
    """

    cells: Cells
    tested: IntArray
    expression: AnnData | None
    no_expression: str
    known: pd.DataFrame


def collect_evidence(
    source: ExpressionSource, cells: Cells, markers: Mapping[str, Any] | None, seed: int
) -> Evidence:
    """Ask the expression about an annotation.

    Parameters
    ----------
    source
        The annotated cells, and which of their matrices to read.
    cells
        Their annotation.
    markers, seed
        As in :func:`tosica.tl.check`.

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.check`.
    """
    markers_of_label = []
    for label, genes in (markers or {}).items():
        if label not in cells.all_labels:
            raise KeyError(
                f"markers names {label!r}, which is no label of the annotation"
                f"{did_you_mean(str(label), cells.all_labels)}"
            )
        Names().check(f"markers[{label!r}]", genes)
        markers_of_label += [(label, gene) for gene in dict.fromkeys(as_names(genes))]
    rng = np.random.default_rng(seed)
    n_tested = _N_TESTED * len(cells.labels)
    tested = draw_cells(cells.codes, n_tested, rng, least=_N_TESTED)
    tested = tested[cells.predicted[tested] != UNKNOWN]
    expression, reason = _log_expression(source, tested)
    table = pd.DataFrame(markers_of_label, columns=["label", "gene"])
    known = _known_markers(expression, cells.predicted[tested], table)
    return Evidence(cells, tested, expression, reason, known)


def read_contributions(adata: AnnData, cells: Cells) -> Mapping[str, Any] | None:
    """Read the result of :func:`tosica.tl.attribute` for these labels; ``None`` if there is none."""
    record = adata.uns.get(f"{cells.key}_attribution")
    if not isinstance(record, Mapping):
        return None
    expected = {
        "model": cells.record.get("model"),
        "groupby": f"{cells.key}_prediction",
        "target": "own label",
    }
    for name, value in expected.items():
        if str(record.get(name)) != str(value):
            return None
    return record


@contextmanager
def ask_quietly() -> Iterator[None]:
    """Suppress the messages of ``annotate``, as of missing genes, which the user has seen before."""
    with only_warnings(query_logger), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def draw_cells(
    codes: IntArray, most: int, rng: np.random.Generator, *, least: int
) -> IntArray:
    """Draw cells at random so that rare labels keep theirs.

    Parameters
    ----------
    codes
        Label of each cell, ``(n_obs,)``.
    most
        Cells to draw.
    rng
        Source of the draw.
    least
        Cells that each label keeps, or all that it has; fewer if labels are too many for that.

    Returns
    -------
    Positions in ascending order, ``(min(n_obs, most),)``.
    """
    shuffled = rng.permutation(len(codes))
    shuffled_codes = codes[shuffled]
    rank_in_label = pd.Series(shuffled_codes).groupby(shuffled_codes).cumcount()
    n_labels = len(np.unique(codes))
    is_extra = rank_in_label.to_numpy() >= min(least, most // n_labels)
    return np.sort(shuffled[np.argsort(is_extra, kind="stable")[:most]])


def _log_expression(
    source: ExpressionSource, rows: IntArray
) -> tuple[AnnData | None, str]:
    """Log-normalized expression of some cells, or why there is none."""
    if not len(rows):
        return None, "no cell has a label"
    if not isinstance(source.data, ad.AnnData):
        return (
            None,
            "the cells have several modalities; pass one of them for its markers",
        )
    try:
        matrix = source.matrix()
        block = matrix.take(rows)
        values = detect_values(block, matrix.where)
    except (ValueError, TypeError) as error:
        if source.layer is not None or source.use_raw:
            raise
        return (
            None,
            f"{str(error).rstrip('.')}; name unscaled expression with "
            f"{parameter('layer')} or {parameter('use_raw', True)}",
        )
    if values is None:
        return (
            None,
            f"{matrix.where} is zero in all cells; name unscaled expression with "
            f"{parameter('layer')} or {parameter('use_raw', True)}",
        )
    block = sp.csr_matrix(block, dtype=np.float32)
    if values == "counts":
        block = LogNormalization().normalize_block(block)
    names = ad.utils.make_index_unique(pd.Index(matrix.names.astype(str)))
    return ad.AnnData(sp.csr_matrix(block), var=pd.DataFrame(index=names)), ""


def _known_markers(
    expression: AnnData | None, predicted: ObjectArray, markers: pd.DataFrame
) -> pd.DataFrame:
    """Find in which label each known marker is expressed most; genes may have another name in the data."""
    if expression is None or markers.empty:
        return markers[:0].assign(highest_in="", share=np.nan, name="")
    names = pd.Index(markers["gene"].unique())
    match = match_genes(GeneList(expression.var_names), GeneList(names))
    found = pd.Series(match.rows, names[match.targets])
    column_of_marker = found[~found.index.duplicated()]
    measured = expression[:, column_of_marker].to_df()
    name_in_data = pd.Series(measured.columns, column_of_marker.index)
    measured.columns = column_of_marker.index
    means = measured.groupby(predicted).mean()
    shares = (measured > 0).groupby(predicted).mean()
    highest = means.idxmax().astype(object).where(means.max() > 0, "none")
    pairs = pd.MultiIndex.from_frame(markers[["gene", "label"]])
    return markers.assign(
        highest_in=highest.reindex(markers["gene"], fill_value="").to_numpy(),
        share=shares.unstack().reindex(pairs).to_numpy(),
        name=name_in_data.reindex(markers["gene"], fill_value="").to_numpy(),
    )
