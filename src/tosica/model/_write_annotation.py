"""Write an annotation into the AnnData or MuData of a query."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from tosica._constants import UNKNOWN
from tosica._logging import logger
from tosica._validation import file_columns
from tosica.model._label_type import LabelType
from tosica.onto._terms import NO_TERM, TERM_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData
    from mudata import MuData

# The grey that scanpy gives to missing values.
_UNKNOWN_COLOR = "#d3d3d3"
# A warning is logged if more than this share of cells have a p-value of novelty up to 0.05.
_UNLIKELY, _MANY_UNLIKELY = 0.05, 0.3


class Annotation(NamedTuple):
    """What a model says of some cells, before it is written anywhere.

    ``labels`` is the code of each cell's best label, ``(n_obs,)``, and ``probability`` that label's
    probability, float32. ``attention`` is ``(n_obs, n_gene_sets)`` float32. There may be
    ``probabilities``, those of all labels, ``(n_obs, n_labels)``, and ``novelty`` with its
    p-values, ``(n_obs,)``.
    """

    labels: np.ndarray
    probability: np.ndarray
    attention: np.ndarray
    probabilities: np.ndarray | None = None
    novelty: np.ndarray | None = None
    novelty_pvalues: np.ndarray | None = None


class AnnotationNames(NamedTuple):
    """What codes and columns of an annotation stand for, and under which names it is written.

    ``labels`` and ``colors`` are those of the model, ``gene_sets`` the columns of the attention,
    and ``modalities`` that of each, if the model has several. Cells whose best label is less
    probable than ``cutoff`` are called "Unknown". ``fingerprint`` is that of the model,
    ``key_added`` part of all keys, as in :meth:`tosica.TOSICA.annotate`. ``term_of_label`` has the
    Cell Ontology's terms of those labels that have one. ``label_type`` is the type of the
    reference's labels.
    """

    labels: list[str]
    colors: list[str]
    gene_sets: list[str]
    cutoff: float
    fingerprint: str
    key_added: str
    modalities: list[str] | None = None
    term_of_label: Mapping[str, str] | None = None
    label_type: LabelType = LabelType()

    def obs(self, found: Annotation) -> dict[str, Any]:
        """Columns of ``obs`` by name.

        Only labels that occur become categories: ``sc.tl.rank_genes_groups`` fails on a category
        without cells. The full list is in ``adata.uns[key_added]["labels"]``.
        """
        code = self._codes(found)
        names = np.array([*self.labels, UNKNOWN], dtype=object)
        columns: dict[str, Any] = {
            "prediction": self._predictions(code),
            "probability": found.probability,
        }
        if self.term_of_label:
            terms = [self.term_of_label.get(str(name), NO_TERM) for name in names]
            occurring = dict.fromkeys(terms[i] for i in np.unique(code))
            columns[f"prediction{TERM_SUFFIX}"] = pd.Categorical(
                np.array(terms, dtype=object)[code], categories=list(occurring)
            )
        if found.novelty is not None and found.novelty_pvalues is not None:
            columns["novelty"] = found.novelty.astype(np.float32)
            columns["novelty_pvalue"] = found.novelty_pvalues.astype(np.float32)
        return {f"{self.key_added}_{name}": values for name, values in columns.items()}

    def uns(self, found: Annotation) -> dict[str, Any]:
        """Entries of ``uns`` by name."""
        metadata = {
            "gene_sets": np.array(self.gene_sets, dtype=object),
            "labels": np.array(self.labels, dtype=object),
            "cutoff": float(self.cutoff),
            "model": self.fingerprint,
            "version": version("tosica"),
        }
        if self.modalities is not None:
            metadata["modalities"] = np.array(self.modalities, dtype=object)
        colors = [*self.colors[: len(self.labels)], _UNKNOWN_COLOR]
        occurring = [colors[i] for i in np.unique(self._codes(found))]
        return {f"{self.key_added}_prediction_colors": occurring, self.key_added: metadata}

    def _predictions(self, code: np.ndarray) -> pd.Categorical:
        """Labels in the type of the reference's; as text if there is "Unknown" among numbers."""
        occurring, codes = np.unique(code, return_inverse=True)
        names = np.array([*self.labels, UNKNOWN], dtype=object)
        categories = pd.Index(names[occurring])
        if not len(occurring) or occurring[-1] < len(self.labels):
            categories = pd.Index(self.label_type.values(self.labels)[occurring])
        elif self.label_type.dtype is not None:
            logger.info(
                "annotate: labels are written as text, because files hold no %s beside %r; "
                "cutoff=0 calls no cell so",
                self.label_type.dtype,
                UNKNOWN,
            )
        return pd.Categorical.from_codes(
            codes.ravel(), categories=categories, ordered=self.label_type.ordered
        )

    def _codes(self, found: Annotation) -> np.ndarray:
        """Code of each cell's label; cells without one have the number of labels."""
        return np.where(found.probability < self.cutoff, len(self.labels), found.labels)


def write_annotation(adata: AnnData | MuData, found: Annotation, names: AnnotationNames) -> None:
    """Write labels, probabilities, attention, and the metadata of the model.

    Parameters
    ----------
    adata
        The query, an AnnData or a MuData.
    found
        What the model says of its cells.
    names
        What that stands for, and where it is written.
    """
    key = names.key_added
    for name in outdated_columns(key):
        if name in adata.obs:
            del adata.obs[name]
    columns = names.obs(found)
    for name, values in columns.items():
        adata.obs[name] = values
    adata.obsm[f"X_{key}"] = found.attention
    # The table of an earlier call would contradict the new labels.
    adata.obsm.pop(f"{key}_probabilities", None)
    written = [*(f".obs['{name}']" for name in columns), f".obsm['X_{key}']"]
    if found.probabilities is not None:
        adata.obsm[f"{key}_probabilities"] = pd.DataFrame(
            found.probabilities,
            index=adata.obs_names,
            columns=file_columns(names.labels, "the model"),
        )
        written.append(f".obsm['{key}_probabilities']")
    adata.uns.update(names.uns(found))
    warn_of_novelty(found)
    logger.info("annotate: added %s and .uns['%s']", ", ".join(written), key)


def outdated_columns(key_added: str) -> list[str]:
    """Columns of ``obs`` that an earlier call wrote, and that would belong to other labels."""
    kinds = ["novelty", "novelty_pvalue", "novelty_cluster", "novelty_cluster_pvalue"]
    kinds.append(f"prediction{TERM_SUFFIX}")
    return [f"{key_added}_{kind}" for kind in kinds]


def warn_of_novelty(found: Annotation) -> None:
    """Say in the log if unusually many cells are unlike the reference."""
    pvalues = found.novelty_pvalues
    if pvalues is None or (pvalues <= _UNLIKELY).mean() <= _MANY_UNLIKELY:
        return
    logger.warning(
        "annotate: %.0f %% of the cells are as far from every label as at most %.0f %% of the "
        "reference's cells are. Another batch or technology has this effect as well as new "
        "types: tosica.tl.novelty(adata, model) takes off what the query has in common",
        100 * (pvalues <= _UNLIKELY).mean(),
        100 * _UNLIKELY,
    )
