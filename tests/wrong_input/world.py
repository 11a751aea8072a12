"""Small data and models that the wrong calls share, and right arguments for every function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mudata import MuData

import tosica

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData


@dataclass
class World:
    """What the calls work on.

    ``query`` was annotated by ``model``, and has a result of every tool; ``reference`` has a mask
    and is not set up; ``untrained`` is a model that was not trained. ``mdata`` is a MuData with
    masks. ``folder`` has a saved model, a folder of models, a GMT file and a Seurat file.
    """

    query: AnnData
    reference: AnnData
    mdata: MuData
    model: tosica.TOSICA
    untrained: tosica.TOSICA
    folder: Path

    def data(self) -> dict[str, AnnData]:
        """All data by name, to be compared before and after."""
        return {
            "query": self.query,
            "reference": self.reference,
            "model": self.model.adata,
            "untrained": self.untrained.adata,
            "rna": self.mdata["rna"],
            "protein": self.mdata["protein"],
        }


def make_world(
    query: AnnData, reference: AnnData, model: tosica.TOSICA, gene_sets: dict, folder: Path
) -> World:
    """Annotate the query, run every tool on it, and save the model."""
    query.layers["counts"] = query.X.copy()
    model.annotate(query, probabilities=True)
    tosica.tl.attribute(query, model, n_steps=4)
    tosica.tl.rank_gene_sets(query, "kind")
    tosica.tl.top_genes(query, model, n_cells=5)
    tosica.tl.faithfulness(query, model, n_cells=5, shares=(0, 1))
    tosica.pp.build_mask(query, gene_sets)
    rng = np.random.default_rng(0)
    query.obs["tosica_novelty"] = rng.random(query.n_obs)
    query.obsm["X_umap"] = rng.random((query.n_obs, 2))
    reference.layers["counts"] = reference.X.copy()
    registered = reference.copy()
    tosica.TOSICA.setup_anndata(registered, labels_key="kind")
    protein = reference[:, :4].copy()
    protein.var_names = ["CD3", "CD4", "CD8", "CD19"]
    del protein.varm["tosica_mask"], protein.uns["tosica_mask"]
    mdata = MuData({"rna": reference.copy(), "protein": protein})
    mdata.obs["kind"] = mdata["rna"].obs["kind"]
    tosica.pp.build_mask(mdata, gene_sets)
    model.save(folder / "model")
    tosica.gs.write_gmt(gene_sets, folder / "sets.gmt")
    query.write_h5ad(folder / "seurat.h5ad")
    untrained = tosica.TOSICA(registered, embed_dim=8, n_heads=2)
    return World(query, reference, mdata, model, untrained, folder)


GENE_SETS = {"a": ["G0", "G1"]}


def arguments(w: World, name: str) -> dict[str, Any]:
    """Right arguments of a function, of which one at a time is replaced by a wrong one."""
    found: dict[str, Any] = _ARGUMENTS.get(name, lambda _: {})(w)
    of_model = ("get.gene_weights", "pl.training", "tl.annotate_file", "tl.refine_gene_sets")
    of_adata = name not in of_model
    if name.startswith(("tl.", "pl.", "get.")) and of_adata:
        found = {"adata": w.query} | found
    return found | ({"show": False} if name.startswith("pl.") else {})


def _explains(w: World) -> dict[str, Any]:
    return {"model": w.model}


def _labels(_: World) -> dict[str, Any]:
    return {"labels_key": "kind"}


def _groups(_: World) -> dict[str, Any]:
    return {"groupby": "kind"}


_SAID = {"tissue": "blood", "license": "cc-by-4.0"}

_ARGUMENTS: dict[str, Any] = {
    "report": lambda w: {"adata": w.query, "path": w.folder / "report.html"},
    "pp.build_mask": lambda w: {
        "adata": w.reference,
        "gene_sets": {"a": [f"G{i}" for i in range(9)]},
    },
    "gs.join": lambda _: {"collections": {"mine": GENE_SETS}},
    "gs.load": lambda _: {"name": "human_gobp"},
    "gs.map_genes": lambda _: {"names": ["CD3E"]},
    "gs.read_gmt": lambda w: {"path": w.folder / "sets.gmt"},
    "gs.write_gmt": lambda w: {"gene_sets": GENE_SETS, "path": w.folder / "other.gmt"},
    "onto.ancestors": lambda _: {"term": "CL:0000084"},
    "onto.descendants": lambda _: {"term": "CL:0000084"},
    "onto.map_labels": lambda w: {"adata": w.query, "key": "kind"},
    "onto.term_name": lambda _: {"term": "CL:0000084"},
    "tl.annotate_file": lambda w: {
        "path": w.folder / "seurat.h5ad",
        "model": w.model,
        "output": w.folder / "annotated.h5ad",
    },
    "tl.attribute": _explains,
    "tl.confusion": _labels,
    "tl.correlate_gene_sets": lambda _: {"obs_key": "tosica_probability"},
    "tl.evaluate": _labels,
    "tl.faithfulness": _explains,
    "tl.majority_vote": lambda _: {"over_clustering": "donor"},
    "tl.novelty": _explains,
    "tl.rank_gene_sets": _groups,
    "tl.refine_gene_sets": lambda w: {"model": w.model},
    "tl.reliability": _labels,
    "tl.top_genes": lambda w: {"model": w.model, "n_cells": 5},
    "tl.weight_attention": _explains,
    "pl.confusion": _labels,
    "pl.gene_set_dotplot": _groups,
    "pl.gene_set_heatmap": _groups,
    "pl.gene_set_matrixplot": _groups,
    "pl.gene_set_violin": _groups,
    "pl.gene_weights": lambda _: {"group": "a"},
    "pl.label_flow": _labels,
    "pl.reliability": _labels,
    "pl.training": lambda w: {"model": w.model},
    "pl.umap": lambda _: {"color": "kind"},
    "get.gene_weights": lambda w: {"model": w.model},
    "get.mean_attention": _groups,
    "io.from_seurat": lambda w: {"adata": w.query},
    "io.read_seurat": lambda w: {"path": w.folder / "seurat.h5ad"},
    "io.to_seurat": lambda w: {"adata": w.query, "folder": w.folder / "seurat"},
    "datasets.synthetic": lambda _: {"n_obs": 40, "n_vars": 400},
    "datasets.write_synthetic": lambda w: {
        "path": w.folder / "made.h5ad",
        "n_obs": 40,
        "n_vars": 400,
    },
    "TOSICA": lambda w: {"adata": w.untrained.adata},
    "TOSICA.setup_anndata": lambda w: {"adata": w.reference, "labels_key": "kind"},
    "TOSICA.setup_mudata": lambda w: {"mdata": w.mdata, "labels_key": "kind"},
    "TOSICA.train": lambda _: {"max_epochs": 1, "accelerator": "cpu"},
    "TOSICA.annotate": lambda w: {"adata": w.query},
    "TOSICA.predict": lambda w: {"adata": w.query},
    "TOSICA.predict_set": lambda w: {"adata": w.query},
    "TOSICA.recalibrate": lambda w: {"adata": w.query, "labels_key": "kind"},
    "TOSICA.get_attention": lambda w: {"adata": w.query},
    "TOSICA.get_latent_representation": lambda w: {"adata": w.query},
    "TOSICA.iter_batches": lambda w: {"adata": w.query},
    "TOSICA.to_device": lambda _: {"device": "cpu"},
    "TOSICA.save": lambda w: {"dir_path": w.folder / "other"},
    "TOSICA.load": lambda w: {"dir_path": w.folder / "model"},
    "TOSICA.load_query_data": lambda w: {
        "adata": w.query,
        "reference_model": w.model,
        "labels_key": "donor",
    },
    "TOSICA.from_hub": lambda _: {"repo_id": "lab/toy"},
    "TOSICA.push_to_hub": lambda _: {"repo_id": "lab/toy", **_SAID},
    "TOSICA.get_model_card": lambda _: dict(_SAID),
    "TOSICA.load_legacy": lambda w: {"project_dir": w.folder},
    "TOSICA.load_registry": lambda w: {"dir_path": w.folder / "model"},
    "TOSICA.view_setup_args": lambda w: {"dir_path": w.folder / "model"},
}


def function(w: World, name: str) -> Any:
    """Find a function by name; methods are those of the trained model, ``train`` of the other."""
    package, _, rest = name.partition(".")
    if package == "TOSICA":
        if not rest:
            return tosica.TOSICA
        return getattr(w.untrained if rest in ("train", "start_from_network") else w.model, rest)
    return getattr(getattr(tosica, package), rest) if rest else getattr(tosica, package)
