"""The benchmark of the choice of gene sets: what it describes, and that it can be run."""

from __future__ import annotations

import json
from functools import partialmethod

import numpy as np
import pandas as pd
import pytest

import tosica


@pytest.fixture
def gene_sets(load_benchmark):
    return load_benchmark("gene_sets")


def test_the_tokens_are_described_and_not_the_candidates(gene_sets):
    reference = gene_sets.pbmc68k(None)[0][:200].copy()
    tosica.pp.build_mask(reference)
    tosica.TOSICA.setup_anndata(reference, labels_key="bulk_labels")
    model = tosica.TOSICA(reference, linear=False, modules=False, max_gene_sets=20)
    mask = tosica.get.mask_coverage(gene_sets.of_tokens(reference, model))
    assert sorted(mask.index) == sorted(model.gene_sets)
    genes = model.module.embedding.genes.numpy()
    assert mask["n_covered"].iloc[-1] == len(np.unique(genes))
    assert mask["n_genes"].sum() == len(genes)


@pytest.mark.filterwarnings("ignore")  # of so few steps
def test_a_run(gene_sets, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tosica.TOSICA, "train", partialmethod(tosica.TOSICA.train, max_epochs=2))
    monkeypatch.setattr(gene_sets, "MOST", 30)
    rules = {
        name: rule | {"max_gene_sets": 30} if rule else rule
        for name, rule in gene_sets.RULES.items()
    }
    monkeypatch.setattr(gene_sets, "RULES", rules)
    monkeypatch.setattr(gene_sets, "seconds_to_build", lambda select: 0.5)
    arguments = ["--data", str(tmp_path), "--seeds", "2", "--out", str(tmp_path)]

    gene_sets.main(arguments)

    printed = capsys.readouterr().out
    assert "PBMCs, control (Kang): skipped" in printed
    assert "# Choosing gene sets" in printed
    result = json.loads((tmp_path / "gene_sets.json").read_text())
    assert (tmp_path / "gene_sets.md").read_text() == gene_sets.report(result)
    runs = pd.DataFrame(result["runs"])
    assert len(runs) == 2 * len(rules)
    assert (runs["gene sets"] <= 30).all()
    # Ten labels, a short training.
    assert runs["accuracy"].mean() > 0.2
    # The largest sets cover most, and are most alike.
    means = runs.groupby("rule")[["median genes", "median Jaccard"]].mean()
    assert (means.idxmax() == "largest").all()
