"""The model of human blood that comes with the package: what it says of real cells, and of others."""

import warnings
from importlib.resources import files
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import torch

import tosica
from tosica import cli
from tosica.onto._ontology import is_kind_of, read_ontology

# pbmc68k_reduced has a quarter of the genes, and totals of more genes than it has.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The query has only"),
    pytest.mark.filterwarnings("ignore:adata.X holds cells whose total"),
]
FOLDER = files("tosica") / "bundled" / "blood"
# Labels of beads with antibodies, and the type above all subtypes that the model has.
SORTED = {
    "CD14+ Monocyte": "CL:0000576",
    "CD19+ B": "CL:0000236",
    "CD56+ NK": "CL:0000623",
    "Dendritic": "CL:0000451",
    "CD34+": "CL:0008001",
    "CD4+/CD25 T Reg": "CL:0000084",
    "CD4+/CD45RA+/CD25- Naive T": "CL:0000084",
    "CD4+/CD45RO+ Memory": "CL:0000084",
    "CD8+ Cytotoxic T": "CL:0000084",
    "CD8+/CD45RA+ Naive Cytotoxic": "CL:0000084",
}


@pytest.fixture(scope="module")
def blood():
    return tosica.TOSICA.load("blood")


@pytest.fixture
def pbmcs():
    return sc.datasets.pbmc68k_reduced().raw.to_adata()


def test_cells_that_are_no_blood_are_told_first(blood, caplog):
    path = Path(__file__).parents[3] / "shared" / "data" / "breast_cells_nuclei.h5ad"
    if not path.exists():
        pytest.skip("The data are not here.")
    breast = ad.read_h5ad(path)
    blood.annotate(breast)
    assert "look at markers before you trust the labels" in caplog.text
    findings = tosica.tl.check(breast)
    assert findings["check"].iloc[0] == "another tissue"


def test_labels_that_need_missing_genes_are_named(blood, pbmcs, caplog):
    genes = np.array(blood.get_var_names())
    markers = np.isin(genes, ["CD8A", "CD8B", "NKG7", "CCL5", "GZMH", "GZMA", "CST7"])
    measured = torch.from_numpy(~markers & (np.arange(len(genes)) % 2 == 0))
    changes = dict(zip(blood.labels, blood._label_changes(measured), strict=True))
    assert changes["Naive CD8 T cell"] > 0.2 > changes["B cell"]
    assert blood._label_changes(None) is None
    with pytest.warns(UserWarning, match="labels may suffer"):
        blood.annotate(pbmcs)
    assert "get another one: " in caplog.text
    (finding,) = tosica.tl.check(pbmcs).query("check == 'missing genes'")["finding"]
    assert "Naive CD8 T cell" in finding


def test_blood_of_another_data_set_gets_its_types(pbmcs):
    # A quarter of the genes, which hold half of what tells the labels apart.
    with pytest.warns(UserWarning, match="labels may suffer"):
        assert tosica.tl.annotate(pbmcs) is None
    for label, expected in (
        ("CD19+ B", "B cell"),
        ("CD56+ NK", "NK cell"),
        ("CD34+", "Progenitor"),
    ):
        assert (
            pbmcs.obs.loc[pbmcs.obs["bulk_labels"] == label, "tosica_prediction"]
            == expected
        ).mean() > 0.9
    answered = pbmcs.obs[pbmcs.obs["tosica_confident"] != "Unknown"]
    right = [
        is_kind_of(term, SORTED[label]) or is_kind_of(SORTED[label], term)
        for term, label in zip(
            answered["tosica_confident_ontology_term_id"],
            answered["bulk_labels"],
            strict=True,
        )
    ]
    assert len(right) > 0.8 * len(pbmcs)
    assert np.mean(right) > 0.9


def test_labels_come_from_a_table_of_terms(blood):
    table = pd.read_csv(str(FOLDER / "labels.csv"), keep_default_na=False)
    terms = dict(zip(table["cell_type"], table["ontology_term_id"], strict=True))
    assert sorted(blood.labels) == sorted(terms)
    assert blood.ontology_term_ids_ == {name: terms[name] for name in blood.labels}
    assert set(terms.values()) <= set(read_ontology().names)
    card = (FOLDER / "README.md").read_text(encoding="utf8")
    assert all(name in card and term in card for name, term in terms.items())
    assert f"| Fingerprint | {blood.fingerprint} |" in card


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("one cell", ""),
        ("few genes", "at least half are needed"),
        ("mouse", "human"),
        ("peaks", "human"),
    ],
)
def test_the_command_line_needs_no_option(kind, says, pbmcs, tmp_path, capsys):
    query = {"one cell": pbmcs[:1], "few genes": pbmcs[:20, :400]}.get(
        kind, pbmcs[:20]
    ).copy()
    if kind == "mouse":
        query.var_names = query.var_names.str.capitalize()
    if kind == "peaks":
        query.var_names = [f"chr1:{i}-{i + 500}" for i in range(query.n_vars)]
    query.write_h5ad(tmp_path / "cells.h5ad")
    code = cli.main(
        [
            "annotate",
            str(tmp_path / "cells.h5ad"),
            "-o",
            str(tmp_path / "annotated.h5ad"),
        ]
    )
    assert code == (1 if says else 0)
    assert says in capsys.readouterr().err
    assert (tmp_path / "annotated.html").exists() == (not says)
    assert says or "Genes that tell " in (tmp_path / "annotated.html").read_text(
        encoding="utf8"
    )
    assert (tmp_path / "annotated.h5ad").exists() == (not says)


@pytest.mark.data
def test_cells_that_are_no_blood_get_no_confident_answer(blood, shared):
    query = sc.read_h5ad(shared / "lungmix_celseq2_dropseq.h5ad")
    blood.annotate(query)
    assert (query.obs["tosica_confident"] == "Unknown").mean() > 0.85


def test_info_prints_the_card_of_this_model(blood, capsys):
    assert cli.main(["info", "blood"]) == 0
    card = capsys.readouterr().out
    assert "Not for" in card
    assert f"| Fingerprint | {blood.fingerprint} |" in card


def test_the_registry_is_found_by_name():
    registry = tosica.TOSICA.load_registry("blood")
    assert registry["setup_method_name"] == "setup_anndata"


def test_some_cells_are_on_the_scale_of_all(blood, pbmcs):
    """One cell alone does not tell its scale."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The query has only")
        of_all = blood.predict(pbmcs, soft=True)
        of_some = blood.predict(pbmcs, soft=True, indices=[0])
    np.testing.assert_allclose(of_some, of_all.iloc[[0]], atol=1e-5)
