"""Write annotations in the Cell Annotation Schema (CAS): labels, terms, cells, and reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosica._files import replace_file
from tosica._obs import UNKNOWN, read_attribution, read_groups, read_numbers
from tosica._settings import logger
from tosica._text import decimal, format_thousands
from tosica._validate import Integer, as_names, validate_params
from tosica.onto._ontology import TERM_SUFFIX, read_ontology

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anndata import AnnData

    from tosica._types import AnyPath, BoolArray

# Version of the schema that this module was written for.
SCHEMA = "1.1.0"
# What the schema calls cells whose label is not known.
_UNKNOWN_LABEL = "unknown"
# Limits of the schema, in characters.
_MAX_TITLE = 200
_MAX_RATIONALE = 2000
_REPOSITORY = "https://github.com/tosica/tosica"
_DOI = "10.1038/s41467-023-35923-4"


@validate_params(n_genes=Integer(least=1))
def write_cas(
    adata: AnnData,
    path: AnyPath,
    *,
    title: str,
    author: str,
    columns: str | Iterable[str] | None = None,
    key: str = "tosica",
    n_genes: int = 10,
    description: str | None = None,
    contact: str | None = None,
    version: str = "1.0.0",
    url: str | None = None,
    reference_url: str | None = None,
) -> None:
    """Write annotations in the Cell Annotation Schema, which the Cell Annotation Platform reads.

    The file lists for each label its cells, its term, the number of its cells and their mean probability,
    and the method with its version. After :func:`tosica.tl.attribute`, it also lists the genes and gene sets
    that speak for the label.

    Parameters
    ----------
    adata
        Cells that :meth:`tosica.TOSICA.annotate` annotated. They are not changed.
    path
        JSON file to write; an existing one is replaced.
    title
        Title of the data, at most 200 characters.
    author
        First and last name of who answers for the annotation.
    columns
        Columns of ``obs`` to write, each a set of labels with the terms in ``f"{column}_ontology_term_id"``.
        By default those of the prediction and, if it is there, of the confident label.
    key
        ``key_added`` of :meth:`tosica.TOSICA.annotate`.
    n_genes
        Largest number of marker genes of a label.
    description
        Description of the data.
    contact
        Address of the author for electronic mail.
    version
        Version of this annotation.
    url
        Lasting address of this annotation; the Cell Annotation Platform asks for one.
    reference_url
        Address of the labeled cells that the model learnt from.

    Raises
    ------
    KeyError
        If a column is missing.
    TypeError
        If an argument is of the wrong type.
    ValueError
        If the title or the author is empty, the title is too long, or another model explained the cells than
        annotated them.
    OSError
        If the file cannot be written.

    Notes
    -----
    "Unknown" is ``unknown``, as the schema calls it. Cells without a label are left out. Marker genes are
    those with a higher expression than the baseline that add most to the label's score.

    Source: `Cell Annotation Schema <https://github.com/cellannotation/cell-annotation-schema>`_, version 1.1.0.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> import tosica
    >>> tosica.tl.attribute(query, model)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "annotation.json"
    ...     tosica.io.write_cas(query, path, title="Blood", author="Ada Doe")
    ...     annotation = json.loads(path.read_text())
    >>> annotation["annotations"][0]["labelset"]
    'tosica_prediction'
    """
    for name, text in (("title", title), ("author", author)):
        if not text.strip():
            raise ValueError(f"{name} is empty: the schema asks for one.")
    if len(title) > _MAX_TITLE:
        raise ValueError(
            f"title has {len(title)} characters, and the schema allows {_MAX_TITLE}: shorten it."
        )
    names = _columns(adata, columns, key)
    content: dict[str, Any] = {
        "title": title,
        "author_name": author,
        "cellannotation_schema_version": SCHEMA,
        "cellannotation_timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "cellannotation_version": version,
    }
    texts = (
        ("description", description),
        ("author_contact", contact),
        ("cellannotation_url", url),
    )
    content |= {name: text for name, text in texts if text is not None}
    method = {
        "algorithm_name": "tosica",
        "algorithm_version": package_version("tosica"),
        "algorithm_repo_url": _REPOSITORY,
    }
    if reference_url is not None:
        method["reference_location"] = reference_url
    content["labelsets"] = [
        {
            "name": column,
            "description": f"Labels in the column {column} of the cells",
            "annotation_method": "algorithmic",
            "automated_annotation": method,
        }
        for column in names
    ]
    content["annotations"] = [
        annotation
        for column in names
        for annotation in _annotations(adata, column, key, n_genes)
    ]
    with replace_file(Path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    logger.info(
        "write_cas: %d labels of %s to %s",
        len(content["annotations"]),
        ", ".join(names),
        path,
    )


def _columns(
    adata: AnnData, columns: str | Iterable[str] | None, key: str
) -> list[str]:
    """Name the columns to write."""
    if columns is not None:
        return as_names(columns)
    confident = f"{key}_confident"
    return [f"{key}_prediction", *([confident] if confident in adata.obs else [])]


def _annotations(
    adata: AnnData, column: str, key: str, n_genes: int
) -> list[dict[str, Any]]:
    """List the labels of a column, in its order."""
    groups = read_groups(adata, column, name="columns", allow_missing=True)
    explained = _explained(adata, column, key, n_genes)
    cell_names = adata.obs_names.astype(str).to_numpy()
    terms = adata.obs.get(f"{column}{TERM_SUFFIX}")
    term_names = read_ontology().names
    annotations = []
    for code, label in enumerate(groups.categories):
        is_of_label = groups.codes == code
        cell_label = _UNKNOWN_LABEL if label == UNKNOWN else label
        annotation: dict[str, Any] = {
            "labelset": column,
            "cell_label": cell_label,
            "cell_fullname": cell_label,
        }
        if terms is not None:
            term = str(terms.to_numpy()[is_of_label.argmax()])
            if term in term_names:
                annotation["cell_ontology_term_id"] = term
                annotation["cell_ontology_term"] = term_names[term]
        annotation["cell_ids"] = cell_names[is_of_label].tolist()
        genes, gene_sets = explained.get(label, ([], []))
        if genes:
            # The schema takes only genes that the data have, by their names there.
            annotation["marker_gene_evidence"] = [
                gene for gene in genes if gene in adata.var_names
            ]
        text = _rationale(adata, column, key, is_of_label, genes, gene_sets)
        annotation["rationale"] = text[:_MAX_RATIONALE]
        annotation["rationale_dois"] = [_DOI]
        annotations.append(annotation)
    return annotations


def _explained(
    adata: AnnData, column: str, key: str, n_genes: int
) -> dict[str, tuple[list[str], list[str]]]:
    """Read the genes and gene sets that speak for each label, the strongest in front."""
    attribution_key = f"{key}_attribution"
    if attribution_key not in adata.uns:
        return {}
    record = read_attribution(adata, attribution_key)
    if record["groupby"] != column:
        return {}
    evidence = record["evidence"].astype({"group": str, "gene_set": str})
    # Sets beside a stronger one that shares their genes say nothing new.
    evidence = evidence[evidence["similar_to"].astype(str) == ""]
    explained = {}
    for label in map(str, record["groups"]):
        name = label.replace("/", "|")
        added = record["genes"][name]
        is_marker = (added > 0) & (record["expression"][name] > 0)
        genes = added[is_marker].sort_values(ascending=False, kind="stable")
        sets = evidence.loc[evidence["group"] == label, "gene_set"]
        explained[label] = (list(map(str, genes.index[:n_genes])), list(sets))
    return explained


def _rationale(
    adata: AnnData,
    column: str,
    key: str,
    is_of_label: BoolArray,
    genes: Sequence[str],
    gene_sets: Sequence[str],
) -> str:
    """Say in sentences why cells have a label."""
    record = adata.uns.get(key)
    model = record.get("model") if isinstance(record, Mapping) else None
    probability_column = {
        f"{key}_prediction": f"{key}_probability",
        f"{key}_confident": f"{key}_confident_probability",
    }.get(column)
    sentence = (
        f"tosica{f' with the model {model}' if model else ''} gave this label to "
        f"{format_thousands(int(is_of_label.sum()))} of {format_thousands(adata.n_obs)} cells"
    )
    if probability_column in adata.obs:
        mean = read_numbers(adata, str(probability_column))[is_of_label].mean()
        sentence += f", with a mean probability of {decimal(mean)}"
    sentences = [f"{sentence}."]
    if genes:
        sentences.append(f"Genes that speak most for it: {', '.join(genes)}.")
    if gene_sets:
        sentences.append(f"Gene sets with evidence: {'; '.join(gene_sets)}.")
    return " ".join(sentences)
