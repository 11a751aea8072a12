"""Write a page about an annotation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from tosica._checks import InstanceOf, Integer, validate_params
from tosica._files import check_folder, replace_file
from tosica._limits import LIMITS
from tosica._report import _facts
from tosica._report._map import NOVELTY_RANGE, draw_map, find_positions
from tosica._settings import count, count_cells, decimal, logger, percent
from tosica.data import ExpressionSource
from tosica.model import TOSICA
from tosica.pl._figure import group_colors
from tosica.tl._attribute import explain_groups
from tosica.tl._check import as_table
from tosica.tl._evidence import Cells, ask_quietly, collect_evidence, read_contributions

if TYPE_CHECKING:
    import os
    from typing import Any

    from anndata import AnnData
    from mudata import MuData

_SUFFIXES = (".html", ".htm")


@validate_params(
    model=InstanceOf("the TOSICA model that annotated adata", TOSICA, optional=True),
    markers=InstanceOf("a dict of label to genes", Mapping, optional=True),
    seed=Integer(least=0),
)
def report(
    adata: AnnData | MuData,
    path: str | os.PathLike[str],
    *,
    model: TOSICA | None = None,
    labels_key: str | None = None,
    sample_key: str | None = None,
    markers: Mapping[str, Iterable[str]] | None = None,
    title: str | None = None,
    layer: str | None = None,
    use_raw: bool = False,
    max_cells: int = 50_000,
    seed: int = 0,
    key: str = "tosica",
) -> Path:
    """Write one HTML page about an annotation, for the biologist who has to judge it.

    The page shows how many cells have which label, how probable the labels are, which cells are
    unlike the reference, a map of the cells to hover, search and filter, for each cell type the
    genes and gene sets that tell it and its markers, what to doubt and why, and a paragraph of
    methods.
    It is a single file that needs no network and sends nothing anywhere. The same data give the
    same bytes. :doc:`/report` describes each section.

    Parameters
    ----------
    adata
        Cells that ``model.annotate`` has annotated, ``(n_obs, n_vars)``, in memory or backed. They
        are not changed. The map takes the UMAP in ``adata.obsm["X_umap"]``. Without one, it is
        computed from the attention, which takes some minutes for 50 000 cells.
    path
        File to write, ending in ``.html`` or ``.htm``.
    model
        The model that annotated ``adata``. With it, the page has what genes and gene sets add to
        each label, the label that each label is most easily confused with, and the share of missing
        genes. Without it, the page shows what :func:`tosica.tl.attribute` wrote, if it did.
    labels_key
        Column of ``adata.obs`` with labels that were known before, to compare with.
    sample_key
        Column of ``adata.obs`` with samples, donors or batches, to compare.
    markers
        Markers that you know: genes of each label, such as ``{"B cell": ["MS4A1", "CD79A"]}``. The
        page says in which label each of them is expressed most.
    title
        Title of the page; by default "Cell type annotation".
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    max_cells
        Cells on the map at most. Of more, a random sample is shown that keeps rare labels. All
        tables are of all cells.
    seed
        Seed of the samples and of the UMAP.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    The path of the page.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, a column or layer is missing, or ``markers``
        names a label that the model does not have.
    ValueError
        If ``path`` has another suffix, there are no cells, cells have no label, sample or
        probability, another model annotated ``adata``, or ``max_cells`` is less than 1.
    FileNotFoundError
        If the folder to write to does not exist.
    OSError
        If the file cannot be written. What was there before is unchanged.

    See Also
    --------
    tosica.tl.attribute : what genes and gene sets add, stored in the data.
    tosica.tl.novelty : novelty, corrected for the shift shared by all cells.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import tosica
    >>> with TemporaryDirectory() as folder:
    ...     path = tosica.report(query, Path(folder) / "report.html", model=model)
    ...     path.stat().st_size < 5_000_000
    True
    """
    target = _check_target(path)
    source = ExpressionSource(adata, layer, use_raw)
    cells = Cells.read(adata, key, labels_key=labels_key, sample_key=sample_key)
    evidence = collect_evidence(source, cells, model, markers, seed)
    color_of = group_colors(adata, f"{key}_prediction")
    colors = [color_of[label] for label in cells.labels]
    contributions = _contributions(source, cells, model, seed)
    markers_of, no_markers = _facts.find_markers(evidence)
    positions = find_positions(adata, cells, max_cells, seed)
    names = adata.obs_names.astype(str)
    labels = _facts.label_facts(cells, colors)
    checks = as_table(evidence, contributions)
    bokeh, map_data = ("", "")
    if not positions.why_not:
        bokeh, map_data = draw_map(cells, positions, names, colors)
    page = _fill_template(
        title="Cell type annotation" if title is None else title,
        cells=cells,
        limits=LIMITS,
        novelty_range=NOVELTY_RANGE,
        summary=_facts.summary_facts(cells),
        labels=labels,
        samples=_facts.sample_facts(cells, labels),
        known=_facts.known_facts(cells),
        positions=positions,
        map=_facts.map_facts(cells, positions, labels, colors),
        contributions=contributions,
        asked_model=model is not None,
        n_tested=len(evidence.tested),
        no_markers=no_markers,
        n_markers=_facts.N_MARKERS,
        has_known_markers=bool(markers),
        types=_facts.type_facts(evidence, contributions, markers_of, labels),
        doubts=checks.to_dict("records"),
        methods=_facts.method_facts(cells, model),
        bokeh=bokeh,
        map_data=map_data,
    )
    with replace_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    logger.info("report: wrote %s (%.1f MB)", target, len(page.encode()) / 1e6)
    return target


def _contributions(source: ExpressionSource, cells: Cells, model: TOSICA | None, seed: int) -> Mapping[str, Any] | None:
    """Ask the model what tells the labels, or read what it was asked before."""
    if model is None:
        return read_contributions(source.data, cells)
    if not cells.types:
        return None
    with ask_quietly():
        return explain_groups(
            source.data, model, layer=source.layer, use_raw=source.use_raw, key=cells.key, seed=seed
        ).record


def _fill_template(**facts: Any) -> str:
    """Put facts into the template, which escapes all but the files of this package."""
    from jinja2 import Environment, StrictUndefined

    def read(name: str) -> str:
        return files("tosica._report").joinpath(name).read_text(encoding="utf-8")

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {"count": count, "count_cells": count_cells, "percent": percent, "decimal": decimal}
    template = environment.from_string(read("report.html.j2"))
    return template.render(css=read("page.css"), map_js=read("map.js"), **facts) + "\n"


def _check_target(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path must end in {' or '.join(_SUFFIXES)}, not {str(target)!r}.")
    check_folder(target)
    if target.is_dir():
        raise IsADirectoryError(f"path is the folder {str(target)!r}, and must be a file.")
    return target
