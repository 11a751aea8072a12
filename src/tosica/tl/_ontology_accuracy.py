"""Which predictions are right by the Cell Ontology: the truth itself, or a kind of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from tosica._groups import read_groups
from tosica.onto._ontology import NO_TERM, TERM_SUFFIX, is_kind_of, match_label, read_ontology

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData


class OntologyScores(NamedTuple):
    """Scores of cells, ``(n_cells,)`` bool: whether a prediction is right, and both have terms."""

    right: np.ndarray
    has_terms: np.ndarray


def score_terms(
    adata: AnnData | MuData, labels_key: str, prediction: str, cells: np.ndarray
) -> OntologyScores:
    """Score predictions by the terms of known and predicted labels.

    Parameters
    ----------
    adata
        The query.
    labels_key, prediction
        Columns of ``adata.obs`` with the known and the predicted labels.
    cells
        Which cells to score, bool.

    Raises
    ------
    ValueError
        If no cell has a term for both.
    """
    table = pd.DataFrame(
        {
            "known": np.asarray(_labels(adata, labels_key)[cells]).astype(str),
            "called": np.asarray(_labels(adata, prediction)[cells]).astype(str),
            "truth": _terms(adata, labels_key)[cells],
            "term": _terms(adata, prediction)[cells],
        }
    )
    pairs = table.drop_duplicates()
    known, called = (pairs[name].to_numpy() for name in ("known", "called"))
    kind_of = [
        is_kind_of(term, truth) for truth, term in zip(pairs["truth"], pairs["term"], strict=True)
    ]
    pairs = pairs.assign(
        right=(known == called) | np.array(kind_of, dtype=bool),
        has_terms=(pairs["truth"] != NO_TERM) & (pairs["term"] != NO_TERM),
    )
    if not pairs["has_terms"].any():
        without = labels_key if (pairs["truth"] == NO_TERM).all() else prediction
        raise ValueError(
            f"ontology=True was given, but no cell has a term for its label in "
            f"adata.obs[{without!r}]: call tosica.onto.map_labels(adata, {without!r}, "
            "mapping={label: identifier}) first."
        )
    scored = table.merge(pairs, how="left", on=["known", "called", "truth", "term"])
    return OntologyScores(scored["right"].to_numpy(), scored["has_terms"].to_numpy())


def _labels(adata: AnnData | MuData, column: str) -> pd.Categorical:
    return read_groups(adata, column, name="labels_key", allow_missing=True)


def _terms(adata: AnnData | MuData, column: str) -> np.ndarray:
    """Term of each cell's label: from the column that has them, else by the label's name."""
    of_terms = f"{column}{TERM_SUFFIX}"
    if of_terms in adata.obs:
        groups = _labels(adata, of_terms)
        names = read_ontology().names
        terms = [term if term in names else NO_TERM for term in groups.categories]
    else:
        groups = _labels(adata, column)
        terms = [match_label(label).term or NO_TERM for label in groups.categories]
    # Cells without a label have the code -1.
    return np.array([*terms, NO_TERM], dtype=object)[groups.codes]
