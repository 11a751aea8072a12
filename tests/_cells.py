"""Cells and trained models that tests and examples share; conftest.py has fixtures of them.

Each cached function is called once a process: what it returns is not to be changed. Models have heads of
width 4, 8 or 12 (``embed_dim / n_heads``), because attention is compiled for each width in some 9 s.
"""

import gzip
from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd
import scanpy as sc
import scipy.sparse as sp
import scvi
from anndata import AnnData
from mudata import MuData
from scipy.io import mmwrite

import tosica
from tosica import TOSICA

GENES = [f"G{i}" for i in range(30)]
# Two names are a gene's and an antibody's.
PROTEINS = ["G0", "G8", *(f"P{i}" for i in range(7))]
TOY_SETS = {
    "alpha": GENES[:8],
    "beta": GENES[8:16],
    "gamma": GENES[16:24],
    "mixed": GENES[4:20:3],
}
# Little is hidden of so few genes and sets, so that a few steps are enough.
FAST_PLAN = {"lr": 1e-2, "warmup": 0.1, "gene_dropout": 0.1, "token_dropout": 0.0}


def _fit(model, **train):
    model.train(**{"accelerator": "cpu", **train})
    return model


# --------------------------------------------------------------------------- real cells


@cache
def split_pbmc():
    """525 log-normalized cells × 765 genes with a mask of 30 gene sets, and the 175 others."""
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    tosica.pp.build_mask(adata, max_gene_sets=30)
    is_query = np.zeros(adata.n_obs, dtype=bool)
    is_query[np.argsort(adata.obs["bulk_labels"].cat.codes, kind="stable")[::4]] = True
    reference = adata[~is_query].copy()
    query = adata[is_query].copy()
    del query.varm["tosica_mask"], query.uns["tosica_mask"]
    return reference, query


@cache
def pbmc_model():
    """A model of the real cells."""
    reference = split_pbmc()[0].copy()
    TOSICA.setup_anndata(reference, labels_key="bulk_labels", batch_key="phase")
    scvi.settings.seed = 0
    model = TOSICA(reference, embed_dim=16)
    return _fit(model, max_epochs=12, plan_kwargs={"lr": 1e-2})


@cache
def annotated_pbmc():
    """The 175 other cells, as the model annotates them."""
    query = split_pbmc()[1].copy()
    pbmc_model().annotate(query)
    return query


# --------------------------------------------------------------------------- made-up counts


def _types(n_obs):
    """Three types, "a", "b" and "c", of two donors."""
    kind = np.arange(n_obs) % 3
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(n_obs)])
    obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[kind])
    obs["donor"] = pd.Categorical(np.array(["d1", "d2"])[np.arange(n_obs) // 3 % 2])
    return kind, obs


def make_toy(n_obs=90, *, seed=0, n_genes=30):
    """Counts of three types: each expresses eight genes of its own."""
    rng = np.random.default_rng(seed)
    kind, obs = _types(n_obs)
    rate = np.full((n_obs, n_genes), 0.7)
    for i in range(3):
        rate[kind == i, 8 * i : 8 * (i + 1)] = 4
    adata = AnnData(sp.csr_matrix(rng.poisson(rate).astype(np.float32)), obs=obs)
    adata.var_names = [f"G{i}" for i in range(n_genes)]
    adata.uns["kind_colors"] = ["#aa0000", "#00bb00", "#0000cc"]
    return adata


def add_full_tokens(adata, n, key="tosica_mask"):
    """Add columns with every gene to a mask, as models of the original code have them."""
    mask = adata.varm[key]
    full = sp.csr_matrix(np.ones((adata.n_vars, n), dtype=bool))
    adata.varm[key] = sp.hstack([mask, full], format="csr")
    names = [f"unannotated_{i + 1}" for i in range(n)]
    uns = adata.uns[key]
    uns["gene_sets"] = np.array([*uns["gene_sets"], *names], dtype=object)
    uns["n_unannotated"] = n


def train_toy(
    adata,
    *,
    seed=0,
    setup=None,
    linear=True,
    modules=True,
    **train,
):
    """Set up, build and train a model on counts as :func:`make_toy` makes them."""
    TOSICA.setup_anndata(adata, labels_key="kind", **(setup or {}))
    scvi.settings.seed = seed
    model = TOSICA(adata, embed_dim=16, n_heads=2, linear=linear, modules=modules)
    return _fit(model, **{"max_epochs": 3, "batch_size": 16, **train})


def untrained(adata, **setup):
    """Set up and build a small model on counts as :func:`make_toy` makes them."""
    TOSICA.setup_anndata(adata, labels_key="kind", **setup)
    return TOSICA(adata, embed_dim=8, n_heads=2)


@cache
def toy_reference():
    """90 cells × 30 genes with a mask of 4 gene sets."""
    adata = make_toy()
    tosica.pp.build_mask(adata, TOY_SETS)
    return adata


@cache
def toy_model():
    """A model trained on counts until it is sure."""
    return train_toy(toy_reference().copy(), max_epochs=15, plan_kwargs=FAST_PLAN)


@cache
def network_model():
    """A small model without linear branch."""
    return train_toy(toy_reference().copy(), linear=False, plan_kwargs=FAST_PLAN)


def make_cite(n_obs=90, seed=0):
    """Counts of three types in two modalities: each has genes and antibodies of its own."""
    rng = np.random.default_rng(seed)
    kind, obs = _types(n_obs)
    rna = np.full((n_obs, len(GENES)), 0.7)
    protein = np.full((n_obs, len(PROTEINS)), 3.0)
    for i in range(3):
        rna[kind == i, 8 * i : 8 * (i + 1)] = 4
        protein[kind == i, 3 * i : 3 * (i + 1)] = 60
    modalities = {}
    for name, rate, names in (("rna", rna, GENES), ("protein", protein, PROTEINS)):
        modalities[name] = AnnData(
            sp.csr_matrix(rng.poisson(rate).astype(np.float32)), obs=obs[[]]
        )
        modalities[name].var_names = names
    mdata = MuData(modalities)
    mdata.obs[["kind", "donor"]] = obs
    return mdata


def train_cite(mdata, setup=None, **train):
    """Set up, build and train a model on counts as :func:`make_cite` makes them."""
    TOSICA.setup_mudata(mdata, "kind", **(setup or {}))
    scvi.settings.seed = 0
    model = TOSICA(mdata, embed_dim=16, n_heads=2)
    return _fit(
        model, **{"max_epochs": 20, "batch_size": 16, "plan_kwargs": FAST_PLAN, **train}
    )


@cache
def cite_reference():
    """90 cells with genes, antibodies and masks."""
    mdata = make_cite()
    tosica.pp.build_mask(mdata, TOY_SETS)
    return mdata


@cache
def cite_model():
    """A model of both modalities."""
    return train_cite(cite_reference().copy(), {"batch_key": "donor"})


# --------------------------------------------------------------------------- comparing


def flat(value, path, out):
    """Write down a value of an AnnData so that ``==`` compares types, shapes and bytes."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            flat(item, f"{path}/{key}", out)
    elif isinstance(value, pd.DataFrame):
        out[f"{path}.index"] = (str(value.index.dtype), list(map(str, value.index)))
        for key in value.columns:
            flat(value[key], f"{path}/{key}", out)
    elif isinstance(value, pd.Series):
        categories = list(value.cat.categories) if hasattr(value, "cat") else None
        ordered = value.cat.ordered if hasattr(value, "cat") else None
        out[path] = (str(value.dtype), categories, ordered, repr(value.tolist()))
    elif sp.issparse(value):
        arrays = (value.data, value.indices, value.indptr)
        out[path] = (
            value.format,
            str(value.dtype),
            value.shape,
            *(p.tobytes() for p in arrays),
        )
    elif hasattr(value, "to_memory"):
        flat(value.to_memory(), path, out)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        array = np.asarray(
            value if isinstance(value, np.ndarray | np.generic) else value[()]
        )
        content = repr(array.tolist()) if array.dtype.hasobject else array.tobytes()
        out[path] = (str(array.dtype), array.shape, content)
    else:
        out[path] = (type(value).__name__, repr(value))


def contents_of(adata):
    """Everything in an AnnData by its place, such as ``obs/kind`` or ``uns/tosica_mask/source``."""
    out = {}
    if adata.n_vars and adata.n_obs:
        flat(adata.X, "X", out)
    for name in ("obs", "var", "layers", "obsm", "varm", "obsp", "varp", "uns"):
        flat(getattr(adata, name), name, out)
    if adata.raw is not None:
        flat(adata.raw.X, "raw/X", out)
        flat(adata.raw.var, "raw/var", out)
    return out


# --------------------------------------------------------------------------- files


def write_10x_mtx(adata, folder, names, prefix=""):
    """Write the folder that Cell Ranger writes, with genes of these names."""
    folder.mkdir(exist_ok=True)
    features = [f"ENSG{i}\t{name}\tGene Expression" for i, name in enumerate(names)]
    for name, rows in (("features", features), ("barcodes", adata.obs_names)):
        with gzip.open(folder / f"{prefix}{name}.tsv.gz", "wt") as file:
            file.writelines(f"{row}\n" for row in rows)
    with gzip.open(folder / f"{prefix}matrix.mtx.gz", "wb") as file:
        mmwrite(file, sp.coo_matrix(adata.X.T.astype(int)))
