"""Write a page about an annotation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tosica._files import replace_file
from tosica._logging import logger, without_query_lines
from tosica._report._cells import draw_cells, read_cells
from tosica._report._doubts import Findings, find_doubts
from tosica._report._embedding import find_positions
from tosica._report._explain import explain, n_missing_genes
from tosica._report._map import check_bokeh
from tosica._report._markers import check_markers, find_markers
from tosica._report._page import Contents, make_page
from tosica._report._second_labels import second_labels
from tosica._validation import (
    check_count,
    check_data,
    check_flags,
    check_path,
    check_string,
    only_known,
)
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any

    from anndata import AnnData

    from tosica.model import TOSICA

_SUFFIXES = (".html", ".htm")
# Cells of a label that the model explains, and that its markers are looked for in.
_N_EXPLAINED, _N_TESTED = 60, 200


def report(
    adata: AnnData,
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
    unlike the reference, a map of the cells to hover, search and filter, for each cell type its
    gene sets with their genes and its markers, what to doubt and why, and a paragraph of methods.
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
        The model that annotated ``adata``. With it, the page has the contributions of gene sets and
        of the genes in them, the label that each label is most easily confused with, and the share
        of missing genes. Without it, the page shows what :func:`tosica.tl.attribute` or
        :func:`tosica.tl.top_genes` wrote, or else the attention.
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
    ImportError
        If Bokeh is not installed, or is too old: ``pip install 'tosica[report]'``.
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
    tosica.tl.attribute : contributions of gene sets and genes, stored in the data.
    tosica.tl.novelty : novelty, corrected for what all cells have in common.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import scanpy as sc
    >>> import tosica
    >>> adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    >>> tosica.pp.build_mask(adata, max_gene_sets=20)
    >>> tosica.TOSICA.setup_anndata(adata, labels_key="bulk_labels")
    >>> model = tosica.TOSICA(adata, embed_dim=16)
    >>> model.train(max_epochs=2, enable_progress_bar=False)
    >>> query = adata[:50].copy()
    >>> query.obsm["X_umap"] = sc.datasets.pbmc68k_reduced().obsm["X_umap"][:50]
    >>> model.annotate(query)
    >>> with TemporaryDirectory() as folder:
    ...     path = tosica.report(query, Path(folder) / "report.html", model=model)
    ...     path.stat().st_size < 5_000_000
    True
    """
    check_data(adata)
    target = _check_target(path)
    check_string("title", title, optional=True)
    check_string("layer", layer, optional=True)
    check_string("labels_key", labels_key, optional=True)
    check_string("sample_key", sample_key, optional=True)
    check_flags(use_raw=use_raw)
    check_count("max_cells", max_cells)
    check_count("seed", seed, least=0)
    check_string("key", key)
    _check_matrix(adata, layer, use_raw)
    check_bokeh()
    if model is not None:
        read_annotation(adata, model, key)
    cells = read_cells(adata, key, labels_key=labels_key, sample_key=sample_key)
    known = check_markers(markers, cells.all_labels)
    shared: dict[str, Any] = {"layer": layer, "use_raw": use_raw}
    rng = np.random.default_rng(seed)
    drawn = [np.sort(rng.permutation(cells.rows(code))[:_N_EXPLAINED]) for code in cells.types]
    n_tested = _N_TESTED * len(cells.labels)
    with without_query_lines():
        found = Findings(
            explain(adata, cells, model, drawn, **shared),
            find_markers(
                adata,
                cells,
                known,
                draw_cells(cells.codes, n_tested, rng, least=_N_TESTED),
                **shared,
            ),
            second_labels(adata, cells, model, drawn, **shared),
            None if model is None else n_missing_genes(adata, model, **shared),
        )
    positions = find_positions(adata, cells, max_cells, seed)
    contents = Contents(cells, found, find_doubts(cells, found), positions, model)
    page = make_page(contents, "Cell type annotation" if title is None else title)
    with replace_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    logger.info("report: wrote %s (%.1f MB)", target, len(page.encode()) / 1e6)
    return target


def _check_target(path: str | os.PathLike[str]) -> Path:
    check_path("path", path)
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"path must end in {' or '.join(_SUFFIXES)}, not {str(target)!r}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(target.parent)!r} to write the report {target.name!r} to."
        )
    if target.is_dir():
        raise IsADirectoryError(f"path is the folder {str(target)!r}, and must be a file.")
    return target


def _check_matrix(adata: AnnData, layer: str | None, use_raw: bool) -> None:
    if layer is not None and use_raw:
        raise ValueError("Give either layer or use_raw=True, not both.")
    if layer is not None and layer not in adata.layers:
        known = [name for name in adata.layers if name is not None]
        raise KeyError(f"adata has no layer {layer!r}{only_known(layer, known)}")
    if use_raw and adata.raw is None:
        raise ValueError("use_raw=True was given, but adata.raw is None.")
