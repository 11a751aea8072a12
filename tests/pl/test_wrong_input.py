"""Errors of the plots."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import scanpy as sc
from pl.explained_pbmc import GROUPBY, explained_pbmc, history

import tosica

pl = tosica.pl


@pytest.fixture(scope="module")
def adata():
    return explained_pbmc()


@pytest.fixture
def ax():
    return plt.subplots()[1]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (pl.rank_gene_sets, r"run tosica\.tl\.rank_gene_sets\(adata, groupby, key_added="),
        (pl.flow, r"run tosica\.tl\.top_genes\(adata, model, key_added='top_genes'\) first"),
        (lambda a: pl.gene_weights(a, "B"), r"run tosica\.tl\.top_genes"),
        (pl.faithfulness, r"run tosica\.tl\.faithfulness\(adata, model, key_added="),
        (lambda a: pl.umap(a, "phase"), r"run model\.annotate"),
        (lambda a: pl.gene_set_dotplot(a, "phase"), r"run model\.annotate"),
        (lambda a: pl.gene_set_matrixplot(a, "phase"), r"run model\.annotate"),
        (lambda a: pl.gene_set_violin(a, "phase"), r"run model\.annotate"),
        (pl.novelty, r"no column 'tosica_novelty': run tosica\.tl\.novelty\(adata, model, "),
        (lambda a: pl.reliability(a, "phase"), r"no column 'tosica_prediction'"),
        (lambda a: pl.label_flow(a, "phase"), r"no column 'tosica_prediction'"),
    ],
)
def test_the_step_before_was_not_taken(call, match):
    data = sc.datasets.pbmc68k_reduced()
    with pytest.raises(KeyError, match=match):
        call(data)
    assert not plt.get_fignums()


@pytest.mark.parametrize(
    "call",
    [pl.gene_set_dotplot, pl.gene_set_matrixplot, pl.gene_set_violin],
)
def test_gene_sets_that_do_not_exist_have_near_names(adata, call):
    with pytest.raises(KeyError, match=r"no gene set 'GENE SET 3' .* did you mean 'gene set "):
        call(adata, GROUPBY, gene_sets=["GENE SET 3"])
    with pytest.raises(ValueError, match="gene_sets is empty"):
        call(adata, GROUPBY, gene_sets=[])
    with pytest.raises(ValueError, match="n_gene_sets must be at least 1 or None, not 0"):
        call(adata, GROUPBY, n_gene_sets=0)
    with pytest.raises(ValueError, match="leave n_gene_sets out"):
        call(adata, GROUPBY, gene_sets=["gene set 03"], n_gene_sets=2)
    with pytest.raises(KeyError, match="no column 'cell_type'"):
        call(adata, "cell_type")


def test_groups_that_do_not_exist(adata):
    for call in (pl.rank_gene_sets, pl.flow, pl.gene_weights):
        with pytest.raises(KeyError, match=r"has no group 'T cell': it holds 'CD4\+/CD25 T Reg', "):
            call(adata, "T cell")


def test_gene_weights(adata, ax):
    group = adata.obs[GROUPBY].cat.categories[0]
    with pytest.raises(ValueError, match=r"room for one gene set, and there are 4: pass gene_sets"):
        pl.gene_weights(adata, group, ax=ax)
    with pytest.raises(ValueError, match="n_genes must be at least 1 or None, not 0"):
        pl.gene_weights(adata, group, n_genes=0)
    with pytest.raises(KeyError, match=r"There is no gene set 'gene set 79' in adata.uns"):
        pl.gene_weights(adata, group, gene_sets=["gene set 79"])


def test_rank_gene_sets(adata, ax):
    with pytest.raises(
        ValueError, match="values must be 'effect_size', 'logfoldchange' or 'score', not 'pval'"
    ):
        pl.rank_gene_sets(adata, values="pval")
    with pytest.raises(ValueError, match=r"room for one group, and there are 10: pass groups"):
        pl.rank_gene_sets(adata, ax=ax)
    with pytest.raises(ValueError, match="n_gene_sets must be at least 1 or None, not 0"):
        pl.rank_gene_sets(adata, n_gene_sets=0)


def test_flow(adata):
    with pytest.raises(ValueError, match="n_genes must be at least 1 or None, not 0"):
        pl.flow(adata, n_genes=0)
    with pytest.raises(ValueError, match="n_gene_sets must be at least 1 or None, not -1"):
        pl.flow(adata, n_gene_sets=-1)


@pytest.mark.parametrize("min_share", [-0.1, 1])
def test_label_flow(adata, min_share):
    with pytest.raises(ValueError, match="min_share must be at least 0 and below 1"):
        pl.label_flow(adata, GROUPBY, min_share=min_share)


def test_reliability(adata):
    with pytest.raises(ValueError, match="have no label in common"):
        pl.reliability(adata, "louvain")


def test_training(ax):
    with pytest.raises(TypeError, match="model must be a TOSICA model that was trained, or its"):
        pl.training(3)
    with pytest.raises(KeyError, match="history has no 'accuracy', only 'train_loss', "):
        pl.training(history(), keys=["accuracy"])
    with pytest.raises(ValueError, match="ax has room for one panel, and losses and other"):
        pl.training(history(), keys=["train_loss", "validation_accuracy"], ax=ax)


def test_umap(adata, ax):
    with pytest.raises(KeyError, match=r"There is no gene set 'gene set 3' in .* did you mean"):
        pl.umap(adata, ["phase", "gene set 3"])
    with pytest.raises(ValueError, match="ax has room for one panel, and color names 2"):
        pl.umap(adata, ["phase", "louvain"], ax=ax)
    with pytest.raises(KeyError, match=r"no 'X_draw_graph': run scanpy\.pp\.neighbors and"):
        pl.umap(adata, "phase", basis="draw_graph")


def test_confusion_with_a_label_that_no_prediction_has(adata):
    with pytest.raises(KeyError, match="no column 'cell_type'"):
        pl.label_flow(adata, "cell_type")
