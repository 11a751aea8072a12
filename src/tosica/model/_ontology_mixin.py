"""Terms of the Cell Ontology for the labels of a model."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tosica._logging import format_thousands, logger
from tosica._validation import list_names
from tosica.model._registry_mixin import RegistryMixin
from tosica.module import REGISTRY_KEYS
from tosica.onto._common_term import LabelTerms
from tosica.onto._terms import NO_TERM, TERM_SUFFIX, check_mapping, term_name, term_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData
    from mudata import MuData

# The schema of CELLxGENE has this for cell lines.
_NO_TERMS = {NO_TERM, "na", "nan", ""}


class OntologyMixin(RegistryMixin):
    """The terms of the labels: from the reference, by hand, and in label sets."""

    _term_of_label: Mapping[str, str] | None = None

    @property
    def ontology_term_ids_(self) -> dict[str, str]:
        """Label to identifier in the Cell Ontology, of the labels that have one.

        When a model is made, they are taken from the column ``f"{labels_key}_ontology_term_id"`` of
        the reference, which :func:`tosica.onto.map_labels` writes and data of CELLxGENE have. They
        are saved with the model. Assign a dict to give terms to a model that exists. Empty if there
        are none.
        """
        return dict(self._term_of_label or {})

    @ontology_term_ids_.setter
    def ontology_term_ids_(self, terms: Mapping[str, str]) -> None:
        name = "ontology_term_ids_"
        found = check_mapping(name, terms, self.labels, "the model")
        self._term_of_label = {k: term for k, term in found.items() if term != NO_TERM}

    def _restore_terms(self, terms: Any) -> None:
        """Take terms from a file; another release of the ontology may have had other terms."""
        if not isinstance(terms, dict) or not all(
            label in self.labels and isinstance(term, str) for label, term in terms.items()
        ):
            raise ValueError("The terms of the labels are not those of a model.")
        self._term_of_label = dict(terms)

    def _read_terms(self, adata: AnnData | MuData) -> None:
        """Take the terms of the labels from the reference, if it has any."""
        key = self.registry_["setup_args"]["labels_key"]
        mod_key = self.adata_manager.data_registry[REGISTRY_KEYS.LABELS_KEY].get("mod_key")
        obs = adata.obs if mod_key is None else adata[mod_key].obs
        column = f"{key}{TERM_SUFFIX}"
        if column not in obs:
            return
        columns = [pd.Categorical(obs[name]) for name in (key, column)]
        codes = np.unique(np.stack([values.codes for values in columns], axis=1), axis=0)
        names = [[*values.categories.astype(str), ""] for values in columns]
        pairs = [(names[0][label], names[1][term]) for label, term in codes]
        pairs = [(k, term) for k, term in pairs if k in self.labels and term not in _NO_TERMS]
        n_terms = Counter(label for label, _ in pairs)
        several = [label for label in self.labels if n_terms[label] > 1]
        problems = {label: term_problem(term) for label, term in pairs if label not in several}
        wrong = [label for label in self.labels if problems.get(label)]
        if several:
            _warn(f"adata.obs[{column!r}] has several terms for {list_names(several)}")
        if wrong:
            named = ", ".join(f"{label!r} ({problems[label]})" for label in wrong)
            _warn(f"adata.obs[{column!r}] has terms that cells cannot have for {named}")
        left_out = {*several, *wrong}
        self._term_of_label = {k: term for k, term in pairs if k not in left_out}

    def _sets_as_terms(self, inside: pd.DataFrame) -> pd.DataFrame:
        """Report each label set as the term that covers it and the fewest other labels.

        Parameters
        ----------
        inside
            Whether a label is in a cell's set, ``(n_obs, n_labels)``.
        """
        terms = LabelTerms(self.labels, self.ontology_term_ids_)
        # Most cells share a few sets.
        sets, set_of_cell = np.unique(inside.to_numpy(), axis=0, return_inverse=True)
        rows = [terms.cover(members) for members in sets]
        names = np.array(self.labels, dtype=object)
        table = pd.DataFrame(
            {
                "ontology_term_id": [row.term or NO_TERM for row in rows],
                "ontology_label": [term_name(row.term) if row.term else NO_TERM for row in rows],
                "n_labels": [int(row.members.sum()) for row in rows],
                "labels": [" || ".join(names[row.members]) for row in rows],
            }
        )
        of_cell = table.iloc[set_of_cell.ravel()].set_axis(inside.index)
        n_listed = int(((of_cell["ontology_term_id"] == NO_TERM) & (of_cell["n_labels"] > 0)).sum())
        if n_listed:
            logger.info(
                "predict_set: the sets of %s cells have a label without a term, so that their "
                "labels are listed only",
                format_thousands(n_listed),
            )
        for name in ("ontology_term_id", "ontology_label", "labels"):
            of_cell[name] = pd.Categorical(of_cell[name])
        return of_cell


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, so these labels have no term: assign model.ontology_term_ids_ to give them one.",
        UserWarning,
        stacklevel=4,
    )
