"""Small data and models that the wrong calls share, and right arguments for every function."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from mudata import MuData

import tosica
from tosica import TOSICA

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData


@dataclass
class World:
    """What the calls work on.

    ``query`` was annotated by ``model``, and has a result of every tool; ``reference`` has a mask
    and is not set up; ``untrained`` is a model that was not trained. ``mdata`` is a MuData with
    masks. ``folder`` has a saved model, a GMT file and a Seurat file.
    """

    query: AnnData
    reference: AnnData
    mdata: MuData
    model: TOSICA
    untrained: TOSICA
    folder: Path


def make_world(
    query,
    reference,
    model,
    gene_sets,
    folder,
):
    """Annotate the query, run every tool on it, and save the model."""
    query.layers["counts"] = query.X.copy()
    model.annotate(query, probabilities=True)
    tosica.tl.attribute(query, model, n_steps=4, cells=True)
    tosica.tl.rank_gene_sets(query, "kind")
    tosica.tl.faithfulness(query, model, n_cells=5, shares=(0, 1))
    tosica.pp.build_mask(query, gene_sets)
    rng = np.random.default_rng(0)
    query.obs["tosica_novelty"] = rng.random(query.n_obs)
    query.obsm["X_umap"] = rng.random((query.n_obs, 2))
    reference.layers["counts"] = reference.X.copy()
    registered = reference.copy()
    TOSICA.setup_anndata(registered, labels_key="kind")
    protein = reference[:, :4].copy()
    protein.var_names = ["CD3", "CD4", "CD8", "CD19"]
    del protein.varm["tosica_mask"], protein.uns["tosica_mask"]
    mdata = MuData({"rna": reference.copy(), "protein": protein})
    mdata.obs["kind"] = mdata["rna"].obs["kind"]
    tosica.pp.build_mask(mdata, gene_sets)
    model.save(folder / "model")
    tosica.gs.write_gmt(gene_sets, folder / "sets.gmt")
    query.write_h5ad(folder / "seurat.h5ad")
    untrained = TOSICA(registered, embed_dim=8, n_heads=2)
    return World(query, reference, mdata, model, untrained, folder)


# Right values of parameters without a default, by parameter, and of functions that need others.
RIGHT = {
    "adata": lambda w: w.query,
    "mdata": lambda w: w.mdata,
    "model": lambda w: w.model,
    "labels_key": "kind",
    "groupby": "kind",
    "color": "kind",
    "key": "kind",
    "group": "a",
    "obs_key": "tosica_probability",
    "term": "CL:0000084",
    "name": "human_gobp",
    "names": ["CD3E"],
    "gene_sets": {"a": ["G0", "G1"]},
    "collections": {"mine": {"a": ["G0", "G1"]}},
    "device": "cpu",
    "dir_path": lambda w: w.folder / "model",
    "project_dir": lambda w: w.folder,
    "folder": lambda w: w.folder / "seurat",
    "output": lambda w: w.folder / "annotated.h5ad",
    "reference_model": lambda w: w.model,
    "repo_id": "lab/toy",
    "outputs": "probabilities",
    "n_obs": 40,
    "n_vars": 400,
}
OF_FUNCTION = {
    "report": {"path": lambda w: w.folder / "report.html"},
    "pp.build_mask": {
        "adata": lambda w: w.reference,
        "gene_sets": {"a": [f"G{i}" for i in range(9)]},
    },
    "gs.read_gmt": {"path": lambda w: w.folder / "sets.gmt"},
    "gs.write_gmt": {"path": lambda w: w.folder / "other.gmt"},
    "tl.annotate_file": {"path": lambda w: w.folder / "seurat.h5ad"},
    "tl.majority_vote": {"over_clustering": "donor"},
    "pl.composition": {"sample_key": "donor"},
    "pl.waterfall": {"cell": lambda w: w.query.obs_names[0]},
    "io.write_cas": {
        "path": lambda w: w.folder / "annotation.json",
        "title": "Toy",
        "author": "Ada Doe",
    },
    "io.read_seurat": {"path": lambda w: w.folder / "seurat.h5ad"},
    "pp.join_references": {
        "references": lambda w: {"one": w.reference, "two": w.reference.copy()}
    },
    "TOSICA": {"adata": lambda w: w.untrained.adata},
    "TOSICA.setup_anndata": {"adata": lambda w: w.reference},
    "TOSICA.train": {"max_epochs": 1, "accelerator": "cpu"},
    **{
        f"TOSICA.{name}": {"adata": lambda w: w.query}
        for name in (
            "annotate",
            "predict",
            "predict_set",
            "get_attention",
            "get_latent_representation",
            "infer",
            "iter_batches",
        )
    },
    "TOSICA.save": {"dir_path": lambda w: w.folder / "other"},
    "TOSICA.load_query_data": {"labels_key": "donor"},
    "TOSICA.for_query": {
        "query": lambda w: w.query,
        "reference": lambda w: w.reference,
        "gene_sets": {"a": [f"G{i}" for i in range(9)]},
    },
}


def arguments(w, name):
    """Right arguments of a function, of which one at a time is replaced by a wrong one."""
    signature = inspect.signature(function(w, name)).parameters.values()
    values = {
        p.name: RIGHT[p.name]
        for p in signature
        if p.default is p.empty and p.name in RIGHT
    }
    values |= OF_FUNCTION.get(name, {})
    if name.startswith("pl."):
        values["show"] = False
    return {
        key: value(w) if callable(value) else value for key, value in values.items()
    }


def function(w, name):
    """Find a function by name; methods are those of the trained model, ``train`` of the other."""
    package, _, member = name.partition(".")
    if package == "TOSICA":
        if not member:
            return TOSICA
        return getattr(
            w.untrained if member in ("train", "start_from_network") else w.model,
            member,
        )
    return (
        getattr(getattr(tosica, package), member)
        if member
        else getattr(tosica, package)
    )
