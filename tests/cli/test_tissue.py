"""``--tissue``: labels and models without a reference of one's own, from a small census."""

import json
from functools import partial

import anndata as ad
import numpy as np
import pytest


@pytest.fixture(scope="session")
def _census(tmp_path_factory):
    pytest.importorskip("cellxgene_census", reason="needs the extra census")
    from _small_census import make_census

    folder = tmp_path_factory.mktemp("census")
    return make_census(folder / "soma", organisms=["homo_sapiens"]), folder / "cache"


@pytest.fixture
def census(_census, monkeypatch):
    folder, cache = _census
    monkeypatch.setenv("TOSICA_CENSUS", str(folder))
    monkeypatch.setenv("TOSICA_CACHE", str(cache))


@pytest.fixture
def few_epochs(monkeypatch):
    """One pass of the network, whose labels are those of the linear branch."""
    from tosica.datasets import _tissue_model

    train_on = partial(_tissue_model.train_on, max_epochs=1)
    monkeypatch.setattr(_tissue_model, "train_on", train_on)
    monkeypatch.setattr(_tissue_model, "_N_FOLDS", 2)


@pytest.fixture
def glow_cells(tmp_path):
    """Other cells of the organ, with their types in ``truth``."""
    from _small_census import CD4, MONOCYTE, B, counts, genes

    terms = np.repeat([B, CD4, MONOCYTE], 30)
    adata = ad.AnnData(counts(terms, len(genes()), seed=1))
    adata.var_names = genes().to_numpy()
    adata.obs_names = [f"cell{i}" for i in range(adata.n_obs)]
    adata.obs["truth"] = terms
    path = tmp_path / "cells.h5ad"
    adata.write_h5ad(path)
    return path


@pytest.mark.slow
def test_cells_are_labeled_by_the_name_of_their_tissue(
    run, census, few_epochs, glow_cells, tmp_path
):
    output = tmp_path / "annotated.h5ad"
    done = run("annotate", glow_cells, "--tissue", "glow organ", "-o", output)
    assert done.code == 0, done.err
    obs = ad.read_h5ad(output).obs
    terms = obs["tosica_prediction_ontology_term_id"].astype(str)
    assert (terms == obs["truth"].astype(str)).mean() > 0.9
    assert output.with_suffix(".html").exists()


@pytest.mark.slow
def test_a_model_of_a_tissue_is_kept_with_its_card(run, census, few_epochs, tmp_path):
    folder = tmp_path / "model"
    done = run(
        *("train", "--tissue", "glow organ", "-o", folder, "--max-epochs", 1, "--json")
    )
    assert done.code == 0, done.err
    assert "monocyte" in json.loads(done.out)["labels"]
    card = (folder / "README.md").read_text()
    for text in (
        "## Donors that the model had not seen",
        "## Data sets that the model had not seen",
        "| type | cells | precision | recall | mean probability |",
        "| Title of study-a | Publication: <https://doi.org/10.1/study-a> |",
        "license: cc-by-4.0",
    ):
        assert text in card


def test_a_misspelt_tissue_is_answered_with_the_nearest(run, census, glow_cells):
    done = run(
        *("annotate", glow_cells, "--tissue", "glow orgn", "--obs-out"),
        glow_cells.with_suffix(".csv"),
    )
    assert done.code == 1
    assert "no --tissue 'glow orgn'" in done.err
    assert "did you mean 'glow organ'?" in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["annotate", "q.h5ad", "--model", "blood", "-o", "a.h5ad"], "or --model"),
        (["train", "r.h5ad", "-o", "model"], "or REFERENCE"),
    ],
)
def test_a_tissue_excludes_another_reference(run, arguments, sentence):
    done = run(*arguments, "--tissue", "lung")
    assert done.code == 2
    assert f"Give either --tissue {sentence}, not both." in done.err


@pytest.mark.parametrize(
    "option", [["--use-raw"], ["--layer", "counts"], ["--seurat"], ["--assay", "RNA"]]
)
def test_options_of_a_reference_are_refused_with_a_tissue(run, option):
    done = run("train", "--tissue", "lung", "-o", "model", *option)
    assert done.code == 2
    assert f"{option[0]} says how to read REFERENCE" in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [([], "Give REFERENCE or --tissue."), (["r.h5ad"], "option '--labels-key'")],
)
def test_a_model_needs_cells_with_labels(run, arguments, sentence):
    done = run("train", *arguments, "-o", "model")
    assert done.code == 2
    assert sentence in done.err
