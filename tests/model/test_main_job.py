"""The main job from end to end: an annotated reference in, readable labels out."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scanpy as sc
import scvi

import tosica


def run(adata, is_query, folder, *, batch_key, max_gene_sets, max_epochs, lr):
    """What the package promises to its user, line by line; the model, the query before and after."""
    scvi.settings.seed = 0
    reference, query = adata[~is_query].copy(), adata[is_query].copy()
    untouched = query.copy()
    tosica.pp.build_mask(reference, gene_sets="human_gobp", max_gene_sets=max_gene_sets)
    tosica.TOSICA.setup_anndata(reference, labels_key="cell_type", batch_key=batch_key)
    model = tosica.TOSICA(reference, embed_dim=16)
    model.train(
        max_epochs=max_epochs,
        accelerator="cpu",
        plan_kwargs={"lr": lr},
    )
    model.save(folder)
    # The folder holds the model and no cells.
    assert [path.name for path in folder.iterdir()] == ["model.pt"]
    content = (folder / "model.pt").read_bytes()
    assert len(content) < 1_000_000
    assert not any(name.encode() in content for name in reference.obs_names[:50])
    model = tosica.TOSICA.load(folder, accelerator="cpu")
    model.annotate(query)
    return model, untouched, query


@pytest.fixture(scope="module")
def pbmc_job(tmp_path_factory):
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    kinds = {
        "CD14+ Monocyte": "monocyte",
        "CD19+ B": "B cell",
        "CD34+": "progenitor",
        "CD56+ NK": "NK cell",
    }
    kinds["Dendritic"] = "dendritic cell"
    adata.obs["cell_type"] = [
        kinds.get(name, "T cell") for name in adata.obs["bulk_labels"]
    ]
    folder = tmp_path_factory.mktemp("pbmc") / "model"
    options = {"batch_key": "phase", "max_gene_sets": 40, "max_epochs": 10, "lr": 1e-2}
    return *run(adata, np.arange(adata.n_obs) % 4 == 0, folder, **options), folder


@pytest.fixture(scope="module")
def kang_job(shared, tmp_path_factory):
    adata = sc.read_h5ad(shared / "kang_pbmc.h5ad")
    adata.obs["cell_type"] = adata.obs["cluster_id"]
    folder = tmp_path_factory.mktemp("kang") / "model"
    options = {
        "batch_key": "sample_id",
        "max_gene_sets": 100,
        "max_epochs": 30,
        "lr": 3e-3,
    }
    return *run(
        adata, (adata.obs["group_id"] == "stim").to_numpy(), folder, **options
    ), folder


@pytest.mark.parametrize(
    "name", ["pbmc", pytest.param("kang", marks=[pytest.mark.slow, pytest.mark.data])]
)
def test_labels_are_right_and_nothing_else_changed(request, contents, new_keys, name):
    _, untouched, query, _ = request.getfixturevalue(f"{name}_job")
    hit = query.obs["tosica_prediction"].astype(str) == query.obs["cell_type"].astype(
        str
    )
    assert hit.mean() > 0.75
    assert query.obs["tosica_probability"].corr(hit.astype(float)) > 0.2
    assert new_keys(contents(untouched), contents(query))
    record = query.uns["tosica"]
    assert query.obsm["X_tosica"].shape == (query.n_obs, len(record["gene_sets"]))
    plain = {
        key: getattr(value, "tolist", lambda v=value: v)()
        for key, value in record.items()
    }
    assert json.loads(json.dumps(plain)) == plain


def test_tenth_of_the_genes_missing(pbmc_job):
    model, untouched, query, _ = pbmc_job
    genes = model.get_var_names()
    gone = np.random.default_rng(0).choice(genes, len(genes) // 10, replace=False)
    fewer = untouched[:, ~untouched.var_names.isin(gone)].copy()
    with pytest.warns(UserWarning, match="the network sees the missing ones as zero"):
        model.annotate(fewer)
    assert (
        fewer.obs["tosica_prediction"].to_numpy()
        == query.obs["tosica_prediction"].to_numpy()
    ).mean() >= 0.95


def test_scanpy_and_tools_go_on_with_it(pbmc_job):
    model, _, query, _ = pbmc_job
    query = query.copy()
    # What needs no compiler of numba's, which takes longer than all else here; the UMAP is that of the data.
    sc.pp.neighbors(query, use_rep="X_tosica", method="gauss")
    sc.pl.umap(query, color=["tosica_prediction", "tosica_probability"], show=False)
    sc.tl.leiden(query, flavor="igraph", n_iterations=2, directed=False)
    assert query.obs["leiden"].nunique() > 1
    sc.tl.rank_genes_groups(query, "tosica_prediction")
    assert "CD79A" in query.uns["rank_genes_groups"]["names"]["B cell"][:5].tolist()
    tosica.tl.attribute(query, model, cells=True)
    tosica.tl.rank_gene_sets(query, groupby="tosica_prediction")
    tosica.pl.gene_set_heatmap(query, show=False)
    plt.close("all")
    table = tosica.get.rank_gene_sets_df(query, group="B cell")
    assert set(table["gene_set"]) <= set(model.modalities[0].gene_sets()[0])
