"""``tosica info``: what a file or a model folder holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tosica.cli._command import Command

if TYPE_CHECKING:
    from types import ModuleType

    from anndata import AnnData

    from tosica.cli._session import Session

_MOST_SHOWN = 12


@click.command(cls=Command, short_help="Say what a file or a model holds.")
@click.argument("path")
@click.pass_obj
def info(session: Session, path: str) -> None:
    """Say what PATH holds: the folder of a model, or a file of cells.

    Of a model: labels, genes, gene sets, scale of the reference. Of cells: their number, genes,
    layers, columns, scale of the expression, and which model has annotated them.
    """
    session.load("tosica.cli._read")
    from tosica.cli._read import kind_of, open_cells

    kind = kind_of(path)
    if kind == "model":
        result = _of_model(session.load("tosica.model"), path)
    else:
        with session.busy(f"reading {path} …"):
            result = {"path": path, "kind": kind, **_of_cells(open_cells(path))}
    session.show(result, "\n".join(_lines(result)))


def _of_model(tosica: ModuleType, path: str) -> dict[str, Any]:
    model = tosica.TOSICA.load(path, accelerator="cpu")
    arguments = model.registry_["setup_args"]
    names = ("labels_key", "batch_key", "layer", "unlabeled_category")
    modalities = [m.name for m in model.modalities if m.name is not None]
    return {
        "path": path,
        "kind": "model",
        "is_trained": bool(model.is_trained),
        "fingerprint": model.fingerprint,
        **({"modalities": modalities} if modalities else {}),
        "n_genes": sum(len(m.genes) for m in model.modalities),
        "scale": "; ".join(m.kind.describe_normalization(m.scale) for m in model.modalities),
        "n_gene_sets": len(model.gene_sets),
        "gene_sets_from": "; ".join(
            f"{m.mask['source']} ({m.mask['organism']})" for m in model.modalities
        ),
        "labels": model.labels,
        "reference": {name: arguments[name] for name in names if arguments.get(name) is not None},
        "scvi-tools": model.registry_.get("scvi_version"),
    }


def _of_cells(adata: AnnData) -> dict[str, Any]:
    annotations = {
        str(key): {
            "model": record["model"],
            "tosica": record.get("version"),
            "n_gene_sets": len(record["gene_sets"]),
            "labels": [str(label) for label in record["labels"]],
        }
        for key, record in adata.uns.items()
        if isinstance(record, Mapping) and {"model", "labels", "gene_sets"} <= set(record)
    }
    return {
        "n_cells": adata.n_obs,
        "n_genes": adata.n_vars,
        "genes": [str(name) for name in adata.var_names[:5]],
        "X": _scale(adata),
        "layers": {str(k): _scale(adata, layer=k) for k in adata.layers if k is not None},
        "raw": None if adata.raw is None else _scale(adata, use_raw=True),
        "obs": [str(name) for name in adata.obs],
        "obsm": [str(name) for name in adata.obsm],
        "annotations": annotations,
    }


def _scale(adata: AnnData, **which: Any) -> str | None:
    """What a matrix holds: ``"counts"``, ``"log1p"``, or why it is neither."""
    from tosica.data import (
        CellMatrix,
        are_fractional_counts,
        detect_values,
        sample_positions,
    )

    if not adata.n_vars or (not which and not adata.isbacked and adata.X is None):
        return None
    try:
        rows = CellMatrix(adata, **which)
        cells = rows.take(sample_positions(rows.n_obs))
        return detect_values(cells, rows.where, fractional=are_fractional_counts(cells))
    except (TypeError, ValueError) as error:
        return f"neither counts nor log-normalised: {error}"


def _lines(result: Mapping[str, Any], indent: str = "") -> list[str]:
    """Write a result as text, a line each; what is empty is left out, and long lists are cut."""
    lines = []
    for name, value in result.items():
        if value is None or value in ({}, []):
            continue
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}:", *_lines(value, f"{indent}  ")]
            continue
        if isinstance(value, list):
            more = f", … ({len(value)})" if len(value) > _MOST_SHOWN else ""
            value = ", ".join(map(str, value[:_MOST_SHOWN])) + more
        lines.append(f"{indent}{name}: {value}")
    return lines
