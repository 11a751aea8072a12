"""Names of what does not exist, and data without cells, are refused wherever they are passed.

A missing name is a KeyError that names it or what there is instead, a wrong value a ValueError;
the data are unchanged.
"""

import re
import warnings

import pytest
from _cells import TOY_SETS, make_toy
from anndata import AnnData
from mudata import MuData
from wrong_input.test_declared import FUNCTIONS, parameters
from wrong_input.world import arguments, function, make_world

NO_COLUMN = [("donors", KeyError, "donors.*did you mean 'donor'|neither")]
GROUPS = [*NO_COLUMN, ("tosica_probability", TypeError, "not groups")]
NAMES = [("nothing", (KeyError, ValueError), "nothing")]  # type: ignore[list-item]
NO_FILE = [("no/such/file", (OSError, ValueError), "no/such|must end")]  # type: ignore[list-item]
# By parameter, in every function that has it.
ROWS = {
    "adata": [(lambda w: w.query[:0].copy(), ValueError, "no cells|no value")],
    "groupby": GROUPS,
    "prediction_key": GROUPS,
    "sample_key": GROUPS,
    "within": GROUPS,
    "labels_key": NO_COLUMN,
    "obs_key": [*NO_COLUMN, ("kind", TypeError, "without an order")],
    "batch_key": NO_COLUMN,
    "over_clustering": [*NO_COLUMN, ([1, 2], ValueError, "not 2 values")],
    "key": [("nothing", KeyError, "nothing")],
    "mask_key": [("nothing", KeyError, "nothing")],
    "layer": [("count", KeyError, "no layer 'count'.*'counts'")],
    "use_raw": [(True, (ValueError, KeyError), "raw")],  # type: ignore[list-item]
    "gene_sets": NAMES,
    "group": NAMES,
    "groups": [(["nothing"], (KeyError, ValueError), "nothing")],  # type: ignore[list-item]
    "keys": NAMES,
    "color": NAMES,
    "logicals": NAMES,
    "na_strings": NAMES,
    "path": NO_FILE,
    "dir_path": NO_FILE,
    "project_dir": NO_FILE,
    "save": [
        ("no/such/folder.pdf", FileNotFoundError, "no/such"),
        ("figure.doc", ValueError, "doc"),
    ],
    "cmap": [("virids", ValueError, "such as 'viridis'")],
    "term": [("CL:0", KeyError, "CL:0"), ("T cell", KeyError, "CL:0000084")],
    "indices": [
        *(
            (positions, ValueError, "^indices must")
            for positions in ([0.5], [10**6], [True], "a", 5)
        ),
        ([0, 1, 1], ValueError, "^indices takes cell 1 more than once"),
    ],
}
# By function and parameter; these take the place of those above.
OF_FUNCTION = {
    "pp.build_mask(gene_sets)": [
        ("gob", ValueError, "gob.*did you mean"),
        ({}, ValueError, "no gene set"),
        ({"a": "G0"}, TypeError, "list of names"),
        ({"a": ["X"] * 5}, ValueError, "none of 1 gene sets"),
    ],
    "pp.build_mask(groups)": [({"rna": {}}, TypeError, "MuData")],
    "gs.join(collections)": [
        ([], ValueError, "nothing to join"),
        (["nothing"], ValueError, "nothing"),
    ],
    "gs.load(name)": NAMES,
    "gs.write_gmt(gene_sets)": [
        ({}, ValueError, "empty"),
        ({"a": "A"}, TypeError, "list"),
    ],
    "onto.map_labels(mapping)": [
        ({"x": "CL:0000084"}, KeyError, "no label 'x'"),
        ({"a": "x"}, ValueError, "'x'"),
    ],
    "tl.attribute(target)": [("aa", ValueError, "did you mean 'a'")],
    "tl.faithfulness(shares)": [
        ([0, 0.5], ValueError, "ascend"),
        (["0", "1"], TypeError, "shares"),
    ],
    "tl.rank_gene_sets(groups)": [
        ("a", TypeError, "groups="),
        (["x"], ValueError, "no cell in group 'x': its groups are 'a'"),
        ([], ValueError, "groups"),
    ],
    "tl.rank_gene_sets(reference)": [("x", ValueError, "'x': its groups are 'a'")],
    "tl.rank_gene_sets(method)": [("moderated-t", ValueError, "without sample_key")],
    "tl.evaluate(ontology)": [(True, ValueError, r"map_labels\(adata, 'kind'")],
    "tl.annotate_file(output)": [
        ("out.csv", ValueError, r"\.h5ad or \.zarr"),
        (lambda w: w.folder / "seurat.h5ad", ValueError, "is the query"),
    ],
    "get.gene_weights(gene_sets)": [*NAMES, ([], ValueError, "empty")],
    "TOSICA(embed_dim)": [(7, ValueError, r"multiple of n_heads")],
    "TOSICA(adata)": [(lambda w: w.reference, ValueError, "was not set up")],
    "TOSICA.train(plan_kwargs)": [
        ({"dropout": 0.1}, TypeError, "plan_kwargs.*'dropout'.*'lr'"),
        ({"warmup": 5}, ValueError, "warmup"),
        ({"lr": 0}, ValueError, "lr"),
    ],
    "TOSICA.save(dir_path)": [(lambda w: w.folder, FileExistsError, "exists")],
}
# These read or write other files, or need no such data.
EXEMPT = {
    "gs.write_gmt(path)",
    "io.to_seurat(adata)",
    "io.from_seurat(adata)",
    "get.network_weights(adata)",
    "pl.umap(key)",  # of a column of obs
    "TOSICA.from_hub(adata)",
    "TOSICA.load_legacy(adata)",
    "TOSICA.load_legacy(labels_key)",
}


def rows(name):
    for parameter in parameters(FUNCTIONS[name]):
        row = f"{name}({parameter.name})"
        # What only reads results takes data without cells.
        of_results = parameter.name == "adata" and name.startswith(("pl.", "get."))
        if row not in EXEMPT and not of_results:
            for wrong in OF_FUNCTION.get(row, ROWS.get(parameter.name, [])):
                yield row, parameter.name, wrong


@pytest.fixture(scope="module")
def world(_toy, toy_model, tmp_path_factory):
    with warnings.catch_warnings(action="ignore"):
        folder = tmp_path_factory.mktemp("wrong_input")
        return make_world(
            make_toy(30, seed=1), _toy.copy(), toy_model, TOY_SETS, folder
        )


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if list(rows(name))])
def test_what_does_not_exist(name, world, contents, monkeypatch):
    monkeypatch.chdir(world.folder)
    right = arguments(world, name)
    data = [
        positions
        for positions in right.values()
        if isinstance(positions, AnnData | MuData)
    ]
    original = [contents(positions) for positions in data]
    accepted = {}
    for row, parameter, (value, error, sentence) in rows(name):
        changed_arguments = right | {
            parameter: value(world) if callable(value) else value
        }
        try:
            with warnings.catch_warnings(action="ignore"):
                function(world, name)(**changed_arguments)
            accepted[row, repr(value)] = "accepted"
        except Exception as raised:
            message = str(raised.args[0] if len(raised.args) == 1 else raised)
            if not isinstance(raised, error) or not re.search(sentence, message):
                accepted[row, repr(value)] = f"{type(raised).__name__}: {message}"
    assert accepted == {}
    assert [contents(positions) for positions in data] == original
