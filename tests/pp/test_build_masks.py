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


def make(**names: str) -> md.MuData:
    """A MuData of six genes and three antibodies, under the names that are given."""
    parts = {}
    for role, features in (("rna", GENES), ("protein", PROTEINS)):
        adata = AnnData(np.ones((4, len(features)), dtype=np.float32))
        adata.obs_names = [f"cell{i}" for i in range(4)]
        adata.var_names = features
        parts[names.get(role, role)] = adata
    return md.MuData(parts)


def build(mdata: md.MuData, **kwargs) -> md.MuData | None:
    return tosica.pp.build_mask(mdata, SETS, **{"min_genes": 2} | kwargs)


def test_gene_sets_for_rna_and_one_token_an_antibody():
    mdata = make()
    assert build(mdata) is None
    assert list(mdata["rna"].uns["tosica_mask"]["gene_sets"]) == [*SETS]
    made = mdata["protein"].uns["tosica_mask"]
    assert list(made["gene_sets"]) == PROTEINS
    assert made["n_unannotated"] == 0
    assert made["source"] == "single features"
    np.testing.assert_array_equal(mdata["protein"].varm["tosica_mask"].toarray(), np.eye(3))


def test_as_for_the_anndata():
    mdata, adata = make(), make()["rna"]
    build(mdata)
    build(adata)
    pair = [a.varm["tosica_mask"].toarray() for a in (mdata["rna"], adata)]
    np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize("kind", ["dict", "table", "gmt"])
def test_groups_of_antibodies(kind, tmp_path):
    groups = {"lineage": ["CD3", "CD19"], "myeloid": ["CD14"]}
    given = groups
    if kind == "table":
        pairs = [(name, feature) for name, members in groups.items() for feature in members]
        given = pd.DataFrame(pairs, columns=["source", "target"])
    if kind == "gmt":
        given = tmp_path / "groups.gmt"
        tosica.gs.write_gmt(groups, given)
    mdata = make()
    build(mdata, groups={"protein": given})
    made = mdata["protein"].uns["tosica_mask"]
    assert list(made["gene_sets"]) == ["lineage", "myeloid"]
    np.testing.assert_array_equal(
        mdata["protein"].varm["tosica_mask"].toarray(), [[1, 0], [1, 0], [0, 1]]
    )


def test_other_names():
    mdata = make(rna="gex", protein="adt")
    build(mdata, modalities={"rna": "gex", "protein": "adt"}, key_added="mask")
    assert mdata["gex"].varm["mask"].shape == (6, 2)
    assert mdata["adt"].varm["mask"].shape == (3, 3)


def test_one_modality():
    mdata = md.MuData({"rna": make()["rna"]})
    build(mdata)
    assert "tosica_mask" in mdata["rna"].varm


def test_a_copy():
    mdata = make()
    changed = build(mdata, copy=True)
    assert "tosica_mask" in changed["protein"].varm
    assert "tosica_mask" not in mdata["protein"].varm


@pytest.mark.parametrize(
    ("kwargs", "error", "sentence"),
    [
        ({"modalities": {"rna": "gex"}}, KeyError, "no modality 'gex'; its modalities: 'rna'"),
        (
            {"groups": {"adt": {}}},
            KeyError,
            r"groups names 'adt', .* without gene sets \(antibodies\), here 'protein'",
        ),
        ({"groups": {"rna": {}}}, KeyError, "groups are for modalities without gene sets"),
        ({"groups": [["CD3"]]}, TypeError, "groups must be a dict of modality and its groups"),
        ({"groups": {"protein": {"x": ["CD99"]}}}, ValueError, "no gene of 1 gene sets"),
        ({"min_genes": 9}, ValueError, "lower min_genes"),
    ],
)
def test_wrong_input_writes_nothing(kwargs, error, sentence):
    mdata = make()
    with pytest.raises(error, match=sentence):
        build(mdata, **kwargs)
    for adata in mdata.mod.values():
        assert not adata.varm
        assert not adata.uns


def test_names_that_are_missing():
    with pytest.raises(KeyError, match="no modality 'rna'; its modalities: 'gex', 'adt'"):
        build(make(rna="gex", protein="adt"))


def test_a_view():
    with pytest.raises(ValueError, match="a view of another MuData"):
        build(make()[:2])


def test_too_many_features():
    parts = {"rna": make()["rna"], "protein": AnnData(np.ones((4, 1001), dtype=np.float32))}
    parts["protein"].obs_names = parts["rna"].obs_names
    with pytest.raises(ValueError, match="too many for one token each"):
        build(md.MuData(parts))


def test_an_anndata_has_no_modalities():
    with pytest.raises(TypeError, match="modalities and groups are for a MuData"):
        build(make()["rna"], groups={"protein": SETS})


def test_variable_gene_sets_are_those_of_the_anndata():
    rng = np.random.default_rng(0)
    rna = AnnData(np.ones((40, 60), dtype=np.float32))
    rna.var_names = [f"G{i}" for i in range(60)]
    rna.layers["counts"] = rng.poisson(2, (40, 60)).astype(np.float32)
    rna.layers["counts"][:, 50:] *= rng.integers(0, 2, (40, 1)) * 3
    sets = {"steady": rna.var_names[:30], "varies": rna.var_names[50:]}
    settings = {"select": "variable", "layer": "counts", "max_gene_sets": 1}
    protein = AnnData(np.ones((40, 3), dtype=np.float32))
    protein.var_names = PROTEINS
    mdata = md.MuData({"rna": rna.copy(), "protein": protein})
    tosica.pp.build_mask(mdata, sets, **settings)
    tosica.pp.build_mask(rna, sets, **settings)
    kept = list(mdata["rna"].uns["tosica_mask"]["gene_sets"])
    assert kept == list(rna.uns["tosica_mask"]["gene_sets"]) == ["varies"]
    assert list(mdata["protein"].uns["tosica_mask"]["gene_sets"]) == PROTEINS


def test_antibodies_are_no_aliases_of_genes():
    """LEU4 is an old name of CD3D, but an antibody is called as its panel calls it."""
    mdata = make()
    sentence = "no gene of 1 gene sets"
    with pytest.raises(ValueError, match=sentence):
        build(mdata, groups={"protein": {"T cell": ["LEU4", "CD3D"]}}, identifiers="map")
