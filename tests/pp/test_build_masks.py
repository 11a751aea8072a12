"""Masks of a MuData: gene sets for RNA, single antibodies or groups of them beside."""

from __future__ import annotations

import mudata as md
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

import tosica

SETS = {"T cell": ["CD3D", "CD3E", "CD2"], "B cell": ["CD19", "MS4A1"]}
GENES = ["CD3D", "CD3E", "CD2", "CD19", "MS4A1", "LYZ"]
PROTEINS = ["CD3", "CD19", "CD14"]
GROUPS = {"lineage": ["CD3", "CD19"], "myeloid": ["CD14"]}


def make(n_proteins: int = 3, **names: str) -> md.MuData:
    """A MuData of six genes and three antibodies, under the names that are given."""
    proteins = PROTEINS if n_proteins == 3 else [f"P{i}" for i in range(n_proteins)]
    parts = {}
    for role, features in (("rna", GENES), ("protein", proteins)):
        adata = AnnData(np.ones((4, len(features)), dtype=np.float32))
        adata.obs_names = [f"cell{i}" for i in range(4)]
        adata.var_names = features
        parts[names.get(role, role)] = adata
    return md.MuData(parts)


def build(mdata: md.MuData, **kwargs) -> md.MuData | None:
    return tosica.pp.build_mask(mdata, SETS, **{"min_genes": 2} | kwargs)


def test_gene_sets_for_rna_and_one_token_an_antibody():
    mdata, adata = make(), make()["rna"]
    assert build(mdata) is None
    build(adata)
    np.testing.assert_array_equal(mdata["rna"].varm["tosica_mask"].toarray(), adata.varm["tosica_mask"].toarray())
    assert list(mdata["rna"].uns["tosica_mask"]["gene_sets"]) == [*SETS]
    made = mdata["protein"].uns["tosica_mask"]
    assert list(made["gene_sets"]) == PROTEINS
    assert (made["n_unannotated"], made["source"]) == (0, "single features")
    np.testing.assert_array_equal(mdata["protein"].varm["tosica_mask"].toarray(), np.eye(3))
    # With one modality, the same.
    alone = md.MuData({"rna": make()["rna"]})
    build(alone)
    assert alone["rna"].varm["tosica_mask"].shape == (6, 2)


@pytest.mark.parametrize("kind", ["dict", "table", "gmt"])
def test_groups_of_antibodies(kind, tmp_path):
    given = GROUPS
    if kind == "table":
        pairs = [(name, feature) for name, members in GROUPS.items() for feature in members]
        given = pd.DataFrame(pairs, columns=["source", "target"])
    if kind == "gmt":
        given = tmp_path / "groups.gmt"
        tosica.gs.write_gmt(GROUPS, given)
    mdata = make()
    changed = build(mdata, groups={"protein": given}, copy=True)
    assert "tosica_mask" not in mdata["protein"].varm
    assert list(changed["protein"].uns["tosica_mask"]["gene_sets"]) == [*GROUPS]
    np.testing.assert_array_equal(changed["protein"].varm["tosica_mask"].toarray(), [[1, 0], [1, 0], [0, 1]])


def test_other_names():
    mdata = make(rna="gex", protein="adt")
    build(mdata, modalities={"rna": "gex", "protein": "adt"}, key_added="mask")
    assert mdata["gex"].varm["mask"].shape == (6, 2)
    assert mdata["adt"].varm["mask"].shape == (3, 3)


@pytest.mark.parametrize(
    ("names", "kwargs", "error", "words"),
    [
        ({}, {"modalities": {"rna": "gex"}}, KeyError, "no modality 'gex'"),
        ({}, {"groups": {"adt": {}}}, KeyError, "groups names 'adt', .* here 'protein'"),
        ({}, {"groups": {"rna": {}}}, KeyError, "groups names 'rna'"),
        ({}, {"groups": [["CD3"]]}, TypeError, "groups"),
        ({}, {"groups": {"protein": {"x": ["CD99"]}}}, ValueError, "no gene of 1 gene sets"),
        # LEU4 is an old name of CD3D, but an antibody is called as its panel calls it.
        ({}, {"groups": {"protein": {"T": ["LEU4", "CD3D"]}}}, ValueError, "no gene of 1"),
        ({}, {"min_genes": 9}, ValueError, "lower min_genes"),
        ({"rna": "gex", "protein": "adt"}, {}, KeyError, "no modality 'rna'"),
        ({"n_proteins": 1001}, {}, ValueError, "too many for one token each"),
    ],
)
def test_wrong_input_writes_nothing(names, kwargs, error, words):
    mdata = make(**names)
    with pytest.raises(error, match=words):
        build(mdata, **kwargs)
    for adata in mdata.mod.values():
        assert not adata.varm
        assert not adata.uns


def test_a_view_and_an_anndata():
    with pytest.raises(ValueError, match="a view of another MuData"):
        build(make()[:2])
    with pytest.raises(TypeError, match="are for a MuData"):
        build(make()["rna"], groups={"protein": SETS})


def test_variable_gene_sets_are_those_of_the_anndata():
    rng = np.random.default_rng(0)
    rna = AnnData(np.ones((40, 60), dtype=np.float32))
    rna.var_names = [f"G{i}" for i in range(60)]
    rna.layers["counts"] = rng.poisson(2, (40, 60)).astype(np.float32)
    rna.layers["counts"][:, 50:] *= rng.integers(0, 2, (40, 1)) * 3
    sets = {"steady": rna.var_names[:30], "varies": rna.var_names[50:]}
    protein = AnnData(np.ones((40, 3), dtype=np.float32))
    protein.var_names = PROTEINS
    mdata = md.MuData({"rna": rna, "protein": protein})
    tosica.pp.build_mask(mdata, sets, select="variable", layer="counts", max_gene_sets=1)
    assert list(mdata["rna"].uns["tosica_mask"]["gene_sets"]) == ["varies"]
    assert list(mdata["protein"].uns["tosica_mask"]["gene_sets"]) == PROTEINS
