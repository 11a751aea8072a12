"""``tosica annotate``, ``novelty``, ``report``, ``evaluate`` and ``info``: what is done with a model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tosica._files import find_model
from tosica._progress import progress
from tosica._settings import logger
from tosica.cli._files import CELLS, TABLES, OutputPath, check_cells, check_outputs
from tosica.cli._session import (
    COUNT,
    Command,
    default_option,
    device_option,
    genome_option,
    load,
    seurat_option,
    threads_option,
)

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData
    from mudata import MuData

    from tosica.cli._session import Session
    from tosica.model import TOSICA

# Entries of a list that a line of ``tosica info`` shows.
_MOST_SHOWN = 12

key_option = default_option(
    "--key", default="tosica", help="--key-added of tosica annotate."
)


def _share_or_auto(
    ctx: click.Context, param: click.Parameter, value: Any
) -> float | str:
    return (
        value if value == "auto" else click.FloatRange(0, 1).convert(value, param, ctx)
    )


def _takes_query(function: Any) -> Any:
    """Add the argument and options of a query, and of the model that labels it."""
    help_of_model = "Folder that train wrote, or blood, which comes with tosica."
    for decorate in (
        threads_option,
        device_option,
        click.option(
            "--overwrite", is_flag=True, help="Replace outputs, and begin anew."
        ),
        default_option(
            "--key-added", default="tosica", help="First part of the names written."
        ),
        genome_option,
        seurat_option,
        click.option("--use-raw", is_flag=True, help="Read raw instead."),
        click.option("--layer", help="Layer with the expression."),
        default_option(
            "--model", default="blood", metavar="FOLDER", help=help_of_model
        ),
        click.argument("query"),
    ):
        function = decorate(function)
    return function


@click.command(cls=Command, short_help="Label the cells of a query.")
@_takes_query
@click.option(
    "-o",
    "--output",
    type=OutputPath(*CELLS),
    help="Annotated copy of the query, .h5ad or .zarr.",
)
@click.option(
    "--obs-out",
    type=OutputPath(*TABLES),
    help="Table of the cells, obs: .csv, .tsv or .parquet.",
)
@default_option(
    "--cutoff",
    type=str,
    callback=_share_or_auto,
    metavar="P|auto",
    default=0.1,
    help='Cells whose best label is less probable are "Unknown"; "auto" is halfway between chance and certainty.',
)
@default_option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    help="Least probability of a confident answer, such as T cell, where labels have terms or parents.",
)
@click.option(
    "--adapt",
    is_flag=True,
    help="Learn from the query first, if it is of another batch.",
)
@click.option(
    "--adapted-model",
    type=OutputPath(),
    help="Folder to save the adapted model to, for later reports.",
)
@click.option(
    "--probabilities", is_flag=True, help="Also write the probability of each label."
)
@click.option(
    "--majority-voting",
    is_flag=True,
    help="Also give all cells of a small cluster one label.",
)
@click.option(
    "--over-clustering",
    metavar="KEY",
    help="Column of obs with these clusters.  [default: Leiden clusters]",
)
@default_option(
    "--min-prop",
    type=click.FloatRange(0, 1),
    default=0.0,
    help='Share that a label needs, or else "Heterogeneous".',
)
@click.option("--batch-size", type=COUNT, help="Cells in a minibatch.")
@default_option(
    "--precision", type=click.Choice(["32-true", "bf16-mixed"]), default="32-true"
)
@default_option(
    "--cells-per-part",
    type=COUNT,
    default=8_192,
    help="Cells of a file in memory at a time.",
)
@click.option("--no-report", is_flag=True, help="Write no page beside the output.")
@click.pass_obj
def annotate(
    session: Session,
    query: str,
    model: str,
    output: Path | None,
    obs_out: Path | None,
    seurat: bool,
    genome: str | None,
    adapt: bool,
    adapted_model: Path | None,
    majority_voting: bool,
    over_clustering: str | None,
    min_prop: float,
    cells_per_part: int,
    no_report: bool,
    overwrite: bool,
    device: tuple[str, int | str],
    **options: Any,
) -> None:
    """Label the cells in QUERY with a model, and write an annotated copy, a table, or both.

    Beside an annotated copy of one part or less is a page that explains it, as report writes.

    QUERY is an .h5ad or .zarr file, a 10x .h5 file or mtx folder, .rds or .h5Seurat. Of .h5ad and
    .zarr, some cells are in memory at a time, and a command that was killed goes on where it
    ended; with --majority-voting, and from other formats, all are.
    """
    if output is None and obs_out is None:
        raise click.UsageError("Give --output, --obs-out or both.")
    _refuse_combinations(
        majority_voting, over_clustering, min_prop, adapt, adapted_model, **options
    )
    page = None if output is None or no_report else output.with_suffix(".html")
    check_outputs(output, obs_out, page, adapted_model, overwrite=overwrite)
    check_cells(query)
    tosica = load("tosica._report")
    from tosica.cli._files import read_cells, write_cells, write_table
    from tosica.io._kinds import kind_of
    from tosica.ondisk import StoredByGenesError

    kind = kind_of(query)
    loaded = tosica.TOSICA.load(model, accelerator=device[0], device=device[1])
    obs, adata = None, None
    if kind in ("h5ad", "zarr") and not (majority_voting or seurat):
        session.advice = "; the same command goes on where it ended"
        more = {"cells_per_part": cells_per_part, "overwrite": overwrite, **options}
        try:
            if adapt:
                loaded = _adapt_to_file(
                    query, loaded, layer=options["layer"], use_raw=options["use_raw"]
                )
            obs = _annotate_in_parts(query, loaded, output, obs_out, more)
        except StoredByGenesError:
            session.advice = ""
            logger.info("%s is stored by genes (CSC) and is read as a whole", query)
    if obs is None:
        with progress(None, f"reading {query}"):
            adata = read_cells(query, seurat=seurat, genome=genome)
        if adapt:
            loaded = loaded.adapt(
                adata, layer=options["layer"], use_raw=options["use_raw"]
            )
        loaded.annotate(adata, **options)
        if majority_voting:
            tosica.tl.majority_vote(
                adata, over_clustering, min_prop, key=options["key_added"]
            )
        if output is not None:
            with progress(None, f"writing {output}"):
                write_cells(adata, output)
        obs = adata.obs
    if obs_out is not None:
        write_table(obs, obs_out)
    if adapted_model is not None:
        loaded.save(adapted_model, overwrite=overwrite)
    key = options["key_added"]
    page = page if len(obs) <= cells_per_part else None
    if page is not None:
        with progress(None, f"drawing {page}"):
            raw = {name: options[name] for name in ("layer", "use_raw")}
            adata = read_cells(str(output)) if adata is None else adata
            _explain(adata, loaded, key, **raw)
            tosica.report(adata, page, key=key, **raw)
    column = f"{key}_majority_vote" if majority_voting else f"{key}_prediction"
    paths = {"query": query, "output": output, "obs_out": obs_out, "report": page}
    session.show(
        {
            **paths,
            **_summary(obs, column, f"{key}_probability", loaded),
            "tosica": tosica.__version__,
        }
    )


def _refuse_combinations(
    majority_voting: bool,
    over_clustering: str | None,
    min_prop: float,
    adapt: bool,
    adapted_model: Path | None,
    *,
    layer: str | None,
    use_raw: bool,
    **others: Any,
) -> None:
    """Refuse options that need or exclude one another."""
    if layer is not None and use_raw:
        raise click.UsageError("Give either --layer or --use-raw, not both.")
    if not majority_voting and (over_clustering is not None or min_prop):
        raise click.UsageError(
            "--over-clustering and --min-prop need --majority-voting."
        )
    if adapted_model is not None and not adapt:
        raise click.UsageError("--adapted-model needs --adapt.")


def _summary(
    obs: pd.DataFrame, labels_key: str, probability_key: str, model: TOSICA
) -> dict[str, Any]:
    """Summarize the labels of a query, and name the model that gave them."""
    adaptation = model.training_.adaptation
    return {
        "n_cells": len(obs),
        "labels": obs[labels_key].value_counts(sort=False).to_dict(),
        "mean_probability": float(obs[probability_key].mean()),
        "adapted": None if adaptation is None else str(adaptation),
        "model": model.fingerprint,
    }


def _adapt_to_file(
    query: str, model: TOSICA, *, layer: str | None, use_raw: bool
) -> TOSICA:
    """Adapt a model to a file, by cells from all over it."""
    from tosica.linear import MAX_CELLS
    from tosica.ondisk import Store

    store = Store(
        query, layer=layer, use_raw=use_raw, default_layer=model.modalities[0].layer
    )
    return model.adapt(store.read_spread(MAX_CELLS), layer=layer, use_raw=use_raw)


def _explain(adata: AnnData | MuData, model: TOSICA, key: str, **raw: Any) -> None:
    """Add what tells the labels to annotated cells, if any has a label."""
    from tosica._obs import UNKNOWN
    from tosica.tl import attribute
    from tosica.tl._evidence import ask_quietly

    # Models of the original's code do not know the mean cell of their reference.
    baseline: Literal["reference", "mean"] = (
        "reference" if model.module.baseline.any() else "mean"
    )
    if (adata.obs[f"{key}_prediction"] != UNKNOWN).any():
        with ask_quietly():
            attribute(adata, model, baseline=baseline, key=key, **raw)


def _annotate_in_parts(
    query: str,
    model: TOSICA,
    output: Path | None,
    obs_out: Path | None,
    options: dict[str, Any],
) -> pd.DataFrame:
    """Annotate from disk to disk, and return the table of the cells."""
    from anndata.io import read_elem

    from tosica.ondisk import open_store
    from tosica.tl import annotate_file

    if output is not None:
        annotate_file(query, model, output, **options)
        return read_elem(open_store(str(output))["obs"])
    assert obs_out is not None
    # Parts need a place that the next call finds; only the table is asked for.
    folder = obs_out.with_name(f"{obs_out.name}.parts")
    folder.mkdir(exist_ok=True)
    whole = folder / "annotated.h5ad"
    whole.unlink(missing_ok=True)
    annotate_file(query, model, whole, include_x=False, **options)
    with open_store(str(whole)) as root:
        obs = read_elem(root["obs"])
    shutil.rmtree(folder, ignore_errors=True)
    return obs


@click.command(
    cls=Command, short_help="Find clusters of types that the reference lacks."
)
@_takes_query
@click.option(
    "-o",
    "--output",
    type=OutputPath(*CELLS),
    required=True,
    help="Annotated copy, .h5ad or .zarr.",
)
@click.option(
    "--over-clustering",
    metavar="KEY",
    help="Column of obs with clusters.  [default: the predictions]",
)
@click.option(
    "--correct-batch/--same-batch",
    default=True,
    help="Correct for what most labels share, or do not.",
)
@click.pass_obj
def novelty(
    session: Session,
    query: str,
    model: str,
    output: Path,
    over_clustering: str | None,
    correct_batch: bool,
    seurat: bool,
    genome: str | None,
    key_added: str,
    overwrite: bool,
    device: tuple[str, int | str],
    **raw: Any,
) -> None:
    """Score cells and clusters in QUERY that may be of a type the model lacks.

    Printed are the clusters, the most unlike first. The copy of QUERY has labels, scores and p-values of its cells.
    All are in memory.
    """
    check_outputs(output, overwrite=overwrite)
    check_cells(query, over_clustering=over_clustering)
    tosica = load("tosica.tl")
    from tosica.cli._files import read_cells, write_cells

    loaded = tosica.TOSICA.load(model, accelerator=device[0], device=device[1])
    with progress(None, f"reading {query}"):
        adata = read_cells(query, seurat=seurat, genome=genome)
    loaded.annotate(adata, key_added=key_added, **raw)
    which = {
        "over_clustering": over_clustering,
        "correct_batch": correct_batch,
        "key": key_added,
    }
    tosica.tl.novelty(adata, loaded, **which, **raw)
    with progress(None, f"writing {output}"):
        write_cells(adata, output)
    label, score = f"{key_added}_prediction", f"{key_added}_novelty_cluster"
    table = adata.obs.groupby(over_clustering or label, observed=True).agg(
        cells=(label, "size"),
        label=(label, lambda labels: labels.mode()[0]),
        score=(score, "first"),
        pvalue=(f"{score}_pvalue", "first"),
    )
    table = table.sort_values("score", ascending=False)
    result = {"query": query, "output": output, "clusters": table.to_dict("index")}
    text = table.reset_index().to_string(index=False, float_format="{:.3f}".format)
    session.show({**result, "model": loaded.fingerprint}, text)


# --------------------------------------------------------------------------- report, evaluate


@click.command(cls=Command, short_help="Write a page about an annotation.")
@click.argument("annotated")
@click.option(
    "-o", "--output", type=OutputPath(".html"), required=True, help="Page to write."
)
@click.option(
    "--model",
    metavar="FOLDER",
    help="Its model, to compute what genes add to each label.",
)
@click.option("--labels-key", help="Column of obs with known labels, to compare with.")
@click.option("--sample-key", help="Column of obs with the sample of each cell.")
@click.option("--layer", help="Layer with expression that is not scaled.")
@click.option("--use-raw", is_flag=True, help="Read expression from raw.")
@click.option("--title", help="Title of the page.")
@key_option
@click.option("--overwrite", is_flag=True, help="Replace the page if it exists.")
@threads_option
@click.pass_obj
def report(
    session: Session,
    annotated: str,
    output: Path,
    model: str | None,
    key: str,
    overwrite: bool,
    **options: Any,
) -> None:
    """Write an HTML page about the annotated cells in ANNOTATED.

    ANNOTATED is an .h5ad or .zarr file that annotate wrote.
    """
    check_outputs(output, overwrite=overwrite)
    check_cells(
        annotated, labels_key=options["labels_key"], sample_key=options["sample_key"]
    )
    tosica = load("tosica._report")
    from tosica.cli._files import read_cells

    with progress(None, f"reading {annotated}"):
        adata = read_cells(annotated)
    if model is not None:
        raw = {name: options[name] for name in ("layer", "use_raw")}
        _explain(adata, tosica.TOSICA.load(model, accelerator="cpu"), key, **raw)
    with progress(None, "drawing"):
        tosica.report(adata, output, key=key, **options)
    session.show(
        {"annotated": annotated, "report": str(output), "n_cells": adata.n_obs}
    )


@click.command(cls=Command, short_help="Compare an annotation with known labels.")
@click.argument("annotated")
@click.option(
    "--labels-key", required=True, help="Column of obs with the known labels."
)
@key_option
@click.option(
    "--prediction-key",
    metavar="COLUMN",
    help="Other column to evaluate, such as tosica_majority_vote.",
)
@click.option(
    "--model", metavar="FOLDER", help="Refuse a file that another model has annotated."
)
@click.pass_obj
def evaluate(
    session: Session,
    annotated: str,
    labels_key: str,
    key: str,
    prediction_key: str | None,
    model: str | None,
) -> None:
    """Compare the labels in ANNOTATED with known ones: accuracy, macro-F1, each label.

    ANNOTATED is what annotate wrote: .h5ad, .zarr, or a table of the cells.
    """
    check_cells(annotated, labels_key=labels_key, prediction_key=prediction_key)
    tosica = load("tosica.tl")
    from tosica.cli._files import read_cells

    adata = read_cells(annotated, backed=True)
    if model is not None:
        expected = tosica.TOSICA.load(model, accelerator="cpu").fingerprint
        if adata.uns.get(key, {}).get("model") != expected:
            raise ValueError(
                f"{annotated!r} was not annotated by the model in {model!r}, or does not say so under uns[{key!r}]: "
                "annotate it again, name the other model, or leave --model out."
            )
    found = tosica.tl.evaluate(
        adata, labels_key, key=key, prediction_key=prediction_key
    )
    result = {
        "annotated": annotated,
        "prediction": str(found.summary.index[0]),
        **found.summary.iloc[0].to_dict(),
    }
    tables = {
        "per_class": found.per_class.to_dict("index"),
        "confusion": found.confusion.to_dict("index"),
    }
    session.show({**result, "n_cells": int(result["n_cells"]), **tables}, repr(found))


# --------------------------------------------------------------------------- info


@click.command(cls=Command, short_help="Say what a file or a model holds.")
@click.argument("path")
@genome_option
@click.pass_obj
def info(session: Session, path: str, genome: str | None) -> None:
    """Say what PATH holds: the folder of a model, blood, or a file of cells.

    Of a model: labels, genes, gene sets, scale of the reference, and its card if it has one, as
    blood has, which comes with tosica. Of cells: their number, genes, layers, columns, scale of the
    expression, and which model has annotated them.
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
    from tosica.cli._files import read_cells
    from tosica.io._kinds import kind_of

    kind = kind_of(folder)
    if kind == "model":
        result = _of_model(load("tosica.model").TOSICA.load(path, accelerator="cpu"))
        result["card"] = card.read_text(encoding="utf8") if card.is_file() else None
    else:
        with progress(None, f"reading {path}"):
            result = _of_cells(read_cells(path, backed=True, genome=genome))
    result = {"path": path, "kind": kind, **result}
    session.show(result, "\n".join(_lines(result)))


def _of_model(model: TOSICA) -> dict[str, Any]:
    arguments = model.registry_["setup_args"]
    names = ("labels_key", "batch_key", "layer", "unlabeled_category")
    modalities = [m.name for m in model.modalities if m.name is not None]
    return {
        "is_trained": bool(model.is_trained),
        "fingerprint": model.fingerprint,
        **({"modalities": modalities} if modalities else {}),
        "n_genes": sum(len(m.genes) for m in model.modalities),
        "scale": "; ".join(
            m.kind.describe_normalization(m.scale) for m in model.modalities
        ),
        "n_gene_sets": len(model.gene_sets),
        "gene_sets_from": "; ".join(
            f"{m.mask['source']} ({m.mask['organism']})" for m in model.modalities
        ),
        "labels": model.labels,
        "reference": {
            name: arguments[name] for name in names if arguments.get(name) is not None
        },
        "scvi-tools": model.registry_.get("scvi_version"),
    }


def _of_cells(adata: AnnData) -> dict[str, Any]:
    annotations = {}
    for key, record in adata.uns.items():
        if isinstance(record, Mapping) and {"model", "labels", "gene_sets"} <= set(
            record
        ):
            of_model = {
                "n_gene_sets": len(record["gene_sets"]),
                "labels": list(record["labels"]),
            }
            annotations[str(key)] = {
                "model": record["model"],
                "tosica": record.get("version"),
                **of_model,
            }
    return {
        "n_cells": adata.n_obs,
        "n_genes": adata.n_vars,
        "genes": list(adata.var_names[:5]),
        "X": _scale(adata),
        "layers": {
            str(k): _scale(adata, layer=k) for k in adata.layers if k is not None
        },
        "raw": None if adata.raw is None else _scale(adata, use_raw=True),
        "obs": list(adata.obs),
        "obsm": list(adata.obsm),
        "annotations": annotations,
    }


def _scale(adata: AnnData, **which: Any) -> str | None:
    """What a matrix holds: ``"counts"``, ``"log1p"``, or why it is neither."""
    from tosica.data import CellMatrix, detect_values, sample_positions

    if not adata.n_vars or (not which and not adata.isbacked and adata.X is None):
        return None
    try:
        rows = CellMatrix(adata, **which)
        return detect_values(rows.take(sample_positions(rows.n_obs)), rows.where)
    except (TypeError, ValueError) as error:
        return f"neither counts nor log-normalised: {error}"


def _lines(result: Mapping[str, Any], indent: str = "") -> list[str]:
    """Write a result as text, a line each; what is empty is left out, and long lists are cut."""
    lines = []
    for name, value in result.items():
        if isinstance(value, Mapping):
            lines += (
                [f"{indent}{name}:", *_lines(value, f"{indent}  ")] if value else []
            )
        elif isinstance(value, list):
            more = f", … ({len(value)})" if len(value) > _MOST_SHOWN else ""
            lines += (
                [f"{indent}{name}: {', '.join(map(str, value[:_MOST_SHOWN]))}{more}"]
                if value
                else []
            )
        elif value is not None:
            lines.append(f"{indent}{name}: {value}")
    return lines
