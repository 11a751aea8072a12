"""``tosica annotate`` and ``novelty``: labels of a query, by a model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from tosica._progress import progress
from tosica._settings import logger
from tosica._text import count, first_line, format_thousands
from tosica.cli._files import CELLS, TABLES, OutputPath, check_cells, check_outputs
from tosica.cli._modalities import (
    find_modalities,
    read_modalities,
    refuse_options_of_one_modality,
    say_modalities,
    write_modalities,
)
from tosica.cli._names import read_names
from tosica.cli._report import explain
from tosica.cli._session import (
    COUNT,
    Command,
    default_option,
    device_option,
    load,
    takes_cells,
    threads_option,
)
from tosica.cli._tissue import (
    find_tissue_model,
    is_given,
    tissue_option,
    version_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from tosica._types import AnnOrMuData
    from tosica.cli._session import Session
    from tosica.model import TOSICA

# Cells of each label that a sample keeps.
_LEAST_CELLS = 100
# Clusters that are printed: a screen of them.
_CLUSTERS_SHOWN = 20


def _share_or_auto(
    ctx: click.Context, param: click.Parameter, value: Any
) -> float | str:
    if value == "auto":
        return "auto"
    return click.FloatRange(0, 1).convert(value, param, ctx)


_QUERY_OPTIONS = (
    click.argument("query"),
    default_option(
        "--model",
        default="blood",
        metavar="FOLDER",
        help="Folder that train wrote, or blood, which comes with tosica.",
    ),
    click.option("--layer", help="Layer with the expression."),
    click.option("--use-raw", is_flag=True, help="Read raw instead."),
    takes_cells,
    default_option(
        "--key-added", default="tosica", help="First part of the names written."
    ),
    click.option("--overwrite", is_flag=True, help="Replace outputs, and begin anew."),
    device_option,
    threads_option,
)


def _takes_query(function: Any) -> Any:
    """Add the argument and options of a query, and of the model that labels it."""
    for decorate in reversed(_QUERY_OPTIONS):
        function = decorate(function)
    return function


@click.command(cls=Command, short_help="Label the cells of a query.")
@_takes_query
@click.option(
    "-o",
    "--output",
    type=OutputPath(*CELLS),
    help="Annotated copy of the query, .h5ad or .zarr, or a container as the query.",
)
@click.option(
    "--obs-out",
    type=OutputPath(*TABLES),
    help="Table of the cells, obs: .csv, .tsv or .parquet.",
)
@click.option(
    "--labels",
    multiple=True,
    metavar="A,B,…|FILE",
    help="The only labels that can occur, or a file with one a line.  [default: all of the model]",
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
@click.option(
    "--min-genes",
    type=COUNT,
    help="Leave out cells with fewer genes, as droplets have.",
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
@tissue_option
@version_option
@default_option(
    "--organism",
    type=click.Choice(["human", "mouse"]),
    default="human",
    help="Organism of the cells of --tissue.",
)
@click.pass_obj
def annotate(
    session: Session,
    query: str,
    model: str,
    tissue: str | None,
    version: str,
    organism: str,
    labels: tuple[str, ...],
    output: Path | None,
    obs_out: Path | None,
    adapted_model: Path | None,
    cells_per_part: int,
    no_report: bool,
    overwrite: bool,
    device: tuple[str, int | str],
    **options: Any,
) -> None:
    """Label the cells in QUERY with a model, and write an annotated copy, a table, or both.

    Beside an annotated copy is a page that explains it, as report writes: of more cells than one
    part has, about a sample of them.

    QUERY is an .h5ad, .zarr or .loom file, a 10x .h5 file or folder, .rds or .h5Seurat, or a
    container: a MuData (.h5mu, .zarr), of which the modality with the model's genes is labeled, or
    all of them by a model of several, or a SpatialData store. An output of the container's format
    has all of it, with the labels inside; --overwrite and the query as output label a store in its
    place.

    Of .h5ad, .h5mu and .zarr, some cells are in memory at a time, and a command that was killed
    goes on where it ended; with --majority-voting, --min-genes or a model of several modalities, and
    from other formats, all are.
    """
    if output is None and obs_out is None:
        raise click.UsageError("Give --output, --obs-out or both.")
    _refuse_combinations(adapted_model, tissue, **options)
    page = None if output is None or no_report else output.with_suffix(".html")
    check_outputs(output, obs_out, page, adapted_model, overwrite=overwrite)
    check_cells(query, over_clustering=options["over_clustering"])
    tosica = load("tosica._report")
    from tosica.cli._files import check_selection, write_table

    check_selection(query, options["selection"])

    if tissue is not None:
        model = str(find_tissue_model(tissue, organism, version))
    loaded = tosica.TOSICA.load(model, accelerator=device[0], device=device[1])
    if labels:
        loaded = loaded.subset(read_names(labels, loaded._hierarchy.names))
    annotation = _Annotation(session, query, loaded, **options)
    annotation.check_output(output)
    obs = annotation.annotate_in_parts(
        output, obs_out, cells_per_part=cells_per_part, overwrite=overwrite
    )
    if obs is None:
        obs = annotation.annotate_in_memory(output)
    if output is not None:
        session.written.append(output)
    if obs_out is not None:
        write_table(obs, obs_out)
        session.written.append(obs_out)
    if adapted_model is not None:
        annotation.model.save(adapted_model, overwrite=overwrite)
        session.written.append(adapted_model)
    if page is not None and output is not None:
        annotation.write_report(output, page, max_cells=cells_per_part)
        session.written.append(page)
    sampled = ""
    if page is not None and len(obs) > cells_per_part:
        sampled = f"; the page is about {format_thousands(cells_per_part)} of the cells"
    cells = say_modalities(annotation.modalities, annotation.group)
    session.conclude(f"annotated {count(len(obs), 'cell', ' ')}{cells}", sampled)
    session.show(
        {
            "query": query,
            "output": output,
            "obs_out": obs_out,
            "report": page,
            **annotation.summary(obs),
            "tosica": tosica.__version__,
        }
    )


def _refuse_combinations(
    adapted_model: Path | None,
    tissue: str | None,
    *,
    majority_voting: bool,
    over_clustering: str | None,
    min_prop: float,
    adapt: bool,
    layer: str | None,
    use_raw: bool,
    **_: Any,
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
    if tissue is not None and is_given("model"):
        raise click.UsageError("Give either --tissue or --model, not both.")
    if tissue is None and (is_given("organism") or is_given("version")):
        raise click.UsageError("--organism and --census-version need --tissue.")


def _refuse_new_mudata(query: str, group: str, output: Path) -> None:
    """Refuse an output that ends as a MuData does and would be none."""
    from tosica.ondisk import is_copy_of_container

    is_copy = is_copy_of_container(query, group, output)
    if output.suffix.lower() == ".h5mu" and not is_copy:
        raise click.UsageError(
            f"{output} would be a MuData, and the query is no .h5mu: end it in .h5ad or .zarr."
        )


class _Annotation:
    """One run of ``tosica annotate``: a query, its model, and options of ``model.annotate``."""

    def __init__(
        self,
        session: Session,
        query: str,
        model: TOSICA,
        *,
        selection: dict[str, Any],
        adapt: bool,
        majority_voting: bool,
        over_clustering: str | None,
        min_prop: float,
        min_genes: int | None,
        **options: Any,
    ) -> None:
        from tosica.cli._files import find_group
        from tosica.io._file_kinds import ON_DISK, kind_of

        self.session = session
        self.query = query
        self.model = model
        self.selection = selection
        self.min_genes = min_genes
        # A MuData is labeled as a whole by a model of several modalities.
        self.modalities = find_modalities(query, model, selection)
        self.reads_whole = (
            kind_of(query) not in ON_DISK
            or bool(self.modalities)
            or selection["seurat"]
            or majority_voting
            or min_genes is not None
        )
        # Group of the cells, if the query is a container.
        self.group = "" if self.modalities else find_group(query, model, selection)
        self.adapt = adapt
        self.majority_voting = majority_voting
        self.over_clustering = over_clustering
        self.min_prop = min_prop
        self.options = options
        self.key = options["key_added"]
        self.matrix = {"layer": options["layer"], "use_raw": options["use_raw"]}
        # The annotated cells, if all of them are in memory.
        self.adata: AnnOrMuData | None = None

    def check_output(self, output: Path | None) -> None:
        """Refuse a copy of a container that the query is not, or that would lack cells."""
        from tosica.ondisk import is_copy_of_container

        if self.modalities:
            options = {**self.matrix, "min_genes": self.min_genes}
            refuse_options_of_one_modality(self.query, output, options)
            return
        if output is None:
            return
        _refuse_new_mudata(self.query, self.group, output)
        is_copy = is_copy_of_container(self.query, self.group, output)
        if is_copy and self.min_genes is not None:
            raise click.UsageError(
                "--min-genes leaves cells out, and a copy of the whole container needs all: end --output in .h5ad."
            )

    def annotate_in_parts(
        self,
        output: Path | None,
        obs_out: Path | None,
        *,
        cells_per_part: int,
        overwrite: bool,
    ) -> pd.DataFrame | None:
        """Annotate from disk to disk, and return the table of the cells.

        ``None`` if this query has to be read as a whole.
        """
        from tosica.linear import MAX_CELLS
        from tosica.ondisk import Store, StoredByGenesError

        if self.reads_whole:
            return None
        self.session.advice = "; the same command goes on where it ended"
        options = {
            "cells_per_part": cells_per_part,
            "overwrite": overwrite,
            "modality": self.selection["modality"] or self.selection["table"],
            **self.options,
        }
        try:
            if self.adapt:
                store = Store(
                    self.query,
                    self.group,
                    default_layer=self.model.modalities[0].layer,
                    **self.matrix,
                )
                self.model = self.model.adapt(store.spread(MAX_CELLS), **self.matrix)
            if output is not None:
                return self._annotate_to_file(output, options)
            assert obs_out is not None
            return self._annotate_to_table(obs_out, options)
        except StoredByGenesError:
            self.session.advice = ""
            logger.info(
                "%s is stored by genes (CSC) and is read as a whole", self.query
            )
            return None

    def _annotate_to_table(
        self, obs_out: Path, options: dict[str, Any]
    ) -> pd.DataFrame:
        # Parts need a place that the next call finds; only the table is asked for.
        folder = obs_out.with_name(f"{obs_out.name}.parts")
        folder.mkdir(exist_ok=True)
        try:
            annotated = folder / "annotated.h5ad"
            annotated.unlink(missing_ok=True)
            obs = self._annotate_to_file(annotated, options | {"include_x": False})
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            # An error before the first part leaves nothing to go on with.
            with suppress(OSError):
                folder.rmdir()
        return obs

    def _annotate_to_file(self, output: Path, options: dict[str, Any]) -> pd.DataFrame:
        from anndata.io import read_elem

        from tosica.io._containers import open_group
        from tosica.tl import annotate_file

        annotate_file(self.query, self.model, output, **options)
        root = open_group(str(output), self._group_in(output))
        obs = read_elem(root["obs"])
        # Groups of Zarr have nothing to close.
        if hasattr(root, "file"):
            root.file.close()
        return obs

    def _group_in(self, output: Path) -> str:
        """Group of the cells in the output, which is a container or not."""
        from tosica.ondisk import is_copy_of_container

        is_copy = is_copy_of_container(self.query, self.group, output)
        return self.group if is_copy else ""

    def annotate_in_memory(self, output: Path | None) -> pd.DataFrame:
        """Read all cells, annotate and write them, and return their table."""
        import numpy as np

        from tosica.cli._files import number_repeated_names, read_cells, write_cells
        from tosica.data import BLOCK, CellMatrix
        from tosica.tl import majority_vote
        from tosica.tl._majority_vote import read_clusters

        adata: Any
        with progress(None, f"reading {self.query}"):
            if self.modalities:
                adata = read_modalities(self.query)
            else:
                adata = read_cells(self.query, **_named(self.selection, self.group))
        # A container knows its cells by their names.
        if not self.modalities and not self.group:
            number_repeated_names(adata, genes=False)
        if self.min_genes is not None:
            blocks = CellMatrix(adata, **self.matrix).blocks(BLOCK)
            n_genes = [np.asarray((block > 0).sum(1)).ravel() for _, block in blocks]
            has_genes = np.concatenate(n_genes) >= self.min_genes
            if not has_genes.any():
                raise ValueError(
                    f"No cell has {self.min_genes} genes: lower --min-genes."
                )
            n_poor = (~has_genes).sum()
            logger.info("annotate: %d cells with fewer genes are left out", n_poor)
            adata = adata[has_genes].copy()
        if self.over_clustering is not None:
            # A wrong column is told before the cells are annotated.
            read_clusters(adata, self.over_clustering)
        if self.adapt:
            self.model = self.model.adapt(adata, **self.matrix)
        self.model.annotate(adata, **self.options)
        if self.majority_voting:
            has_graph = "neighbors" in adata.uns or adata.n_obs == 1
            if self.over_clustering is None and not has_graph:
                _add_neighbors(adata, f"X_{self.key}")
            majority_vote(adata, self.over_clustering, self.min_prop, key=self.key)
        if output is not None:
            with progress(None, f"writing {output}"):
                if self.modalities:
                    write_modalities(adata, output)
                else:
                    write_cells(adata, output, self.query, self.group)
        self.adata = adata
        return adata.obs

    def write_report(self, output: Path, page: Path, *, max_cells: int) -> None:
        """Write the page; an error says that the annotated copy is whole."""
        import numpy as np

        from tosica._report import SAMPLED_FROM, report
        from tosica.cli._files import number_repeated_names
        from tosica.io._containers import open_cells
        from tosica.tl import novelty
        from tosica.tl._evidence import draw_cells

        try:
            with progress(None, f"drawing {page}"):
                adata = self.adata
                if adata is None:
                    adata = open_cells(str(output), self._group_in(output))
                n_cells = adata.n_obs
                if n_cells > max_cells:
                    codes = (
                        adata.obs[f"{self.key}_prediction"].astype("category").cat.codes
                    )
                    rng = np.random.default_rng(0)
                    rows = draw_cells(
                        codes.to_numpy(), max_cells, rng, least=_LEAST_CELLS
                    )
                    adata = adata[rows]
                if self.modalities:
                    adata = adata.copy()
                else:
                    adata = adata.to_memory()
                    number_repeated_names(adata, genes=False, warns=False)
                if n_cells > max_cells:
                    adata.uns[self.key] = {**adata.uns[self.key], SAMPLED_FROM: n_cells}
                if f"{self.key}_novelty" in adata.obs:
                    novelty(adata, self.model, key=self.key, **self.matrix)
                explain(adata, self.model, self.key, **self.matrix)
                report(adata, page, key=self.key, **self.matrix)
        except Exception as error:
            raise RuntimeError(
                f"{output} was written, but not {page} ({first_line(error)}): --no-report leaves it out."
            ) from error

    def summary(self, obs: pd.DataFrame) -> dict[str, Any]:
        """Summarize the labels, and name the model that gave them."""
        name = "majority_vote" if self.majority_voting else "prediction"
        adaptation = self.model.training_.adaptation

        def count_labels(column: str) -> dict[Any, int]:
            return obs[f"{self.key}_{column}"].value_counts(sort=False).to_dict()

        return {
            "n_cells": len(obs),
            "labels": count_labels(name),
            "levels": {
                level.key: count_labels(f"prediction_{level.key}")
                for level in self.model._levels
            },
            "mean_probability": float(obs[f"{self.key}_probability"].mean()),
            "left_out_labels": self.model.training_.left_out_labels,
            "adapted": None if adaptation is None else str(adaptation),
            "model": self.model.fingerprint,
        }


def _add_neighbors(adata: AnnOrMuData, use_rep: str) -> None:
    """Make a graph of neighbors of an embedding, for clusters."""
    import scanpy as sc
    from anndata import AnnData

    logger.info(
        "annotate: the cells have no graph of neighbors to cluster, so one was made "
        "of obsm[%r]; --over-clustering names clusters of your own",
        use_rep,
    )
    # Scanpy takes no MuData.
    cells = AnnData(obs=adata.obs[[]], obsm={use_rep: adata.obsm[use_rep]})
    sc.pp.neighbors(cells, use_rep=use_rep)
    adata.uns["neighbors"] = cells.uns["neighbors"]
    adata.obsp.update(cells.obsp)


def _named(selection: dict[str, Any], group: str) -> dict[str, Any]:
    """The selection with the modality or table that was found."""
    return {**selection, "modality": group.rpartition("/")[2] or None, "table": None}


# --------------------------------------------------------------------------- novelty


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
    selection: dict[str, Any],
    key_added: str,
    overwrite: bool,
    device: tuple[str, int | str],
    **matrix: Any,
) -> None:
    """Score cells and clusters in QUERY that may be of a type the model lacks.

    Printed are the clusters that are most unlike their label. The copy of QUERY has labels, scores
    and p-values of its cells. All are in memory.
    """
    check_outputs(output, overwrite=overwrite)
    check_cells(query, over_clustering=over_clustering)
    tosica = load("tosica.tl")
    from tosica.cli._files import (
        find_group,
        number_repeated_names,
        read_cells,
        write_cells,
    )

    loaded = tosica.TOSICA.load(model, accelerator=device[0], device=device[1])
    group = find_group(query, loaded, selection)
    _refuse_new_mudata(query, group, output)
    with progress(None, f"reading {query}"):
        adata = read_cells(query, **_named(selection, group))
    if not group:
        number_repeated_names(adata, genes=False)
    record = adata.uns.get(key_added)
    annotated_by = record.get("model") if isinstance(record, Mapping) else None
    if annotated_by not in (None, loaded.fingerprint):
        logger.warning(
            "novelty: the labels in %s are of the model %s, and are replaced by those of %s",
            query,
            annotated_by,
            loaded.fingerprint,
        )
    loaded.annotate(adata, key_added=key_added, **matrix)
    tosica.tl.novelty(
        adata,
        loaded,
        over_clustering=over_clustering,
        correct_batch=correct_batch,
        key=key_added,
        **matrix,
    )
    with progress(None, f"writing {output}"):
        write_cells(adata, output, query, group)
    session.written.append(output)
    table = adata.uns[f"{key_added}_novelty"].set_index("cluster")
    summary = {
        "query": query,
        "output": output,
        "clusters": table.to_dict("index"),
        "model": loaded.fingerprint,
    }
    first = table.head(_CLUSTERS_SHOWN).reset_index()
    text = first.to_string(index=False, float_format="{:.3f}".format)
    if len(table) > len(first):
        n_more = count(len(table) - len(first), "cluster", " ")
        text += f"\n{n_more} more in uns[{key_added + '_novelty'!r}] of {output}"
    session.show(summary, text)
    session.conclude(f"scored {count(adata.n_obs, 'cell', ' ')}")
