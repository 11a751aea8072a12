"""Map labels of cells to terms of the Cell Ontology."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tosica._checks import FileKey, list_names, validate_params
from tosica._obs import read_groups
from tosica._settings import logger, warn_user
from tosica.onto._ontology import NO_TERM, TERM_SUFFIX, Match, check_mapping, match_label, read_ontology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData
    from mudata import MuData


@validate_params(key_added=FileKey(optional=True))
def map_labels(
    adata: AnnData | MuData, key: str, *, mapping: Mapping[str, str] | None = None, key_added: str | None = None
) -> pd.DataFrame:
    """Map labels of cells to terms of the Cell Ontology, by name or exact synonym.

    A label is mapped if it is the name or an exact synonym of one term only. Spelling does not
    matter: case, plural, the word "cell", hyphens, Greek letters, and "+" and "-" behind a marker,
    so that "CD14+ Monocytes" is "CD14-positive monocyte". Nothing is guessed: for other labels,
    terms with similar names are listed, and ``mapping`` takes what you choose. Abbreviations that
    several types share ("DC1", "IPC") are not mapped.

    Parameters
    ----------
    adata
        Cells with labels. The matrix is not read.
    key
        Column of ``adata.obs`` with the labels.
    mapping
        Label to identifier, for labels that are not mapped or are to be mapped otherwise.
        ``"unknown"`` leaves a label without a term.
    key_added
        Column to write. By default ``f"{key}_ontology_term_id"``, which :class:`tosica.TOSICA` and
        :func:`tosica.tl.evaluate` look for.

    Returns
    -------
    Table with one row a label, in the order of the labels, and the columns

    ``label``
        The label.
    ``ontology_term_id``, ``ontology_label``
        Identifier and name of its term, or ``"unknown"``.
    ``match``
        How it was found: ``"name"``, ``"synonym"``, ``"given"`` (by ``mapping``) or ``"none"``.
    ``candidates``
        For labels without a term: up to five terms with similar names, the most similar first, as
        strings of identifier and name.

    Written is ``adata.obs[f"{key}_ontology_term_id"]``: categorical, the identifier of each cell's
    term or ``"unknown"``, as the schema of CELLxGENE wants ``cell_type_ontology_term_id``. Obsolete
    terms and those that the schema forbids are never written.

    Raises
    ------
    KeyError
        If the column is missing, or ``mapping`` names a label that it does not have.
    TypeError
        If an argument is of the wrong type, or the column cannot be read as labels.
    ValueError
        If there are no cells, or ``mapping`` names a term that does not exist, is obsolete, or is
        forbidden.

    Warns
    -----
    UserWarning
        If no label has a term.

    Examples
    --------
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> found = tosica.onto.map_labels(adata, "bulk_labels", mapping={"CD56+ NK": "CL:0000623"})
    >>> found.loc[found["match"] != "none", ["label", "ontology_label", "match"]]
                label          ontology_label    match
    5  CD14+ Monocyte  CD14-positive monocyte     name
    6         CD19+ B   B cell, CD19-positive  synonym
    8        CD56+ NK     natural killer cell    given
    9       Dendritic          dendritic cell     name
    >>> found.set_index("label").loc["CD8+ Cytotoxic T", "candidates"][0]
    'CL:0000794 CD8-positive, alpha-beta cytotoxic T cell'
    """
    groups = read_groups(adata, key, name="key", allow_missing=True)
    labels = list(groups.categories)
    given = check_mapping("mapping", {} if mapping is None else mapping, labels, f"adata.obs[{key!r}]")
    of_given = {label: Match(None if term == NO_TERM else term, "given") for label, term in given.items()}
    found = [of_given.get(label) or match_label(label) for label in labels]
    terms = [match.term or NO_TERM for match in found]
    names = read_ontology().names
    table = pd.DataFrame(
        {
            "label": labels,
            "ontology_term_id": terms,
            "ontology_label": [names.get(term, NO_TERM) for term in terms],
            "match": [match.how for match in found],
            "candidates": [[f"{t} {names[t]}" for t in match.candidates] for match in found],
        }
    )
    column = f"{key}{TERM_SUFFIX}" if key_added is None else key_added
    # Cells without a label have the code -1, and with it the last term.
    of_cell = np.array([*terms, NO_TERM], dtype=object)[groups.codes]
    adata.obs[column] = pd.Categorical(of_cell, categories=list(dict.fromkeys(sorted(set(of_cell)))))
    _report(table, key, column)
    return table


def _report(table: pd.DataFrame, key: str, column: str) -> None:
    without = table.loc[table["match"] == "none", "label"].tolist()
    if len(without) == len(table):
        warn_user(
            f"no label of adata.obs[{key!r}] ({list_names(without, 3)}) is a name or an exact synonym in the Cell "
            "Ontology: choose among the candidates in the returned table, and pass mapping={label: identifier}."
        )
        return
    rest = f"; candidates are listed for {list_names(without)}" if without else ""
    n_found = len(table) - len(without)
    logger.info(f"map_labels: wrote .obs[{column!r}]; {n_found} of {len(table)} labels have a term{rest}")
