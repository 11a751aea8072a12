"""Write the card of a model: a page in Markdown that says what it is, and what it is not for."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from tosica._settings import format_thousands
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scvi.model.base import BaseModelClass

_TAGS = ("biology", "single-cell", "transcriptomics", "cell-type-annotation")
_ADDRESS = re.compile(r"(https?://[\w./%?=&;,:+#~-]*[\w/])", re.ASCII)
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#+!|~$&@])")
_PAGE = """\
---
{metadata}
---

# Cell type labels: {where}

A model of [tosica](https://github.com/tosica/tosica). It gives each cell one of {n_labels} labels
with a calibrated probability, and says what each gene set and each gene added to the score of a
label.

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
- Scaled expression. Pass counts or log-normalised expression.
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
        raise ModuleNotFoundError("huggingface_hub is not installed: pip install 'tosica[hub]'.") from error
    return huggingface_hub


def make_card(
    model: BaseModelClass,
    *,
    load: str,
    tissue: str | Iterable[str],
    license: str,  # noqa: A002 # as the hub calls it
    organism: str | None = None,
    description: str | None = None,
    **others: str | None,
) -> str:
    """Make the card of a trained model.

    Parameters
    ----------
    model
        The model; it needs no reference.
    load
        Python that loads the model.
    tissue, license, organism, description
        As in :meth:`tosica.TOSICA.get_model_card`.
    **others
        Its ``version``, ``doi``, ``citation`` and ``contact``.

    Returns
    -------
    Markdown with metadata in YAML in front. Names and texts of users are escaped.
    """
    model._check_if_trained(
        warn=False,
        message="The model is not trained: call model.train() first, or load a trained one.",
    )
    tissues = [one_line(name) for name in ([tissue] if isinstance(tissue, str) else tissue)]
    organism = one_line(organism) if organism else _organism(model)
    metadata = import_client().ModelCardData(
        library_name="tosica",
        license=license.lower(),
        tags=[*_TAGS, *([organism] if organism else []), *(f"tissue:{name}" for name in tissues)],
    )
    where = escape(", ".join(tissues) + (f", {organism}" if organism else ""))
    scores = _held_out_scores(model)
    said = {"tissue": ", ".join(tissues), "organism": organism, "license": license, **others}
    return _PAGE.format(
        metadata=metadata.to_yaml(),
        where=where,
        other_organisms=" and organisms" if organism else "",
        n_labels=len(model.labels),
        description=f"**Description:** {escape(description)}" if description else "",
        load=load,
        facts=_table(["", ""], _facts(model, said)),
        labels=_labels(model, scores),
        scores=_scores(model, scores),
    )


def one_line(text: str) -> str:
    """Put a text in one line, without characters that cannot be printed."""
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def escape(text: str) -> str:
    """Escape a text for one line of Markdown, with its web addresses as links."""
    parts = _ADDRESS.split(one_line(text))
    # Every second part is an address, which needs no escapes in angle brackets.
    return "".join(f"<{part}>" if i % 2 else _MARKUP.sub(r"\\\1", part) for i, part in enumerate(parts))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _organism(model: BaseModelClass) -> str | None:
    """Organism of the gene sets, if they agree on one."""
    known = {str(modality.mask["organism"]) for modality in model.modalities} - {"unknown", ""}
    return known.pop() if len(known) == 1 else None


def _facts(model: BaseModelClass, said: dict[str, str | None]) -> Iterator[list[str]]:
    """Rows of the first table: what it is about, and its value."""

    def row(name: str, value: str | None, unknown: str = "not stated") -> list[str]:
        return [name, escape(value) if value else unknown]

    yield row("Tissue", said["tissue"])
    yield row("Organism", said["organism"])
    yield ["Labels", str(len(model.labels))]
    counts = model.label_counts_
    yield row("Cells", format_thousands(sum(counts.values())) if counts else None, "not known")
    batch_key = model.registry_["setup_args"].get("batch_key")
    if batch_key is None:
        yield row("Batches, such as donors", None)
    else:
        batches = model._state(REGISTRY_KEYS.BATCH_KEY).get("categorical_mapping", ())
        yield row(f"Batches ({escape(str(batch_key))})", str(len(batches)))
    for modality in model.modalities:
        of = f" of {escape(modality.name)}" if modality.name else ""
        expression = escape(modality.kind.describe(modality.scale))
        yield [f"Genes{of}", f"{format_thousands(len(modality.genes))}, {expression}"]
        yield row(f"Gene sets{of}", modality.describe_tokens())
    yield row("Version", said.get("version"))
    yield ["Fingerprint", f"`{model.fingerprint}`"]
    yield row("License", said["license"])
    doi = (said.get("doi") or "").removeprefix("https://doi.org/")
    optional = {
        "Reference data": said.get("citation"),
        "DOI": f"https://doi.org/{doi}" if doi else None,
        "Contact": said.get("contact"),
    }
    yield from (row(name, value) for name, value in optional.items() if value)
    yield ["Shared with", f"tosica {version_of('tosica')}"]


def _held_out_scores(model: BaseModelClass) -> Any:
    """Recall, F1 and number of held-out cells of each label before the refit, if any are known."""
    codes = model.held_out_codes_
    if codes is None or not codes.shape[1]:
        return None
    labels = np.arange(len(model.labels))
    return precision_recall_fscore_support(*codes, labels=labels, zero_division=0.0)[1:]


def _labels(model: BaseModelClass, scores: Any) -> str:
    """Table of the labels, with the columns that are known."""
    counts, terms = model.label_counts_ or {}, model.ontology_term_ids_
    columns = {"Label": [escape(name) for name in model.labels]}
    if terms:
        columns["Ontology term"] = [escape(terms.get(name, "")) for name in model.labels]
    if counts:
        columns["Cells"] = [format_thousands(counts.get(name, 0)) for name in model.labels]
    if scores is not None:
        recall, f1, sizes = scores
        columns["Held-out cells"] = [format_thousands(int(size)) for size in sizes]
        for name, values in (("Recall", recall), ("F1", f1)):
            columns[name] = [f"{x:.3f}" * bool(n) for x, n in zip(values, sizes, strict=True)]
    return _table(columns, zip(*columns.values(), strict=True))


def _scores(model: BaseModelClass, scores: Any) -> str:
    if scores is None:
        return "None are kept in this model."
    truth, best = model.held_out_codes_
    _, f1, sizes = scores
    after = " Afterwards the model was trained on these cells, too." if model.refitted_ else ""
    return (
        f"Accuracy {(truth == best).mean():.3f} and macro-F1 {f1[sizes > 0].mean():.3f} on "
        f"{format_thousands(len(truth))} cells that were held out of training.{after} They are a "
        "random part of the same batches. In other batches, labels are usually less accurate."
    )
