"""The model card: a page in Markdown that says what a model is, and what it is not for."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING

import pandas as pd

from tosica._logging import format_thousands
from tosica.model._model_about import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tosica.model._model_about import About
    from tosica.model._model_facts import ModalityFacts, ModelFacts

# Names of licenses that the Hugging Face Hub knows. Others are "other", with their name beside it.
_LICENSES = {
    *("afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause"),
    *("bsd-3-clause-clear", "bsl-1.0", "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0"),
    *("cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0"),
    *("cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0"),
    *("cdla-sharing-1.0", "ecl-2.0", "epl-2.0", "eupl-1.2", "gpl-3.0", "isc", "lgpl-3.0", "mit"),
    *("mpl-2.0", "ncsa", "odbl", "odc-by", "openrail", "osl-3.0", "pddl", "unlicense", "zlib"),
    *("other", "unknown"),
}
_TAGS = ("biology", "single-cell", "transcriptomics", "cell-type-annotation")
_ADDRESS = re.compile(r"(https?://[\w./%?=&;,:+#~-]*[\w/])", re.ASCII)
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#+!|~$&@])")
_DOI_OF_METHOD = "https://doi.org/10.1038/s41467-023-35923-4"


def make_card(
    facts: ModelFacts,
    about: About,
    *,
    load: str,
    ontology_term_ids: Mapping[str, str] | None = None,
) -> str:
    """Make the card of a model.

    Parameters
    ----------
    facts
        What the model knows of itself.
    about
        What its authors say of it.
    load
        Python that loads the model as ``model``.
    ontology_term_ids
        Label to its term of an ontology, such as ``"CL:0000084"``, for labels that have one.

    Returns
    -------
    Markdown with metadata in YAML in front. Names and texts of users are escaped, so that they show
    as they are.
    """
    organism = about.organism or facts.organism
    where = ", ".join(about.tissue) + (f", {organism}" if organism else "")
    parts = [
        _front_matter(about, organism),
        f"# Cell type labels: {escape(where)}",
        "A model of [tosica](https://github.com/tosica/tosica). It gives each cell one of "
        f"{len(facts.labels)} labels with a calibrated probability, and says what each gene set "
        "and each gene added to the score of a label.",
        *([f"**Description:** {escape(about.description)}"] if about.description else []),
        "## How to use it",
        f"```python\nimport tosica\n\n{load}\nmodel.annotate(query)  # an AnnData\n```",
        "The model is one file, `model.pt`, with tensors and plain values. `tosica` executes "
        "nothing in it when it loads it, and refuses a file that holds anything else.",
        "## What it is",
        _table(["", ""], _rows(facts, about, organism)),
        "## Labels",
        _labels(facts, ontology_term_ids or {}),
        "## Held-out scores",
        _scores(facts),
        "## What it is not for",
        _limits(about, organism),
        "## Cite",
        f"The method is [TOSICA]({_DOI_OF_METHOD}) (Chen et al., *Nat. Commun.* 2023). Please cite "
        "it, the reference data and the gene sets.",
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """A text in one line of Markdown, which shows it as it is, with its web addresses as links."""
    parts = _ADDRESS.split(one_line(text))
    # Every second part is an address, which needs no escapes in angle brackets.
    return "".join(
        f"<{part}>" if i % 2 else _MARKUP.sub(r"\\\1", part) for i, part in enumerate(parts)
    )


def _front_matter(about: About, organism: str | None) -> str:
    """Metadata that the hub reads. Strings in JSON are strings in YAML as well."""
    known = about.license.lower()
    lines = ["library_name: tosica"]
    if known in _LICENSES:
        lines.append(f"license: {json.dumps(known)}")
    else:
        name = re.sub(r"[^a-z0-9.]+", "-", known).strip("-.") or "other"
        lines += ["license: other", f"license_name: {json.dumps(name)}"]
    tags = [*_TAGS, *([organism] if organism else []), *(f"tissue:{t}" for t in about.tissue)]
    lines += ["tags:", *(f"- {json.dumps(tag, ensure_ascii=False)}" for tag in tags)]
    return "\n".join(["---", *lines, "---"])


def _table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _rows(facts: ModelFacts, about: About, organism: str | None) -> Iterator[list[str]]:
    """Rows of the first table: what, and its value."""
    yield ["Tissue", escape(", ".join(about.tissue))]
    yield ["Organism", escape(organism) if organism else "not stated"]
    yield ["Labels", str(len(facts.labels))]
    yield ["Cells", format_thousands(facts.n_cells) if facts.n_cells else "not known"]
    if facts.batch_key is None:
        yield ["Batches, such as donors", "not stated"]
    else:
        yield [f"Batches ({escape(facts.batch_key)})", str(facts.n_batches)]
    for modality in facts.modalities:
        yield from _modality_rows(modality)
    yield ["Version", escape(about.version) if about.version else "not stated"]
    yield ["Fingerprint", f"`{facts.fingerprint}`"]
    yield ["License", escape(about.license)]
    if about.citation:
        yield ["Reference data", escape(about.citation)]
    if about.doi:
        yield ["DOI", escape(f"https://doi.org/{about.doi}")]
    if about.contact:
        yield ["Contact", escape(about.contact)]
    yield ["Shared with", f"tosica {facts.package_version}"]


def _modality_rows(modality: ModalityFacts) -> Iterator[list[str]]:
    of = f" of {escape(modality.name)}" if modality.name else ""
    sets = f"{modality.n_gene_sets} of {escape(modality.source)}"
    sets += f", and {modality.n_modules} modules of co-expressed genes" * bool(modality.n_modules)
    sets += f", and {modality.n_unannotated} unannotated tokens" * bool(modality.n_unannotated)
    yield [f"Genes{of}", f"{format_thousands(modality.n_genes)}, {escape(modality.expression)}"]
    yield [f"Gene sets{of}", sets]


def _labels(facts: ModelFacts, term_ids: Mapping[str, str]) -> str:
    """Table of the labels, with the columns that are known."""
    head = ["Label", *(["Ontology term"] if term_ids else []), "Cells"]
    tested = facts.n_held_out is not None
    head += ["Held-out cells", "Recall", "F1"] if tested else []
    rows = []
    for name, row in facts.labels.iterrows():
        term = [escape(term_ids.get(str(name), ""))] if term_ids else []
        count = "" if pd.isna(row["n_cells"]) else format_thousands(int(row["n_cells"]))
        held_out = format_thousands(int(row["n_held_out"]))
        scores = [held_out, _score(row["recall"]), _score(row["f1"])] if tested else []
        rows.append([escape(str(name)), *term, count, *scores])
    return _table(head, rows)


def _score(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _scores(facts: ModelFacts) -> str:
    if facts.n_held_out is None or facts.accuracy is None or facts.macro_f1 is None:
        return "None are kept in this model."
    after = " Afterwards the model was trained on these cells, too." if facts.refitted else ""
    return (
        f"Accuracy {facts.accuracy:.3f} and macro-F1 {facts.macro_f1:.3f} on "
        f"{format_thousands(facts.n_held_out)} cells that were held out of training.{after} They "
        "are a random part of the same batches. In other batches, labels are usually less accurate."
    )


def _limits(about: About, organism: str | None) -> str:
    tissue = escape(", ".join(about.tissue))
    other = f", and other organisms than {escape(organism)}" if organism else ""
    lines = [
        '- Cells of other types. Every cell gets one of the labels above, or "Unknown" if its '
        "probability is below the `cutoff` of `annotate`. High values of `tosica_novelty` point to "
        "cells of other types.",
        f"- Other tissues than {tissue}{other}.",
        "- Scaled expression. Pass counts or log-normalised expression.",
        "- Diagnosis. Nothing on this page is a clinical validation.",
    ]
    return "\n".join(lines)
