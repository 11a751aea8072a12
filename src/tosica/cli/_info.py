"""``tosica info``: what a file or a model holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tosica._files import find_model
from tosica._progress import progress
from tosica.cli._session import Command, load, takes_cells

if TYPE_CHECKING:
    from anndata import AnnData

    from tosica.cli._session import Session
    from tosica.model import TOSICA

# Entries of a list that a line shows.
_MAX_ENTRIES = 12


@click.command(cls=Command, short_help="Say what a file or a model holds.")
@click.argument("path")
@takes_cells
@click.pass_obj
def info(session: Session, path: str, selection: dict[str, Any]) -> None:
    """Say what PATH holds: the folder of a model, blood, or a file of cells.

    Of a model: labels, genes, gene sets, scale of the reference, and its card if it has one, as
    blood has, which comes with tosica. Of cells: their number, genes, layers, columns, scale of the
    expression, and which model has annotated them; of a container, of each modality or table.
    """
    folder = str(find_model(path))
    card = Path(folder, "README.md")
    if not session.as_json and card.is_file() and Path(folder, "model.pt").is_file():
        # A model takes seconds to load, and its card says the same.
        session.show(
            {},
            f"path: {path}\nkind: model\n\n{card.read_text(encoding='utf8')}".rstrip(),
        )
        return
    from anndata.io import read_elem

    from tosica.cli._files import read_cells
    from tosica.io._containers import list_groups, open_group
    from tosica.io._file_kinds import CONTAINERS, kind_of

    kind = kind_of(folder)
    summary: dict[str, Any] = {"path": path, "kind": kind}
    if kind == "model":
        model = load("tosica.model").TOSICA.load(path, accelerator="cpu")
        summary.update(_describe_model(model))
        summary["card"] = card.read_text(encoding="utf8") if card.is_file() else None
    else:
        with progress(None, f"reading {path}"):
            names = list_groups(path) if kind in CONTAINERS else {}
            if len(names) < 2 or selection["modality"] or selection["table"]:
                adata = read_cells(path, backed=True, **selection)
                summary.update(_describe_cells(adata))
            else:
                for name in names:
                    selection["modality"] = name
                    adata = read_cells(path, backed=True, **selection)
                    summary[name] = _describe_cells(adata)
                root = open_group(path)
                uns = read_elem(root["uns"]) if "uns" in root else {}
                summary["annotations"] = _list_annotations(uns)
    session.show(summary, "\n".join(_lines(summary)))


def _describe_model(model: TOSICA) -> dict[str, Any]:
    arguments = model.registry_["setup_args"]
    reference = {
        name: arguments[name]
        for name in ("labels_key", "batch_key", "layer", "unlabeled_category")
        if arguments.get(name) is not None
    }
    scales = [m.kind.describe_normalization(m.scale) for m in model.modalities]
    sources = [f"{m.mask['source']} ({m.mask['organism']})" for m in model.modalities]
    summary: dict[str, Any] = {
        "is_trained": bool(model.is_trained),
        "fingerprint": model.fingerprint,
    }
    modalities = [m.name for m in model.modalities if m.name is not None]
    if modalities:
        summary["modalities"] = modalities
    return summary | {
        "n_genes": sum(len(m.genes) for m in model.modalities),
        "scale": "; ".join(scales),
        "n_gene_sets": len(model.gene_sets),
        "gene_sets_from": "; ".join(sources),
        "labels": model.labels,
        "reference": reference,
        "scvi-tools": model.registry_.get("scvi_version"),
    }


def _describe_cells(adata: AnnData) -> dict[str, Any]:
    layers = [key for key in adata.layers if key is not None]
    return {
        "n_cells": adata.n_obs,
        "n_genes": adata.n_vars,
        "genes": list(adata.var_names[:5]),
        "X": _scale(adata),
        "layers": {str(layer): _scale(adata, layer=layer) for layer in layers},
        "raw": None if adata.raw is None else _scale(adata, use_raw=True),
        "obs": list(adata.obs),
        "obsm": list(adata.obsm),
        "annotations": _list_annotations(adata.uns),
    }


def _list_annotations(uns: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the annotations in uns are, by key."""
    annotations = {}
    for key, record in uns.items():
        if isinstance(record, Mapping) and {"model", "labels", "gene_sets"} <= {
            *record
        }:
            annotations[str(key)] = {
                "model": record["model"],
                "tosica": record.get("version"),
                "n_gene_sets": len(record["gene_sets"]),
                "labels": list(record["labels"]),
            }
    return annotations


def _scale(adata: AnnData, **matrix: Any) -> str | None:
    """Describe the values of a matrix: ``"counts"``, ``"log1p"``, or why they are neither."""
    from tosica.data import CellMatrix, detect_values, sample_positions

    has_no_x = not matrix and adata.X is None
    if not adata.n_vars or has_no_x:
        return None
    try:
        rows = CellMatrix(adata, **matrix)
        return detect_values(rows.take(sample_positions(rows.n_obs)), rows.where)
    except (TypeError, ValueError) as error:
        return f"neither counts nor log-normalized: {error}"


def _lines(summary: Mapping[str, Any], indent: str = "") -> list[str]:
    """Write a summary as text, a line each; empty values are left out, and long lists are cut."""
    lines = []
    for name, value in summary.items():
        if value is None or value in ([], {}):
            continue
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name}:")
            lines.extend(_lines(value, f"{indent}  "))
        elif isinstance(value, list):
            entries = ", ".join(map(str, value[:_MAX_ENTRIES]))
            if len(value) > _MAX_ENTRIES:
                entries += f", … ({len(value)})"
            lines.append(f"{indent}{name}: {entries}")
        else:
            lines.append(f"{indent}{name}: {value}")
    return lines
