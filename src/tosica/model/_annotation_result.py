"""Labels and scores of a query's cells, which cells are "Unknown", and how a query stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex, to_rgb

from tosica._limits import LIMITS
from tosica._obs import LIGHT_GRAY, UNKNOWN, file_columns
from tosica._settings import logger
from tosica._text import argument, call, format_thousands, parameter
from tosica._validate import Either, FileKey, Fraction, OneOf, validate_params
from tosica.onto._hierarchy import LabelHierarchy
from tosica.onto._ontology import NO_TERM, TERM_SUFFIX, term_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tosica._types import AnnOrMuData, BoolArray, Float32Array, IntArray
    from tosica.model._levels import LabelLevel

Cutoff: TypeAlias = float | Literal["auto"]

# The paper's cutoff. It has no effect with ten labels or fewer.
DEFAULT_CUTOFF = 0.1
CUTOFF = Either(first=Fraction(), second=OneOf("auto"))
# At most one wrong answer in ten, if the probabilities are right.
DEFAULT_CONFIDENCE = 0.9
CONFIDENCE = Fraction(zero=False)
# Stale columns of obs from an earlier call, which belong to other labels.
OUTDATED = (
    "probability_before",
    "novelty",
    "novelty_pvalue",
    "novelty_cluster",
    "novelty_cluster_pvalue",
    "novelty_group",
    f"prediction{TERM_SUFFIX}",
    "confident",
    "confident_probability",
    f"confident{TERM_SUFFIX}",
)
# Fields with a row for each cell.
CELL_FIELDS = (
    "codes",
    "probability",
    "probability_before",
    "probabilities",
    "second_codes",
    "second_probability",
    "attention",
    "latent",
    "novelty",
    "distance",
    "nearest",
    "novelty_pvalue",
    "confident_codes",
    "confident_probability",
    "level_codes",
    "level_probability",
)


@dataclass(frozen=True, kw_only=True)
class AnnotationResult:
    """Labels and scores of the cells of a query, as :meth:`tosica.TOSICA.infer` returns them.

    Parameters
    ----------
    obs_names
        Names of the cells, ``(n_obs,)``.
    labels
        Names of the model's labels, as text.
    dtype
        The labels in the type of the reference's, and whether they have an order.
    colors
        The reference's color of each label.
    gene_sets
        Names of the columns of ``attention``.
    modalities
        Modality of each of these columns, if the model has several.
    present
        Positions of the modalities of the model that the query has.
    terms
        Cell Ontology terms of the labels that have one.
    model
        Fingerprint of the model.
    source
        Where its gene sets are from, if it has one modality.
    n_genes, n_missing_genes
        Genes of the model that its reference expresses, and how many of these the query lacks.
    genes_pvalue
        How often permuted genes are as like the reference's; ``None`` if it cannot be known.
    batch_signal
        Share of what all labels of the query differ by from the reference that is no noise, see
        :meth:`tosica.TOSICA.adapt`; ``None`` if the model does not know its reference.
    likeness
        Correlation of what tells the labels apart in query and reference; ``None`` if it cannot be known.
    label_changes
        Share of each label's cells that the missing genes give another label, ``(n_labels,)``; ``None`` if few are
        missing.
    has_linear, is_calibrated
        Whether the model has a linear branch, and whether its probabilities were calibrated.
    adapted
        To which cells the model was adapted, in words; empty if it was not.
    subset_of, left_out_labels
        Fingerprint of the model that this one has some of the labels of, and the labels that it lacks.
    codes
        Position of each cell's best label in ``labels``, ``(n_obs,)``.
    probability
        Calibrated probability of that label, ``(n_obs,)`` float32.
    probability_before
        Probability of the best label before the model was adapted, ``(n_obs,)`` float32; ``None`` if it was not.
    probabilities
        Calibrated probabilities of all labels, ``(n_obs, n_labels)`` float32.
    second_codes, second_probability
        Position of each cell's second best label in ``labels``, and its probability, ``(n_obs,)``.
    attention
        Attention to each gene set, ``(n_obs, n_gene_sets)`` float32.
    latent
        Class token, ``(n_obs, embed_dim)`` float32.
    hierarchy
        The labels, and the groups above them.
    confident_codes
        Position of each cell's confident answer in the names of ``hierarchy``, ``(n_obs,)``; the
        number of names for none.
    confident_probability
        Calibrated probability of that answer, ``(n_obs,)`` float32.
    levels
        Groups of the labels in broader columns of the reference, from broad to fine.
    level_codes, level_probability
        Position of the group of each cell's best label at each level, and its calibrated probability,
        ``(n_obs, n_levels)``.
    novelty, novelty_pvalue
        How unlike any label of the reference each cell is, and the share of the reference's cells
        that are as far from their label, ``(n_obs,)`` float32.
    distance, nearest
        Standardized distance from the nearest label, by which the p-value is, ``(n_obs,)`` float32; and the position
        of that label among those whose means the model knows.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> result = model.infer(query)
    >>> result.probabilities.shape, result.attention.shape
    ((175, 10), (175, 63))
    >>> result.to_adata(query, cutoff="auto", key_added="strict")
    >>> bool((query.obs["strict_prediction"] == result.predictions("auto")).all())
    True
    """

    obs_names: pd.Index
    labels: list[str]
    dtype: pd.CategoricalDtype
    colors: list[str]
    gene_sets: list[str]
    source: str
    n_genes: int
    n_missing_genes: int
    model: str
    genes_pvalue: float | None = None
    batch_signal: float | None = None
    likeness: float | None = None
    label_changes: Float32Array | None = None
    has_linear: bool = True
    is_calibrated: bool = True
    adapted: str = ""
    subset_of: str = ""
    left_out_labels: Sequence[str] = ()
    modalities: list[str] | None = None
    present: tuple[int, ...] = (0,)
    terms: Mapping[str, str] = field(default_factory=dict)
    codes: IntArray | None = None
    probability: Float32Array | None = None
    probability_before: Float32Array | None = None
    probabilities: Float32Array | None = None
    second_codes: IntArray | None = None
    second_probability: Float32Array | None = None
    attention: Float32Array | None = None
    latent: Float32Array | None = None
    novelty: Float32Array | None = None
    distance: Float32Array | None = None
    nearest: IntArray | None = None
    novelty_pvalue: Float32Array | None = None
    hierarchy: LabelHierarchy | None = None
    confident_codes: IntArray | None = None
    confident_probability: Float32Array | None = None
    levels: Sequence[LabelLevel] = ()
    level_codes: IntArray | None = None
    level_probability: Float32Array | None = None

    @validate_params(cutoff=CUTOFF)
    def predictions(self, cutoff: Cutoff = 0.0) -> pd.Categorical:
        """Name the best label of each cell, or "Unknown" if it is less probable than a cutoff.

        Labels have the type of the reference's. Those that are not text become text if a cell is
        "Unknown", because files cannot hold both in one column.

        Parameters
        ----------
        cutoff
            As in :meth:`tosica.TOSICA.annotate`; 0 calls no cell "Unknown".

        Returns
        -------
        Labels, ``(n_obs,)``. Categories are the labels that occur, in the reference's order.
        """
        # `sc.tl.rank_genes_groups` fails on a category without cells.
        occurring, codes = np.unique(self._codes(cutoff), return_inverse=True)
        labels = pd.Index(self.dtype.categories)
        if len(self.labels) in occurring:
            labels = pd.Index(np.array([*self.labels, UNKNOWN], dtype=object))
        return pd.Categorical.from_codes(
            codes.ravel(), categories=labels[occurring], ordered=self.dtype.ordered
        )

    @validate_params(cutoff=CUTOFF, key_added=FileKey())
    def to_adata(
        self,
        adata: AnnOrMuData,
        *,
        cutoff: Cutoff = DEFAULT_CUTOFF,
        probabilities: bool = False,
        key_added: str = "tosica",
    ) -> None:
        """Write labels, probabilities, attention and the metadata of the model to the query.

        Parameters
        ----------
        adata
            The query, with the same cells in the same order.
        cutoff, probabilities, key_added
            As in :meth:`tosica.TOSICA.annotate`, which also lists what is written.

        Raises
        ------
        ValueError
            If ``adata`` has other cells, or has them in another order, or something else than an
            annotation under ``key_added``.
        """
        if not adata.obs_names.equals(self.obs_names):
            raise ValueError(
                f"adata has other cells than the {len(self.obs_names)} of this result, or another order of them: pass "
                "the cells that infer was called on."
            )
        check_key_added(key_added, adata.uns, adata.obs, adata.obsm)
        attention_key = f"X_{key_added}"
        probabilities_key = f"{key_added}_probabilities"
        # All is made before the first is written, so that a failure leaves the query as it is.
        columns = self.obs(cutoff, key_added)
        uns = self.uns(cutoff, key_added)
        table = self.table() if probabilities else None
        for name in outdated_columns(key_added, adata.uns.get(key_added)):
            if name in adata.obs:
                del adata.obs[name]
        for name, values in columns.items():
            adata.obs[name] = values
        places = [f".obs['{name}']" for name in columns]
        # Tables of an earlier call would contradict the new labels.
        adata.obsm.pop(attention_key, None)
        adata.obsm.pop(probabilities_key, None)
        adata.uns.pop(f"{key_added}_novelty", None)
        if self.attention is not None:
            adata.obsm[attention_key] = self.attention
            places.append(f".obsm['{attention_key}']")
        if table is not None:
            adata.obsm[probabilities_key] = table
            places.append(f".obsm['{probabilities_key}']")
        adata.uns.update(uns)
        self.warn_of_doubts()
        logger.info("annotate: added %s and .uns['%s']", ", ".join(places), key_added)

    def table(self) -> pd.DataFrame:
        """Make a table of all probabilities, with columns that files can hold."""
        columns = file_columns(self.labels, "the model")
        return pd.DataFrame(self.probabilities, index=self.obs_names, columns=columns)

    def obs(self, cutoff: Cutoff, key_added: str) -> dict[str, Any]:
        """Make the columns of ``obs``, by name."""
        predictions = self.predictions(cutoff)
        is_numeric = self.dtype.categories.dtype.kind in "biuf"
        if is_numeric and UNKNOWN in predictions.categories:
            logger.info(
                "annotate: labels are written as text, because files hold no %s beside %r; cutoff=0 calls no cell so",
                self.dtype.categories.dtype,
                UNKNOWN,
            )
        columns: dict[str, Any] = {
            "prediction": predictions,
            "probability": self.probability,
        }
        if self.probability_before is not None:
            columns["probability_before"] = self.probability_before
        if self.terms:
            terms = [self.terms.get(name, NO_TERM) for name in [*self.labels, UNKNOWN]]
            columns[f"prediction{TERM_SUFFIX}"] = _categorical(
                terms, self._codes(cutoff)
            )
        columns.update(self._level_columns(cutoff))
        if self.confident_codes is not None and self.hierarchy is not None:
            names = [*self.hierarchy.names, UNKNOWN]
            columns["confident"] = _categorical(names, self.confident_codes)
            columns["confident_probability"] = self.confident_probability
            if self.terms:
                terms = [*self.hierarchy.terms, NO_TERM]
                columns[f"confident{TERM_SUFFIX}"] = _categorical(
                    terms, self.confident_codes
                )
        if self.novelty is not None:
            columns["novelty"] = self.novelty
            columns["novelty_pvalue"] = self.novelty_pvalue
        return {f"{key_added}_{name}": values for name, values in columns.items()}

    def _level_columns(self, cutoff: Cutoff) -> dict[str, Any]:
        """Make the columns of the broader levels; one threshold for all keeps them consistent."""
        columns: dict[str, Any] = {}
        if self.level_codes is None or self.level_probability is None:
            return columns
        threshold = resolve_cutoff(cutoff, len(self.labels))
        for i, level in enumerate(self.levels):
            is_known = self.level_probability[:, i] >= threshold
            codes = np.where(is_known, self.level_codes[:, i], len(level.groups))
            columns[f"prediction_{level.key}"] = _categorical(
                [*level.groups, UNKNOWN], codes
            )
            columns[f"probability_{level.key}"] = self.level_probability[:, i]
        return columns

    def uns(self, cutoff: Cutoff, key_added: str) -> dict[str, Any]:
        """Make the entries of ``uns``, by name."""
        metadata = {
            "gene_sets": np.array(self.gene_sets, dtype=object),
            "labels": np.array(self.labels, dtype=object),
            "cutoff": resolve_cutoff(cutoff, len(self.labels)),
            "model": self.model,
            "version": version("tosica"),
            "source": self.source,
            "n_genes": self.n_genes,
            "n_missing_genes": self.n_missing_genes,
            "has_linear": self.has_linear,
            "is_calibrated": self.is_calibrated,
            **self._second_labels(cutoff),
        }
        for name in ("genes_pvalue", "batch_signal", "likeness", "label_changes"):
            value = getattr(self, name)
            if value is not None:
                metadata[name] = value
        if self.adapted:
            metadata["adapted"] = self.adapted
        if self.levels:
            metadata["levels"] = np.array(
                [level.key for level in self.levels], dtype=object
            )
        if self.subset_of:
            metadata["subset_of"] = self.subset_of
            metadata["left_out_labels"] = np.array(self.left_out_labels, dtype=object)
        if self.modalities is not None:
            metadata["modalities"] = np.array(self.modalities, dtype=object)
        colors = [*self.colors[: len(self.labels)], LIGHT_GRAY]
        uns = {
            f"{key_added}_prediction_colors": [
                colors[code] for code in np.unique(self._codes(cutoff))
            ],
            key_added: metadata,
        }
        columns = self._level_columns(cutoff)
        for level in self.levels:
            column = columns.get(f"prediction_{level.key}")
            if column is not None:
                uns[f"{key_added}_prediction_{level.key}_colors"] = self._group_colors(
                    level.groups, level.members, column
                )
        if self.confident_codes is not None and self.hierarchy is not None:
            names = self.hierarchy.names
            answers = _categorical([*names, UNKNOWN], self.confident_codes)
            uns[f"{key_added}_confident_colors"] = self._group_colors(
                names, self.hierarchy.members, answers
            )
        return uns

    def _group_colors(
        self, names: list[str], members: BoolArray, column: pd.Categorical[Any]
    ) -> list[str]:
        """Color the groups of labels in a column; a group has the mean color of its labels."""
        label_colors = [to_rgb(color) for color in self.colors[: len(self.labels)]]
        rgb = members @ np.array(label_colors) / members.sum(1, keepdims=True)
        colors = [*map(to_hex, rgb), LIGHT_GRAY]
        color_of_name = dict(zip([*names, UNKNOWN], colors, strict=True))
        return [color_of_name[name] for name in column.categories]

    def arrays(self) -> dict[str, np.ndarray]:
        """Get the fields with a row for each cell that were asked for, by name."""
        arrays = {name: getattr(self, name) for name in CELL_FIELDS}
        return {name: array for name, array in arrays.items() if array is not None}

    def warn_of_doubts(self) -> None:
        """Say in the log if the cells are of another tissue, lack genes of labels, or are unlike the reference."""
        if self.genes_pvalue is not None and self.genes_pvalue > LIMITS.pvalue:
            logger.warning(
                "annotate: do not trust the labels. Genes may have names of other genes: they are no more like the "
                "reference's than permuted ones (p = %.2g)",
                self.genes_pvalue,
            )
        if self.likeness is not None and self.likeness < LIMITS.likeness:
            logger.warning(
                "annotate: look at markers before you trust the labels. What tells them apart has a correlation of "
                "%.2f with what does so in the reference. Below %.1f, tissue or species may be another, or nuclei are "
                "beside cells",
                self.likeness,
                LIMITS.likeness,
            )
        changed = self.labels_that_change()
        if changed:
            logger.warning(
                "annotate: for the genes that are missing, many cells of these labels get another one: %s",
                ", ".join(f"{label} ({share:.0%})" for label, share in changed.items()),
            )
        if self.novelty_pvalue is None:
            return
        share = (self.novelty_pvalue <= LIMITS.pvalue).mean()
        if share > LIMITS.novel_cells:
            logger.warning(
                "annotate: %.0f %% of the cells are as far from their label as at most %.0f %% of "
                "the reference's cells are, also without what each label's cells share. They may be of new types: "
                "%s looks closer",
                100 * share,
                100 * LIMITS.pvalue,
                call("tosica.tl.novelty", "adata, model"),
            )

    def labels_that_change(self) -> dict[str, float]:
        """Labels that need the missing genes, with the share of their cells that gets another label."""
        if self.label_changes is None:
            return {}
        return {
            label: float(share)
            for label, share in zip(self.labels, self.label_changes, strict=True)
            if share > LIMITS.changed_by_genes
        }

    def _second_labels(self, cutoff: Cutoff) -> dict[str, NDArray[Any]]:
        """Find the label that the cells of each label would have next, and its mean probability in them."""
        n_labels = len(self.labels)
        cells = pd.DataFrame(
            {
                "label": self._codes(cutoff),
                "second": self.second_codes,
                "probability": self.second_probability,
            }
        )
        cells = cells[cells["label"] < n_labels]
        cells = cells[cells["label"] != cells["second"]]
        total = cells.pivot_table("probability", "label", "second", "sum", 0.0)
        mean = total.div(cells["label"].value_counts(), axis=0)
        second_labels = np.full(n_labels, "", dtype=object)
        second_labels[mean.index] = np.array(self.labels)[mean.idxmax(axis=1)]
        probabilities = np.zeros(n_labels, np.float32)
        probabilities[mean.index] = mean.max(axis=1)
        return {"second_label": second_labels, "second_probability": probabilities}

    def _codes(self, cutoff: Cutoff) -> IntArray:
        """Code of each cell's label; "Unknown" has the number of labels."""
        if self.codes is None or self.probability is None:
            raise ValueError("The result has no labels: ask infer for 'probabilities'.")
        threshold = resolve_cutoff(cutoff, len(self.labels))
        return np.where(self.probability < threshold, len(self.labels), self.codes)


def check_key_added(key_added: str, uns: Any, obs: pd.DataFrame, obsm: Any) -> None:
    """Refuse a key under which there is something else than an annotation.

    Parameters
    ----------
    key_added
        Where an annotation is to be written.
    uns, obs, obsm
        What there is, in memory or in a file.

    Raises
    ------
    ValueError
        If it is no annotation, as what scanpy writes under "pca" or "umap".
    """
    record = uns.get(key_added)
    place = None
    if record is not None and not (hasattr(record, "keys") and "labels" in record):
        place = f"uns[{key_added!r}]"
    # Programs that keep obs and obsm may lose uns.
    elif f"X_{key_added}" in obsm and f"{key_added}_prediction" not in obs:
        place = f"obsm['X_{key_added}']"
    if place is not None:
        raise ValueError(
            f"{argument('key_added')} {key_added!r} would replace {place}, which is no annotation of a model: pass "
            "another one."
        )


def outdated_columns(key_added: str, record: Any) -> list[str]:
    """Name the columns of ``obs`` that an earlier call wrote and a later one may not write.

    Parameters
    ----------
    key_added
        ``key_added`` of both calls.
    record
        What the earlier call wrote to ``uns``; anything else if there was none.
    """
    levels = record.get("levels", ()) if isinstance(record, Mapping) else ()
    suffixes = list(OUTDATED)
    for level in levels:
        suffixes += [f"prediction_{level}", f"probability_{level}"]
    return [f"{key_added}_{suffix}" for suffix in suffixes]


def _categorical(names: list[str], codes: IntArray) -> pd.Categorical:
    """Name codes; categories are the names that occur, in their order."""
    values = np.array(names, dtype=object)
    return pd.Categorical(values[codes], list(dict.fromkeys(values[np.unique(codes)])))


def resolve_cutoff(cutoff: Cutoff, n_labels: int) -> float:
    """Turn a cutoff into a number.

    The best of ``n_labels`` labels has a probability of at least ``1 / n_labels``. ``"auto"`` is
    halfway between this and 1.

    Parameters
    ----------
    cutoff
        A number from 0 to 1, or ``"auto"``.
    n_labels
        Number of labels of the model.

    Examples
    --------
    >>> resolve_cutoff("auto", 2), resolve_cutoff("auto", 10), resolve_cutoff(0.3, 10)
    (0.75, 0.55, 0.3)
    """
    return (1 + 1 / n_labels) / 2 if cutoff == "auto" else float(cutoff)


def warn_of_cutoff(cutoff: Cutoff, n_labels: int) -> None:
    """Say in the log if a cutoff that was chosen calls no cell "Unknown"."""
    if cutoff == "auto" or cutoff in (DEFAULT_CUTOFF, 0) or cutoff > 1 / n_labels:
        return
    logger.warning(
        'annotate: %s calls no cell "Unknown", because the best of %d labels always has a '
        "probability of at least %.3g: pass a higher one, or %s, which is %.3g here",
        parameter("cutoff", cutoff),
        n_labels,
        1 / n_labels,
        parameter("cutoff", "auto"),
        resolve_cutoff("auto", n_labels),
    )


def sets_as_terms(
    inside: pd.DataFrame, labels: list[str], terms: dict[str, str]
) -> pd.DataFrame:
    """Report each label set as the term that covers it and the fewest other labels.

    Parameters
    ----------
    inside
        Whether a label is in a cell's set, ``(n_obs, n_labels)``.
    labels
        Names of the labels.
    terms
        Label to term in the Cell Ontology.
    """
    cover = LabelHierarchy(labels, terms)
    # Most cells share a few sets.
    sets, set_of_cell = np.unique(inside.to_numpy(), axis=0, return_inverse=True)
    names = np.array(labels, dtype=object)
    rows = []
    for members in sets:
        covered = cover.cover(members)
        row = {
            "ontology_term_id": covered.term or NO_TERM,
            "ontology_label": NO_TERM,
            "n_labels": int(covered.members.sum()),
            "labels": " || ".join(names[covered.members]),
        }
        if covered.term:
            row["ontology_label"] = term_name(covered.term)
        rows.append(row)
    table = pd.DataFrame(rows).iloc[set_of_cell.ravel()].set_axis(inside.index)
    has_no_term = table["ontology_term_id"] == NO_TERM
    n_listed = int((has_no_term & (table["n_labels"] > 0)).sum())
    if n_listed:
        logger.info(
            "predict_set: the sets of %s cells have a label without a term, so that their labels are listed only",
            format_thousands(n_listed),
        )
    for name in ("ontology_term_id", "ontology_label", "labels"):
        table[name] = pd.Categorical(table[name])
    return table
