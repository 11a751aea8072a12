"""Kind of every parameter of every public function and method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrong_input import kinds as k
from wrong_input.kinds import Wrong
from wrong_input.model_parameters import OF_MODEL

if TYPE_CHECKING:
    from wrong_input.kinds import Kind

_NOT_ANNOTATED = r"run (model\.annotate|tosica\.tl\.\w+)\(adata.* first"
_NO_MASK = (
    r"^There is no mask in adata\..*'(nothing)?'.*: call tosica\.pp\.build_mask\(adata\) first"
)
_NO_GENE_SET = "^There is no gene set 'nothing' in "
_NO_GROUP = "'nothing'.* ('a'|'b'), |'nothing': it(s groups are| holds)"

# By the name of the parameter, wherever a function has it.
BY_NAME: dict[str, Kind] = {
    "adata": k.NO_DATA,
    "model": k.MODEL,
    "layer": k.LAYER,
    "use_raw": [
        *k.FLAG,
        Wrong(True, ValueError, r"^use_raw=True was given, but adata\.raw is None"),
    ],
    "copy": k.FLAG,
    "indices": k.INDICES,
    "key": k.key(_NOT_ANNOTATED),
    "key_added": k.key_added(),
    "groupby": k.column(),
    "labels_key": k.column(),
    "prediction_key": k.column(),
    "sample_key": k.column(optional=True),
    "within": k.column(optional=True),
    "batch_size": k.count(optional=True),
    "n_bins": k.count(),
    "n_cells": k.count(),
    "n_genes": k.count(optional=True),
    "n_gene_sets": k.count(optional=True),
    "n_columns": k.count(optional=True),
    "max_name_length": k.count(10),
    "seed": k.count(0),
    "normalize": k.FLAG,
    "swap_axes": k.FLAG,
    "cmap": k.CMAP,
    "title": k.OPTIONAL_STRING,
    "ax": k.AX,
    "figsize": k.FIGSIZE,
    "show": k.OPTIONAL_FLAG,
    "save": k.SAVE,
    "dpi": k.count(),
    "return_fig": k.FLAG,
    "accelerator": k.ACCELERATOR,
    "device": k.DEVICE,
    "dir_path": [*k.PATH, *k.MISSING_PATH],
    "prefix": k.OPTIONAL_STRING,
}

_SIMULATED: dict[str, Kind] = {
    "n_obs": k.count(),
    "n_vars": k.count(),
    "n_labels": k.count(2),
    "n_batches": k.count(),
    "n_gene_sets": k.count(),
    "batch_effect": [
        *k.number(),
        Wrong(-1, ValueError, "^batch_effect must be between 0 and 5, not -1"),
    ],
}
_TERM: Kind = [
    *k.STRING,
    Wrong(
        "CL:0", KeyError, "^'CL:0' is no term of the Cell Ontology of [0-9-]+, whose identifiers"
    ),
    Wrong("T cell", KeyError, "^'T cell' is the name of CL:0000084: pass the identifier"),
]
_EXPLAINED: dict[str, Kind] = {
    "adata": [*k.NO_DATA, *k.NO_CELLS],
    "key_added": k.key_added(optional=True),
}
_NO_HISTORY = "^The history has no 'nothing', only '.*train_loss"
_NO_COLUMNS = "^There is no column '.*' in the cells' table; it has "

# By function; these come before those above.
BY_FUNCTION: dict[str, dict[str, Kind]] = OF_MODEL | {
    "report": {
        "adata": [
            *k.NO_DATA,
            *k.MUDATA,
            *k.NO_CELLS,
            Wrong(lambda w: w.reference, KeyError, _NOT_ANNOTATED, "not annotated"),
        ],
        "path": [
            *k.PATH,
            Wrong(
                "report.pdf", ValueError, r"^path must end in \.html or \.htm, not 'report\.pdf'"
            ),
            Wrong("report", ValueError, r"^path must end in \.html or \.htm, not 'report'"),
            Wrong("no/such/report.html", FileNotFoundError, "^There is no folder 'no/such' to w"),
        ],
        "model": [w for w in k.MODEL if w.value is not None],
        "labels_key": k.column(optional=True),
        "markers": [
            Wrong(["CD3E"], TypeError, "^markers must be a dict of label to genes, .*not list"),
            Wrong({"aa": ["G0"]}, KeyError, "^markers names 'aa', which is no label.*did you mean"),
            Wrong({"a": "G0"}, TypeError, "^the markers of 'a' must be a list of gene names"),
            Wrong({"a": [5]}, TypeError, "^the markers of 'a' must be a list of gene names"),
        ],
        "max_cells": k.count(),
    },
    "pp.build_mask": {
        "adata": [*k.NO_DATA, *k.NO_CELLS, *k.NO_GENES],
        "gene_sets": [
            Wrong(5, TypeError, "^gene_sets must be a collection's name, a path of a GMT file, "),
            Wrong("gob", ValueError, r"^There is no gene set collection 'gob' \(did you mean"),
            Wrong("no.gmt", FileNotFoundError, "no.gmt"),
            Wrong({}, ValueError, "^there is no gene set in gene_sets"),
            Wrong({"a": "G0"}, TypeError, "genes of gene set 'a' must be a list of names, not str"),
            Wrong({"a": [5]}, TypeError, r"^gene set 'a' holds a int \(5\) where the name"),
            Wrong({"a": ["X"] * 5}, ValueError, "^no gene of 1 gene sets "),
        ],
        "min_genes": k.count(),
        "max_genes": k.count(),
        "n_unannotated": k.count(0),
        "max_gene_sets": k.count(optional=True),
        "mask_ratio": [*k.FRACTION, Wrong(0, ValueError, "^mask_ratio must be above 0")],
        "select": k.CHOICE,
        "max_jaccard": [w for w in k.FRACTION if w.value is not None],
        "organism": k.CHOICE,
        "identifiers": k.CHOICE,
        "layer": k.OPTIONAL_STRING,
        "modalities": [Wrong({"rna": "rna"}, TypeError, "^modalities and groups are for a MuData")],
        "groups": [Wrong({"rna": {}}, TypeError, "^modalities and groups are for a MuData")],
    },
    "gs.collections": {},
    "gs.join": {
        "collections": [
            Wrong(None, TypeError, "^collections must be a dict of prefix to gene sets, or a list"),
            Wrong("human_gobp", TypeError, "^collections must be a dict .*, not str"),
            Wrong([5], TypeError, "^A list of collections must hold names and paths, not int"),
            Wrong([], ValueError, "^There is nothing to join"),
            Wrong({"": {}}, ValueError, "^A prefix must be a string that is not empty, not ''"),
            Wrong({"a": 5}, TypeError, "^The gene sets of 'a' must be .*, not int"),
            Wrong(["nothing"], ValueError, "^There is no gene set collection 'nothing'"),
        ],
    },
    "gs.load": {
        "name": [
            Wrong(None, TypeError, "name of a gene set collection must be a string, not NoneType"),
            Wrong("nothing", ValueError, "^There is no gene set collection 'nothing'.*those that"),
            Wrong("", ValueError, "^There is no gene set collection ''"),
        ],
        "version": [
            Wrong(5, TypeError, "^The version of a gene set collection must be a string, not int"),
            Wrong("nothing", ValueError, "^There is no version 'nothing' of human_gobp; those"),
        ],
    },
    "gs.map_genes": {
        "names": [
            Wrong(None, TypeError, "^names must be a list of gene names, not NoneType"),
            Wrong("CD3E", TypeError, "^names must be a list of gene names, not str"),
            Wrong([5], TypeError, r"^names holds a int \(5\): gene names are strings"),
            Wrong([], ValueError, "^It is not clear whether the genes are human or mouse"),
        ],
        "to": k.CHOICE,
        "organism": k.CHOICE,
        "to_organism": k.CHOICE,
        "ignore_case": k.FLAG,
    },
    "gs.read_gmt": {
        "path": [
            Wrong(None, TypeError, r"^path must be a str or a pathlib\.Path, not NoneType"),
            Wrong(5, TypeError, r"^path must be a str or a pathlib\.Path, not int"),
            Wrong("", FileNotFoundError, "."),
            *k.MISSING_PATH,
            Wrong(lambda w: w.folder, IsADirectoryError, "is a folder", "folder"),
        ],
    },
    "gs.write_gmt": {
        "gene_sets": [
            Wrong(None, TypeError, "^gene_sets must be a dict of gene set names, not NoneType"),
            Wrong({}, ValueError, "^There is no gene set to write: gene_sets is empty"),
            Wrong({5: ["A"]}, TypeError, "^The gene set name must be a string, not int: 5"),
            Wrong({"a": "A"}, TypeError, "^The genes of 'a' must be a list of strings, not one"),
            Wrong({"a": [None]}, TypeError, "^A gene of 'a' must be a string, not NoneType"),
            Wrong({"": ["A"]}, ValueError, "^The gene set name is an empty string"),
        ],
        "path": [*k.PATH, *k.MISSING_PATH],
        "descriptions": [
            Wrong(5, TypeError, "^descriptions must be a dict of gene set names, not int"),
            Wrong({"b": "x"}, ValueError, "^descriptions names 'b', which is not in gene_sets"),
        ],
    },
    "onto.ancestors": {"term": _TERM},
    "onto.descendants": {"term": _TERM},
    "onto.map_labels": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "key": k.column(),
        "mapping": [
            Wrong(
                5, TypeError, "^mapping must be a dict of label to identifier, as in .*, not int"
            ),
            Wrong(
                {"a": 5}, TypeError, "^mapping must hold identifiers such as 'CL:0000084', not 5"
            ),
            Wrong(
                {"x": "CL:0000084"}, KeyError, r"^adata.obs\['kind'\] has no label 'x', only 'a'"
            ),
            Wrong({"a": "x"}, ValueError, "^mapping gives 'a' a wrong term: 'x' is no term of the"),
        ],
        "key_added": k.key_added(optional=True),
    },
    "onto.term_name": {"term": _TERM},
    "tl.attribute": _EXPLAINED
    | {
        "target": k.CHOICE,
        "baseline": k.CHOICE,
        "genes": k.FLAG,
        "n_steps": k.count(),
    },
    "tl.confusion": {"adata": [*k.NO_DATA, *k.NO_CELLS]},
    "tl.correlate_gene_sets": {
        "obs_key": k.column(numbers=True),
        "groupby": k.column(optional=True),
    },
    "tl.evaluate": {
        "prediction": k.column(optional=True),
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "ontology": [
            *k.FLAG,
            Wrong(
                True, ValueError, r"no cell has a term for its label in adata.obs\['kind'\]: call"
            ),
        ],
    },
    "tl.faithfulness": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "orders": [
            Wrong(5, TypeError, "^orders must be a string or a list of strings, not 5"),
            Wrong([None], TypeError, "^orders must hold strings only, not None"),
            Wrong("nothing", ValueError, "^orders must be some of 'attention', "),
            Wrong([], ValueError, "^orders must be some of 'attention', "),
        ],
        "shares": [
            Wrong(5, TypeError, "^shares must be a list of numbers from 0 to 1, not 5"),
            Wrong("all", TypeError, "^shares must be a list of numbers from 0 to 1, not 'all'"),
            Wrong(["0", "1"], TypeError, "^each of shares must be a number, not '0'"),
            Wrong([0, k.NAN, 1], ValueError, "^each of shares must be a finite number, not nan"),
            Wrong([0, 0.5], ValueError, "^shares must ascend from 0 to 1, not "),
        ],
    },
    "tl.majority_vote": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "over_clustering": [
            Wrong(5, TypeError, "^over_clustering must be a column of adata.obs or one value a"),
            Wrong("donors", KeyError, "^adata.obs has no column 'donors'.*did you mean 'donor'"),
            Wrong([1, 2], ValueError, "^over_clustering has 2 values for [0-9]+ cells"),
        ],
        "min_prop": k.FRACTION,
        "key_added": k.key_added(optional=True),
    },
    "tl.annotate_file": {
        "path": [
            *k.PATH,
            Wrong("no/such/file", FileNotFoundError, "^there is no file or folder 'no/such/file'"),
            Wrong(lambda w: w.folder / "sets.gmt", ValueError, "is no .h5ad file, or is", "text"),
            Wrong(lambda w: w.folder / "model", ValueError, "is no Zarr store", "a folder"),
        ],
        "model": [
            Wrong(None, TypeError, "^model must be a TOSICA model, or the folder that", "None"),
            Wrong("no/such/folder", FileNotFoundError, "no/such/folder"),
            Wrong(lambda w: w.untrained, RuntimeError, "^The model is not trained: ", "untrained"),
        ],
        "output": [
            *k.PATH,
            Wrong("out.csv", ValueError, r"^output must end in \.h5ad or \.zarr, not 'out\.csv'"),
            Wrong("no/such/folder/a.zarr", FileNotFoundError, "^the folder 'no/such/folder' to w"),
            Wrong(lambda w: w.folder / "seurat.h5ad", ValueError, "^output is the query", "query"),
        ],
        "layer": [
            Wrong(5, TypeError, "^layer must be a string or None"),
            Wrong("count", KeyError, "has no layer 'count'.*'counts'"),
        ],
        "use_raw": [*k.FLAG, Wrong(True, KeyError, "has no raw")],
        "cutoff": k.CUTOFF,
        "probabilities": k.FLAG,
        "include_x": k.FLAG,
        "precision": k.CHOICE,
        "cells_per_part": k.count(),
        "client": [Wrong(5, TypeError, r"^client must be None or a dask\.distributed\.Client")],
        "array_task": [
            Wrong(5, TypeError, "^array_task must be None or two whole numbers"),
            Wrong((0, 1.5), TypeError, "^array_task must be None or two whole numbers"),
            Wrong((2, 2), ValueError, r"^array_task must be .* with 0 <= i < n, not \(2, 2\)"),
        ],
        "overwrite": k.FLAG,
        "enable_progress_bar": k.FLAG,
    },
    "tl.novelty": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "reference": [
            *k.NO_DATA[1:],
            Wrong(lambda w: w.mdata["protein"], ValueError, "^The query has only 0 of", "genes"),
        ],
        "over_clustering": [
            Wrong(5, TypeError, "^over_clustering must be a column of adata.obs or one value a"),
            Wrong("donors", KeyError, "^adata.obs has no column 'donors'.*did you mean 'donor'"),
            Wrong([1, 2], ValueError, "^over_clustering has 2 values for [0-9]+ cells"),
        ],
        "correct_batch": k.FLAG,
        "random_state": k.count(0),
    },
    "tl.refine_gene_sets": {
        "path": [
            *k.PATH[1:],
            Wrong("no/such/folder/a.gmt", FileNotFoundError, "^There is no folder"),
        ],
        "price": k.number(too_small=0),
        "min_recall": k.FRACTION,
        "min_stability": k.FRACTION,
        "n_bootstraps": k.count(),
        "random_state": k.count(0),
    },
    "tl.rank_gene_sets": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "key": k.key(_NOT_ANNOTATED, optional=True),
        "groups": [
            Wrong(5, TypeError, "^groups must be a string or a list of strings, not 5"),
            Wrong("a", TypeError, "^groups must be 'all' or a list of groups: write groups="),
            Wrong(["x"], ValueError, "has no cell in group 'x': its groups are 'a', "),
            Wrong([], ValueError, "^groups is empty"),
        ],
        "reference": [
            Wrong(None, TypeError, "^reference must hold strings only, not None"),
            Wrong("x", ValueError, "has no cell in group 'x': its groups are 'a', "),
        ],
        "method": [
            Wrong(5, TypeError, "^method must be a string or None, not 5"),
            Wrong("x", ValueError, "^method must be one of 'wilcoxon', .*, not 'x'"),
        ],
        "min_cells": k.count(),
        "rankby_abs": k.FLAG,
    },
    "tl.reliability": {"adata": [*k.NO_DATA, *k.NO_CELLS]},
    "tl.top_genes": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "groups": k.names(ValueError, "has no cell in group 'nothing': its groups are "),
        "by": k.CHOICE,
        "n_gene_sets": k.count(),
        "n_genes": k.count(),
    },
    "tl.weight_attention": _EXPLAINED,
    "pl.confusion": {"annotate": k.OPTIONAL_FLAG},
    "pl.faithfulness": {},
    "pl.flow": {"groups": k.names(KeyError, _NO_GROUP)},
    "pl.gene_set_heatmap": {
        "scale": k.CHOICE,
        "gene_sets": k.names(KeyError, _NO_GENE_SET),
        "key": k.key(_NOT_ANNOTATED, optional=True),
        "cluster_groups": k.FLAG,
        "cluster_gene_sets": k.FLAG,
        "vmin": k.number(optional=True),
        "vmax": k.number(optional=True),
    },
    "pl.gene_weights": {
        "group": [
            *k.STRING,
            Wrong("nothing", KeyError, "has no group 'nothing': it holds 'a'"),
        ],
        "gene_sets": k.names(KeyError, _NO_GENE_SET),
    },
    "pl.label_flow": {"min_share": [*k.FRACTION, Wrong(1, ValueError, "^min_share must be")]},
    "pl.mask_coverage": {
        "key": k.key(_NO_MASK),
        "ax": [Wrong(5, ValueError, "^ax must be 3 axes, one for each panel, not 1")],
    },
    "pl.novelty": {
        "groupby": k.column(optional=True),
        "of": k.CHOICE,
        "cutoff": k.number(optional=True),
    },
    "pl.rank_gene_sets": {
        "groups": k.names(KeyError, _NO_GROUP),
        "values": k.CHOICE,
    },
    "pl.reliability": {},
    "pl.training": {
        "model": [
            Wrong(None, TypeError, "^model must be a TOSICA model.*, or its history, not NoneType"),
            Wrong(lambda w: w.folder, TypeError, "^model must be a TOSICA model.*not .*Path", "p"),
            Wrong(lambda w: w.untrained, ValueError, "^The model has no history: train it", "new"),
            Wrong({}, ValueError, "^There is nothing to draw: name quantities"),
        ],
        "keys": k.names(KeyError, _NO_HISTORY),
    },
    "pl.umap": {
        "color": k.names(KeyError, "^There is no gene set 'nothing' in .*no such column in adata"),
        "basis": [*k.STRING, Wrong("tsne", KeyError, "^adata.obsm has no 'X_tsne': run scanpy.")],
        "key": k.key(_NOT_ANNOTATED, optional=True),
        "n_columns": k.count(),
    },
    "get.attention": {},
    "get.gene_weights": {
        "gene_sets": k.names(KeyError, _NO_GENE_SET),
        "how": k.CHOICE,
    },
    "get.mask_coverage": {"key": k.key(_NO_MASK)},
    "get.mean_attention": {
        "adata": [*k.NO_DATA, *k.NO_CELLS],
        "scale": k.CHOICE,
        "key": k.key(_NOT_ANNOTATED, optional=True),
    },
    "get.network_weights": {"key": k.key(_NO_MASK)},
    "get.rank_gene_sets_df": {"group": k.names(KeyError, _NO_GROUP)},
    "get.top_genes_df": {"group": k.names(KeyError, _NO_GROUP)},
    "io.from_seurat": {
        "adata": [*k.NO_DATA, *k.MUDATA],
        "logicals": k.names(KeyError, _NO_COLUMNS),
        "na_strings": k.names(KeyError, _NO_COLUMNS),
    },
    "io.read_seurat": {
        "path": [*k.PATH, *k.MISSING_PATH],
        "assay": [
            *k.OPTIONAL_STRING,
            Wrong("RNA", ValueError, "^assay='RNA' was given, but an .h5ad file holds one"),
        ],
        "logicals": k.names(KeyError, _NO_COLUMNS),
        "na_strings": k.names(KeyError, _NO_COLUMNS),
    },
    "io.to_seurat": {
        "folder": k.PATH,
        "key": k.key(r"^There is no .*: call model\.annotate\(adata\) first"),
    },
    "datasets.kang": {},
    "datasets.dc_progenitors": {},
    "datasets.cite_pbmc": {},
    "datasets.synthetic": _SIMULATED,
    "datasets.write_synthetic": _SIMULATED
    | {
        "chunk_size": k.count(),
        "path": [
            Wrong(None, TypeError, "^path must be a path or a string, not NoneType"),
            Wrong("made.csv", ValueError, "^the file 'made.csv' must end in '.h5ad' or '.zarr'"),
            Wrong("no/such/made.h5ad", FileNotFoundError, "^the folder 'no/such' to write"),
        ],
    },
}
_SCANPY_PLOT: dict[str, Kind] = {
    "gene_sets": k.names(KeyError, _NO_GENE_SET),
    "key": k.key(_NOT_ANNOTATED, optional=True),
}
# Published cells are read without arguments.
for _name in ("cite_pbmc", "dc_progenitors", "kang", "kang_unlabeled"):
    BY_FUNCTION[f"datasets.{_name}"] = {}
for _name in ("gene_set_dotplot", "gene_set_matrixplot", "gene_set_violin"):
    BY_FUNCTION[f"pl.{_name}"] = _SCANPY_PLOT


def kind(function: str, parameter: str) -> Kind | None:
    """Kind of a parameter; ``None`` if nobody has written it down."""
    return BY_FUNCTION.get(function, {}).get(parameter, BY_NAME.get(parameter))
