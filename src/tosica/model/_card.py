"""Describe a model on a card: a page that says what it is."""

from __future__ import annotations

import re
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from tosica._text import format_thousands
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tosica.model._annotation import AnnotationMixin

_TAGS = (
    "biology",
    "genomics",
    "single-cell",
    "transcriptomics",
    "cell-type-annotation",
)
_ADDRESS = re.compile(r"(https?://[\w./%?=&;,:+#~-]*[\w/])", re.ASCII)
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#+!|~$&@])")
PAGE = """\
---
{metadata}
---

# Cell type labels: {where}

A model of [tosica](https://github.com/tosica/tosica). It gives each cell one of {n_labels} labels
with a calibrated probability, and says what each gene added to the score of a label, and which
gene sets these genes make up.

{description}

## How to use it

```python
import tosica

model = {load}
model.annotate(query)  # an AnnData
```

The model is one file, `model.pt`, with tensors and plain values. `tosica` executes nothing in it
when it loads it, and refuses a file that holds anything else.

## What it is

{facts}

## Labels

{labels}

## Held-out scores

{scores}

## What it is not for

- Cells of other types. Every cell gets one of the labels above, or "Unknown" if its probability is
  below the `cutoff` of `annotate`. High values of `tosica_novelty` point to cells of other types.
- Other tissues{other_organisms} than {where}.
- Scaled expression. Pass counts or log-normalized expression.
- Diagnosis. Nothing on this page is a clinical validation.

## Cite

The method is [TOSICA](https://doi.org/10.1038/s41467-023-35923-4) (Chen et al., *Nat. Commun.*
2023). Please cite it, the reference data and the gene sets.
"""


def import_client() -> Any:
    """Import the client of the Hugging Face Hub.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModuleNotFoundError(
            "huggingface_hub is not installed: pip install 'tosica[hub]'."
        ) from error
    return huggingface_hub


def card_tags(
    model: AnnotationMixin, organism: str, tissues: Iterable[str]
) -> list[str]:
    """List the tags that the hub finds a model by: the general ones, then those of scvi-hub."""
    return [
        *_TAGS,
        *([organism] if organism else []),
        f"model_cls_name:{type(model).__name__}",
        f"tosica_version:{package_version('tosica')}",
        f"anndata_version:{package_version('anndata')}",
        *(f"modality:{modality.kind.role}" for modality in model.modalities),
        *(f"tissue:{name}" for name in tissues),
        "annotated:True",
    ]


def one_line(text: str) -> str:
    """Put a text in one line, without characters that cannot be printed."""
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def escape(text: str) -> str:
    """Escape a text for one line of Markdown, with its web addresses as links."""
    pieces = _ADDRESS.split(one_line(text))
    # Every second piece is an address, which needs no escapes in angle brackets.
    pieces[1::2] = [f"<{address}>" for address in pieces[1::2]]
    pieces[::2] = [_MARKUP.sub(r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def markdown_table(columns: Mapping[str, Sequence[str]]) -> str:
    """Write columns as a table, and escape what is in them."""
    header = [escape(name) for name in columns]
    rule = ["---"] * len(columns)
    rows = [
        [escape(text) for text in row] for row in zip(*columns.values(), strict=True)
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def organism_of(model: AnnotationMixin) -> str:
    """Organism of the gene sets, if those of all modalities agree on one."""
    organisms = {str(modality.mask["organism"]) for modality in model.modalities}
    organisms -= {"unknown", ""}
    return organisms.pop() if len(organisms) == 1 else ""


def card_facts(model: AnnotationMixin) -> dict[str, str | None]:
    """Facts that the model knows: labels, cells, batches, genes and gene sets."""
    counts = model.training_.label_counts
    facts: dict[str, str | None] = {
        "Labels": str(len(model.labels)),
        "Cells": format_thousands(sum(counts.values())) if counts else "not known",
    }
    batch_key = model.registry_["setup_args"].get("batch_key")
    if batch_key:
        batches = model.get_state_registry(REGISTRY_KEYS.BATCH_KEY)
        n_batches = len(batches.get("categorical_mapping", ()))
        facts[f"Batches ({one_line(batch_key)})"] = str(n_batches)
    else:
        facts["Batches (such as donors)"] = None
    for modality in model.modalities:
        suffix = f" of {modality.name}" if modality.name else ""
        n_genes = format_thousands(len(modality.genes))
        scale = modality.kind.describe(modality.scale)
        facts[f"Genes{suffix}"] = f"{n_genes}, {scale}"
        facts[f"Gene sets{suffix}"] = modality.describe_tokens()
    adaptation = model.training_.adaptation
    if adaptation is not None and adaptation.n_rounds:
        facts["Learnt from"] = str(adaptation)
    return facts


def labels_table(model: AnnotationMixin) -> dict[str, Sequence[str]]:
    """Columns of the labels: name, term and number of cells."""
    columns: dict[str, Sequence[str]] = {"Label": model.labels}
    terms = model.ontology_term_ids_
    if terms:
        columns["Ontology term"] = [terms.get(name, "") for name in model.labels]
    counts = model.training_.label_counts
    if counts:
        columns["Cells"] = [
            format_thousands(counts.get(name, 0)) for name in model.labels
        ]
    return columns


def add_scores(
    model: AnnotationMixin, codes: np.ndarray, columns: dict[str, Sequence[str]]
) -> str:
    """Add scores on the held-out cells to the columns of labels, and sum them up in a sentence."""
    _, recall, f1, sizes = precision_recall_fscore_support(
        *codes, labels=np.arange(len(model.labels)), zero_division=0.0
    )
    columns["Held-out cells"] = [format_thousands(int(size)) for size in sizes]
    for name, scores in (("Recall", recall), ("F1", f1)):
        columns[name] = [
            f"{score:.3f}" if size else ""
            for score, size in zip(scores, sizes, strict=True)
        ]
    refit = ""
    if model.training_.refitted:
        refit = " Afterwards the model was trained on these cells, too."
    return (
        f"Accuracy {(codes[0] == codes[1]).mean():.3f} and macro-F1 {f1[sizes > 0].mean():.3f} on "
        f"{format_thousands(codes.shape[1])} cells that were held out of training.{refit} They are a "
        "random part of the same batches. In other batches, labels are usually less accurate."
    )
