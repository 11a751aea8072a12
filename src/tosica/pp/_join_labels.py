"""Labels of several references become one set of labels, by a table and by the Cell Ontology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from tosica._obs import read_groups
from tosica._settings import logger
from tosica._text import list_names, only_known
from tosica.onto._ontology import (
    NO_TERM,
    TERM_SUFFIX,
    match_label,
    read_ontology,
    term_problem,
)
from tosica.pp._impute_genes import line_of

if TYPE_CHECKING:
    from anndata import AnnData

JOINED_TERM: Final = f"cell_type{TERM_SUFFIX}"
# Labels that look like terms.
_TERM_PREFIX = "CL:"


def join_labels(
    references: Mapping[str, AnnData],
    keys: Mapping[str, str],
    mapping: Mapping[str, str | Mapping[str, str]],
) -> pd.DataFrame:
    """List the labels of all references, with the joined labels and their terms.

    Parameters
    ----------
    references
        Names and cells.
    keys
        Column of ``obs`` with the labels, for each name.
    mapping
        As :func:`join_references` takes it.

    Returns
    -------
    Table of ``reference``, ``label``, ``cell_type``, ``cell_type_ontology_term_id`` and ``n_cells``, without
    labels whose cells are left out.
    """
    groups_of = {
        name: read_groups(adata, keys[name], name="labels_key", allow_missing=True)
        for name, adata in references.items()
    }
    mappings = _mappings(
        mapping, {name: list(groups.categories) for name, groups in groups_of.items()}
    )
    tables = []
    for name, groups in groups_of.items():
        terms = _terms_in_obs(references[name], keys[name], groups)
        table = _label_table(name, groups, terms, mappings[name])
        if not table["n_cells"].sum():
            raise ValueError(
                f"references[{name!r}] has no cells: none has a label in obs[{keys[name]!r}] that mapping keeps."
            )
        tables.append(table)
    labels = _unify(pd.concat(tables, ignore_index=True))
    _check_common_labels(labels)
    return labels


def _mappings(
    mapping: Mapping[str, str | Mapping[str, str]], labels_of: Mapping[str, list[str]]
) -> dict[str, dict[str, str]]:
    """Split a mapping by references, and refuse names, labels and terms that do not exist."""
    shared: dict[str, str] = {}
    own: dict[str, dict[str, str]] = {name: {} for name in labels_of}
    for key, value in mapping.items():
        if not isinstance(value, Mapping):
            shared[str(key)] = value
        elif key in own:
            own[key] = {str(label): joined for label, joined in value.items()}
        else:
            raise KeyError(
                f"mapping: there is no reference {key!r}{only_known(key, labels_of)}"
            )
    all_labels = {label for labels in labels_of.values() for label in labels}
    places = [("no reference has a label", all_labels, shared)]
    for name, labels in labels_of.items():
        places.append((f"{name!r} has no label", set(labels), own[name]))
    for lack, existing, joined_of in places:
        for label, joined in joined_of.items():
            if label not in existing:
                raise KeyError(
                    f"mapping: {lack} {label!r}{only_known(label, existing)}"
                )
            if not isinstance(joined, str):
                raise TypeError(
                    f"mapping must give each label a name or a term, not {type(joined).__name__} for {label!r}."
                )
            problem = term_problem(joined) if joined.startswith(_TERM_PREFIX) else None
            if problem is not None:
                raise ValueError(f"mapping of {label!r}: {problem}.")
    return {name: shared | own[name] for name in own}


def _label_table(
    name: str,
    groups: pd.Categorical,
    terms: Mapping[str, str],
    mapping: Mapping[str, str],
) -> pd.DataFrame:
    """List the labels of a reference, with the joined labels that are asked for, and their terms."""
    names = read_ontology().names
    n_cells = np.bincount(
        groups.codes[groups.codes >= 0], minlength=len(groups.categories)
    )
    rows = []
    for label, n_of_label in zip(groups.categories, n_cells, strict=True):
        joined = mapping.get(label, label)
        if joined in names:
            term = joined
        elif joined == label and label in terms:
            term = terms[label]
        else:
            # The term of a label that the mapping renames is that of its old name.
            term = match_label(joined).term or NO_TERM
        rows.append((name, label, names.get(joined, joined), term, n_of_label))
    columns = ["reference", "label", "cell_type", JOINED_TERM, "n_cells"]
    table = pd.DataFrame(rows, columns=columns)
    return table[table["cell_type"] != ""]


def _terms_in_obs(adata: AnnData, key: str, groups: pd.Categorical) -> dict[str, str]:
    """Read the terms of labels from the column that data of CELLxGENE have."""
    column = f"{key}{TERM_SUFFIX}"
    if column not in adata.obs:
        return {}
    terms = adata.obs[column].astype(str).to_numpy(dtype=object)
    # A categorical would count labels that have no such term, too.
    pairs = pd.DataFrame({"label": np.asarray(groups, dtype=object), "term": terms})
    pairs = pairs[pairs["label"].notna() & pairs["term"].isin(read_ontology().names)]
    # The term of most cells, whatever their order.
    counts = pairs.value_counts().reset_index()
    counts = counts.sort_values(["count", "term"], ascending=[False, True])
    return dict(counts.drop_duplicates("label")[["label", "term"]].to_numpy())


def _unify(labels: pd.DataFrame) -> pd.DataFrame:
    """Give labels with the same term one name, that of the earliest reference, and those of one name its term."""
    has_term = labels[JOINED_TERM] != NO_TERM
    term_of: dict[str, str] = {}
    for name, label, term in labels.loc[
        has_term, ["reference", "cell_type", JOINED_TERM]
    ].itertuples(index=False):
        if term_of.setdefault(label, term) != term:
            raise ValueError(
                f"{label!r} has the term {term} in {name!r}, and {term_of[label]} in another reference: pass "
                f"mapping={{{name!r}: {{{label!r}: another name or term}}}}."
            )
    labels[JOINED_TERM] = [term_of.get(label, NO_TERM) for label in labels["cell_type"]]
    has_term = labels[JOINED_TERM] != NO_TERM
    name_of_term = (
        labels[has_term]
        .drop_duplicates(JOINED_TERM)
        .set_index(JOINED_TERM)["cell_type"]
    )
    labels.loc[has_term, "cell_type"] = labels.loc[has_term, JOINED_TERM].map(
        name_of_term
    )
    without_term = labels.loc[~has_term, "cell_type"]
    if len(without_term):
        logger.info(
            "join_references: no term for %s; mapping= takes one",
            list_names(list(without_term.unique())),
        )
    return labels


def _check_common_labels(labels: pd.DataFrame) -> None:
    """Refuse references without a label in common with another one, nor one above or below."""
    types_of = labels.groupby("reference", sort=False)["cell_type"].agg(set)
    term_of = dict(zip(labels["cell_type"], labels[JOINED_TERM], strict=True))
    for name, types in types_of.items():
        elsewhere = set().union(*types_of.drop(name))
        related = {
            relative for label in elsewhere for relative in line_of(label, term_of)
        }
        lines = {relative for label in types for relative in line_of(label, term_of)}
        if not (types & related or lines & elsewhere):
            raise ValueError(
                f"{name!r} has no label in common with the other references: {list_names(sorted(types), 5)} there, "
                f"and {list_names(sorted(elsewhere), 5)} elsewhere. Pass mapping={{label: joined label}}."
            )
