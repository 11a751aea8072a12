"""Share models through the Hugging Face Hub, each with a card: a page that says what it is."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from tosica._settings import logger
from tosica._text import format_thousands
from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scvi.model.base import BaseModelClass

_FILES = ["model.pt", "README.md"]
_TAGS = ("biology", "single-cell", "transcriptomics", "cell-type-annotation")
_ADDRESS = re.compile(r"(https?://[\w./%?=&;,:+#~-]*[\w/])", re.ASCII)
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#+!|~$&@])")
_PAGE = """\
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
        raise ModuleNotFoundError(
            "huggingface_hub is not installed: pip install 'tosica[hub]'."
        ) from error
    return huggingface_hub


# ------------------------------------------------------------------ upload and download


def push(
    model: BaseModelClass,
    repo_id: str,
    *,
    private: bool,
    token: str | None,
    revision: str | None,
    create_pr: bool,
    commit_message: str | None,
    **about: Any,
) -> str:
    """Upload a model and its card in one commit.

    Parameters
    ----------
    model
        The model.
    repo_id, private, token, revision, create_pr, commit_message
        As in :meth:`tosica.TOSICA.push_to_hub`.
    **about
        As in :meth:`tosica.TOSICA.get_model_card`.

    Returns
    -------
    Address of the commit or of the pull request.
    """
    load = f'tosica.TOSICA.from_hub("{repo_id}")  # pip install "tosica[hub]"'
    card = make_card(model, load=load, **about)
    api = import_client().HfApi(
        token=token, library_name="tosica", library_version=version("tosica")
    )
    with TemporaryDirectory() as folder:
        model.save(folder, overwrite=True)
        (Path(folder) / _FILES[1]).write_text(card, encoding="utf-8", newline="\n")
        api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=_FILES,
            commit_message=commit_message
            or f"Upload version {about.get('version') or model.fingerprint}",
            revision=revision,
            create_pr=create_pr,
        )
    address = str(commit.pr_url or commit.commit_url)
    logger.info("push_to_hub: %s", address)
    return address


def pull(
    repo_id: str,
    *,
    revision: str | None,
    cache_dir: str | Path | None,
    token: str | None,
) -> Path:
    """Download a model and its card, and nothing else that the repository holds.

    Parameters
    ----------
    repo_id, revision, cache_dir, token
        As in :meth:`tosica.TOSICA.from_hub`.

    Returns
    -------
    The folder with the files. Its name is the commit.
    """
    folder = import_client().snapshot_download(
        repo_id,
        revision=revision,
        cache_dir=cache_dir,
        token=token,
        allow_patterns=_FILES,
        library_name="tosica",
        library_version=version("tosica"),
    )
    logger.info("from_hub: %s at commit %s", repo_id, Path(folder).name)
    return Path(folder)


# ------------------------------------------------------------------ the card


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
    model._check_trained()
    tissues = [
        one_line(name) for name in ([tissue] if isinstance(tissue, str) else tissue)
    ]
    if not organism:
        # That of the gene sets, if they agree on one.
        known = {str(modality.mask["organism"]) for modality in model.modalities} - {
            "unknown",
            "",
        }
        organism = known.pop() if len(known) == 1 else ""
    organism = one_line(organism)
    metadata = import_client().ModelCardData(
        library_name="tosica",
        license=license.lower(),
        tags=[
            *_TAGS,
            *([organism] if organism else []),
            *(f"tissue:{name}" for name in tissues),
        ],
    )
    facts = _facts(
        model,
        {
            "tissue": ", ".join(tissues),
            "organism": organism,
            "license": license,
            **others,
        },
    )
    labels, scores = _labels_and_scores(model)
    return _PAGE.format(
        metadata=metadata.to_yaml(),
        where=escape(", ".join([*tissues, *([organism] if organism else [])])),
        other_organisms=" and organisms" if organism else "",
        n_labels=len(model.labels),
        description=f"**Description:** {escape(description)}" if description else "",
        load=load,
        facts=_table({"": list(facts), " ": list(facts.values())}),
        labels=_table(labels),
        scores=scores,
    )


def one_line(text: str) -> str:
    """Put a text in one line, without characters that cannot be printed."""
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def escape(text: str) -> str:
    """Escape a text for one line of Markdown, with its web addresses as links."""
    parts = _ADDRESS.split(one_line(text))
    # Every second part is an address, which needs no escapes in angle brackets.
    return "".join(
        f"<{part}>" if i % 2 else _MARKUP.sub(r"\\\1", part)
        for i, part in enumerate(parts)
    )


def _table(columns: dict[str, Sequence[str]]) -> str:
    """Write columns as a table, and escape what is in them."""
    rows = zip(
        *(
            [escape(name), "---", *map(escape, values)]
            for name, values in columns.items()
        ),
        strict=True,
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _facts(model: BaseModelClass, said: dict[str, str | None]) -> dict[str, str]:
    """First table: what it is about, and its value."""
    counts = model.training_.label_counts
    batch_key = model.registry_["setup_args"].get("batch_key")
    batches = (
        model.get_state_registry(REGISTRY_KEYS.BATCH_KEY).get("categorical_mapping", ())
        if batch_key
        else ()
    )
    facts = {
        "Tissue": said["tissue"],
        "Organism": said["organism"],
        "Labels": str(len(model.labels)),
        "Cells": format_thousands(sum(counts.values())) if counts else "not known",
        f"Batches ({one_line(batch_key or 'such as donors')})": str(len(batches))
        if batch_key
        else None,
    }
    for modality in model.modalities:
        of = f" of {modality.name}" if modality.name else ""
        facts[f"Genes{of}"] = (
            f"{format_thousands(len(modality.genes))}, {modality.kind.describe(modality.scale)}"
        )
        facts[f"Gene sets{of}"] = modality.describe_tokens()
    adaptation = model.training_.adaptation
    if adaptation is not None and adaptation.n_rounds:
        facts["Learnt from"] = str(adaptation)
    facts |= {
        "Version": said.get("version"),
        "Fingerprint": model.fingerprint,
        "License": said["license"],
    }
    doi = (said.get("doi") or "").removeprefix("https://doi.org/")
    optional = {
        "Reference data": said.get("citation"),
        "DOI": f"https://doi.org/{doi}" if doi else None,
        "Contact": said.get("contact"),
    }
    facts |= {name: value for name, value in optional.items() if value}
    facts["Shared with"] = f"tosica {version('tosica')}"
    return {name: value or "not stated" for name, value in facts.items()}


def _labels_and_scores(model: BaseModelClass) -> tuple[dict[str, Sequence[str]], str]:
    """Table of the labels, and a sentence on the cells that were held out before the refit."""
    counts, terms, codes = (
        model.training_.label_counts or {},
        model.ontology_term_ids_,
        model.training_.held_out_codes,
    )
    columns: dict[str, Sequence[str]] = {"Label": model.labels}
    if terms:
        columns["Ontology term"] = [terms.get(name, "") for name in model.labels]
    if counts:
        columns["Cells"] = [
            format_thousands(counts.get(name, 0)) for name in model.labels
        ]
    if codes is None or not codes.shape[1]:
        return columns, "None are kept in this model."
    known = np.arange(len(model.labels))
    _, recall, f1, sizes = precision_recall_fscore_support(
        *codes, labels=known, zero_division=0.0
    )
    columns["Held-out cells"] = [format_thousands(int(size)) for size in sizes]
    for name, values in (("Recall", recall), ("F1", f1)):
        columns[name] = [
            f"{x:.3f}" if n else "" for x, n in zip(values, sizes, strict=True)
        ]
    after = (
        " Afterwards the model was trained on these cells, too."
        if model.training_.refitted
        else ""
    )
    return columns, (
        f"Accuracy {(codes[0] == codes[1]).mean():.3f} and macro-F1 {f1[sizes > 0].mean():.3f} on "
        f"{format_thousands(codes.shape[1])} cells that were held out of training.{after} They are a "
        "random part of the same batches. In other batches, labels are usually less accurate."
    )
