"""Which gene sets become tokens, and which genes feed them."""

import gzip
import logging
import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from _strategies import gene_set_collections
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st
from mudata import MuData
from numpy.testing import assert_array_equal
from scipy import sparse

from tosica import gs
from tosica.pp import build_mask

KEY = "tosica_mask"
SETS = {
    "T cell": ["CD3D", "CD3E", "CD2", "absent"],
    "B cell": ["MS4A1", "CD19"],
    "lymphocyte": ["CD3D", "CD3E", "CD2", "MS4A1", "CD19"],
}
GENES = ["CD3D", "CD3E", "CD19", "MS4A1", "LYZ", "CD2"]

low_coverage_is_no_matter = pytest.mark.filterwarnings(
    "ignore:only .* of adata's genes"
)


def data(genes=GENES, n_obs=3):
    genes = list(genes)
    adata = AnnData(
        np.arange(n_obs * len(genes), dtype=np.float32).reshape(n_obs, len(genes))
    )
    adata.var_names = genes
    return adata


def mask_of(adata, key=KEY):
    return adata.varm[key].toarray()


def names_of(adata, key=KEY):
    return list(adata.uns[key]["gene_sets"])


def naive(genes, gene_sets, min_genes, max_genes, max_gene_sets):
    """The rules, one after the other, in plain Python."""
    present = {name: set(s).intersection(genes) for name, s in gene_sets.items()}
    fitting = [
        name
        for name, s in present.items()
        if len(s) >= min_genes and len(set(gene_sets[name])) <= max_genes
    ]
    largest = sorted(fitting, key=lambda name: -len(present[name]))[:max_gene_sets]
    selected = [name for name in fitting if name in largest]
    rows = [[gene in present[name] for name in selected] for gene in genes]
    return selected, np.array(rows, dtype=bool)


def assert_same(left, right, key=KEY):
    assert (left.varm[key] != right.varm[key]).nnz == 0
    a, b = dict(left.uns[key]), dict(right.uns[key])
    assert list(a.pop("gene_sets")) == list(b.pop("gene_sets"))
    for table in ("left_out", "unknown_genes"):
        pd.testing.assert_frame_equal(a.pop(table), b.pop(table))
    assert a == b


# ------------------------------------------------------------------------------ what is written


def test_mask_and_what_is_said_about_it():
    adata = data()
    assert build_mask(adata, SETS, min_genes=2) is None
    mask = adata.varm[KEY]
    assert isinstance(mask, sparse.csr_matrix)
    assert mask.dtype == bool
    assert mask.shape == (6, 3)
    assert mask.has_sorted_indices
    assert mask.nnz == mask.sum() == 3 + 2 + 5
    assert_array_equal(
        mask.toarray().astype(int),
        [[1, 0, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1], [0, 0, 0], [1, 0, 1]],
    )
    record = adata.uns[KEY]
    assert record["gene_sets"].dtype == object
    assert record.pop("gene_sets").tolist() == ["T cell", "B cell", "lymphocyte"]
    assert record.pop("left_out").empty
    assert record.pop("unknown_genes").to_numpy().tolist() == [["absent", ""]]
    # Files hold no None: 0 gene sets at most stand for no limit.
    assert record == {
        "source": "dict",
        "organism": "unknown",
        "release": "",
        "matched_by": "var_names",
        "n_genes_mapped": 0,
        "params": {
            "min_genes": 2,
            "max_genes": 300,
            "max_gene_sets": 0,
            "max_jaccard": 1.0,
            "identifiers": "auto",
        },
        "n_genes": 6,
        "n_genes_covered": 5,
        "coverage": 5 / 6,
    }
    values = [*record["params"].values(), record["n_genes_covered"], record["coverage"]]
    assert {type(value) for value in values} == {int, float, str}


def test_key_added_moves_both_and_an_older_mask_is_replaced():
    adata = AnnData(obs=pd.DataFrame(index=["c"]), var=pd.DataFrame(index=GENES))
    build_mask(
        adata,
        SETS,
        min_genes=np.int32(2),
        max_jaccard=np.float32(0.75),
        key_added="other",
    )
    assert adata.X is None
    assert list(adata.varm) == list(adata.uns) == ["other"]
    assert {type(value) for value in adata.uns["other"]["params"].values()} == {
        int,
        float,
        str,
    }
    build_mask(adata, {"only": ["LYZ"]}, min_genes=1, key_added="other")
    assert names_of(adata, "other") == ["only"]
    assert adata.varm["other"].shape == (6, 1)


# -------------------------------------------------------------------------------------- the rules


set_collections = gene_set_collections(
    st.text(min_size=1, max_size=4),
    st.sampled_from([f"G{i}" for i in range(12)]),
)


@low_coverage_is_no_matter
@settings(max_examples=30)
@given(
    gene_sets=set_collections,
    n_genes=st.integers(1, 12),
    as_table=st.booleans(),
    min_genes=st.integers(1, 3),
    width=st.integers(0, 8),
    max_gene_sets=st.integers(1, 6),
)
def test_as_plain_python(gene_sets, n_genes, as_table, min_genes, width, max_gene_sets):
    genes = [f"G{i}" for i in range(n_genes)]
    limits = {
        "min_genes": min_genes,
        "max_genes": min_genes + width,
        "max_gene_sets": max_gene_sets,
    }
    names, mask = naive(genes, gene_sets, **limits)
    if as_table:
        pairs = [(name, gene) for name, s in gene_sets.items() for gene in s]
        gene_sets = pd.DataFrame(pairs, columns=["source", "target"])
    adata = data(genes)
    if not names:
        with pytest.raises(ValueError, match="gene set"):
            build_mask(adata, gene_sets, **limits)
        assert not adata.varm
        assert not adata.uns
    else:
        build_mask(adata, gene_sets, **limits)
        assert names_of(adata) == names
        assert_array_equal(mask_of(adata), mask)
        record = adata.uns[KEY]
        covered = int(mask.any(1).sum())
        assert (record["n_genes"], record["n_genes_covered"]) == (n_genes, covered)
        assert record["coverage"] == covered / n_genes


# --------------------------------------------------------------------- forms in which sets come


def forms(tmp_path):
    """The same gene sets in every form, by the source that is written down."""
    lines = "".join(
        f"{s}\tna\t" + "\t".join(genes) + "\n" for s, genes in SETS.items()
    ).encode()
    for name in ("sets.gmt", "sets.gmt.gz", "SETS.GMT", "sets"):
        (tmp_path / name).write_bytes(
            gzip.compress(lines) if name.endswith(".gz") else lines
        )
    pairs = [(name, gene) for name, genes in SETS.items() for gene in genes]
    # Rows of a set need not lie together, pairs may repeat, other columns do not matter.
    table = pd.DataFrame(
        [pairs[0], *pairs[4:7:2], *pairs],
        columns=["source", "target"],
        index=range(5, 8 + len(pairs)),
    )
    table["weight"] = -1.0
    containers = [tuple, set, np.array, pd.Index, pd.Series, iter]
    return {
        **{
            f"dict {kind.__name__}": {name: kind(genes) for name, genes in SETS.items()}
            for kind in containers
        },
        **{
            f"table {t}": table.astype({"source": t, "target": t})
            for t in ("object", "category", "string")
        },
        **{
            f"{name} path": tmp_path / name
            for name in ("sets.gmt", "sets.gmt.gz", "SETS.GMT", "sets")
        },
        **{f"{name} text": str(tmp_path / name) for name in ("sets.gmt", "sets")},
    }


def test_forms(tmp_path, caplog):
    plain = data()
    build_mask(plain, SETS, min_genes=2)
    for form, gene_sets in forms(tmp_path).items():
        adata = data()
        build_mask(adata, gene_sets, min_genes=2)
        assert adata.uns[KEY]["source"] == form.split()[0]
        adata.uns[KEY]["source"] = "dict"
        if "table" in form:
            assert (adata.uns[KEY].pop("weights")["weight"] == -1).all()
        assert_same(adata, plain)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_rows_with_missing_values_are_left_out_and_told(caplog):
    table = pd.DataFrame(
        {
            "source": ["a", None, "a", "b"],
            "target": ["CD2", "CD19", "LYZ", float("nan")],
        }
    )
    adata = data()
    build_mask(adata, table, min_genes=1)
    assert names_of(adata) == ["a"]
    assert mask_of(adata)[:, 0].sum() == 2
    assert caplog.messages[0] == (
        "build_mask: left out 2 of 4 rows of the table, whose source or target is missing"
    )


# --------------------------------------------------------------------------- AnnData as they come


def test_view_becomes_actual_and_a_file_is_not_written(tmp_path):
    parent, plain = data(), data()
    view = parent[:]
    with pytest.warns(ad.ImplicitModificationWarning, match=r"\.varm"):
        build_mask(view, SETS, min_genes=2)
    assert not view.is_view
    assert not parent.varm
    parent.write_h5ad(tmp_path / "data.h5ad")
    backed = ad.io.read_h5ad(tmp_path / "data.h5ad", backed="r")
    with pytest.raises(ValueError, match="to_memory"):
        build_mask(backed, SETS, min_genes=2, copy=True)
    assert not backed.varm
    build_mask(backed, SETS, min_genes=2)
    assert backed.isbacked
    copied = build_mask(plain, SETS, min_genes=2, copy=True)
    assert not plain.varm
    for adata in (view, backed):
        assert_same(adata, copied)
    backed.file.close()
    assert not ad.io.read_h5ad(tmp_path / "data.h5ad").varm


# -------------------------------------------------------------------------------------------- MuData

PROTEINS = ["CD3", "CD19", "CD14"]
GROUPS = {"lineage": ["CD3", "CD19"], "myeloid": ["CD14"]}


def mudata(proteins=PROTEINS, rna="rna", protein="protein"):
    """A MuData of six genes and three antibodies, under the names that are given."""
    return MuData({rna: data(GENES), protein: data(proteins)})


def test_gene_sets_for_rna_and_one_token_an_antibody():
    mdata, adata = mudata(), data()
    assert build_mask(mdata, SETS, min_genes=2) is None
    build_mask(adata, SETS, min_genes=2)
    assert_same(mdata["rna"], adata)
    record = mdata["protein"].uns[KEY]
    assert list(record["gene_sets"]) == PROTEINS
    assert record["source"] == "single features"
    assert_array_equal(mask_of(mdata["protein"]), np.eye(3))
    renamed = mudata(rna="gex", protein="adt")
    build_mask(
        renamed,
        SETS,
        min_genes=2,
        modalities={"rna": "gex", "protein": "adt"},
        key_added="mask",
    )
    assert renamed["gex"].varm["mask"].shape == (6, 3)
    assert renamed["adt"].varm["mask"].shape == (3, 3)


def test_groups_of_antibodies():
    mdata = mudata()
    changed = build_mask(
        mdata, SETS, min_genes=2, groups={"protein": GROUPS}, copy=True
    )
    assert KEY not in mdata["protein"].varm
    assert names_of(changed["protein"]) == [*GROUPS]
    assert_array_equal(mask_of(changed["protein"]), [[1, 0], [1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("mdata", "kwargs", "error", "words"),
    [
        (mudata(), {"modalities": {"rna": "gex"}}, KeyError, "no modality 'gex'"),
        (
            mudata(),
            {"groups": {"adt": {}}},
            KeyError,
            "groups names 'adt', .* here ..protein",
        ),
        # LEU4 is an old name of CD3D, but an antibody is called as its panel calls it.
        (
            mudata(),
            {"groups": {"protein": {"T": ["LEU4", "CD3D"]}}},
            ValueError,
            "none of 1 gene sets",
        ),
        (mudata(rna="gex", protein="adt"), {}, KeyError, "no modality 'rna'"),
        (
            mudata([f"P{i}" for i in range(1001)]),
            {},
            ValueError,
            "too many for one token each",
        ),
        (mudata()[:2], {}, ValueError, "a view of another MuData"),
        (
            MuData({"rna": data()})["rna"],
            {"groups": {"protein": SETS}},
            TypeError,
            "are for a MuData",
        ),
    ],
)
def test_wrong_input_of_a_mudata_writes_nothing(mdata, kwargs, error, words):
    with pytest.raises(error, match=words):
        build_mask(mdata, SETS, **{"min_genes": 2} | kwargs)
    for adata in mdata.mod.values() if isinstance(mdata, MuData) else [mdata]:
        assert not adata.varm
        assert not adata.uns


# --------------------------------------------------------------------------------------- real data


@pytest.mark.data
def test_same_mask_as_the_original_implementation(shared):
    project = shared / "legacy_project" / "project"
    pathways = pd.read_csv(project / "pathway.csv", index_col=0).iloc[:, 0].tolist()
    expected = np.load(project / "mask.npy").astype(bool)
    reactome = gs.read_gmt(shared / "gene_sets" / "reactome.gmt.gz")
    # It compares 300 with the length of a set in the file, and counts its "node 0" among the sets.
    listed = {name: genes for name, genes in reactome.items() if len(genes) <= 300}
    adata = ad.io.read_h5ad(shared / "legacy_project" / "query.h5ad")
    adata.uns.clear()
    build_mask(adata, listed, max_gene_sets=len(pathways) - 1, identifiers="exact")
    # Its last column has every gene.
    assert names_of(adata) == pathways[:-1]
    assert_array_equal(mask_of(adata), expected[:, :-1])
    assert expected[:, -1].all()


# --------------------------------------------------------------------------- wrong input


def genes_twice():
    adata = AnnData(np.ones((2, 3), dtype=np.float32))
    adata.var.index = ["LYZ", "CD2", "LYZ"]
    return adata


def with_symbols():
    adata = data([f"ENSG{i:011d}.1" for i in range(6)])
    adata.var["gene_symbols"] = pd.Categorical(GENES)
    return adata


MOUSE_GENES = ["Cd3d", "Cd3e", "Cd2", "Lyz2", "Ms4a1", "T"]
LOST = [str(i) for i in range(20)]


@pytest.mark.parametrize(
    ("adata", "gene_sets", "kwargs", "error", "words"),
    [
        # Cells and parameters.
        (data(n_obs=0), SETS, {}, ValueError, r"no cells \(shape 0 × 6\)"),
        (
            genes_twice(),
            SETS,
            {},
            ValueError,
            r"'LYZ'.*adata\.var_names_make_unique\(\)",
        ),
        (
            data(),
            SETS,
            {"min_genes": 9, "max_genes": 8},
            ValueError,
            "max_genes .8. .*min_genes",
        ),
        # Gene sets of no known form.
        (data(), None, {}, TypeError, "gene_sets must be .* not None"),
        (data(), pd.Series(["CD3D"]), {}, TypeError, "gene_sets must be"),
        (data(), ["CD3D"], {}, ValueError, "no gene set collection 'CD3D'"),
        (data(), "none.gmt", {}, FileNotFoundError, "none.gmt"),
        (
            data(),
            pd.DataFrame(columns=["tf", "target"]),
            {},
            ValueError,
            "columns 'source' .* columns are tf, target",
        ),
        (data(), {"a": [], "b": ()}, {}, ValueError, r"\(dict\) holds a gene"),
        (data(), {**SETS, "T": None}, {}, TypeError, "genes of gene set 'T' .* None"),
        (data(), {"e": [], "T": ["CD3D", 916]}, {}, TypeError, "holds 916"),
        # No set is left: the sentence says why.
        (
            data(),
            SETS,
            {"min_genes": 6},
            ValueError,
            "have 2 to 5; .*: lower min_genes",
        ),
        (data(), SETS, {"min_genes": 1, "max_genes": 1}, ValueError, "raise max_genes"),
        (
            data(MOUSE_GENES),
            {"a": ["CD3D", "CD3E", "T"]},
            {},
            ValueError,
            "like mouse symbols",
        ),
        (data(LOST), SETS, {}, ValueError, r"row numbers.*tosica\.io\.from_seurat"),
        (
            with_symbols(),
            SETS,
            {"identifiers": "exact"},
            ValueError,
            r"var_names = adata\.var\['gene_symbols'\]",
        ),
    ],
)
def test_wrong_input_writes_nothing(adata, gene_sets, kwargs, error, words):
    with pytest.raises(error, match=words):
        build_mask(adata, gene_sets, **kwargs)
    assert not adata.varm
    assert not adata.uns


def test_key_that_holds_something_else():
    adata = data()
    adata.varm["PCs"] = np.zeros((6, 2))
    adata.uns["pca"] = {"variance": np.ones(2)}
    adata.varm["both"] = pd.DataFrame({"a": range(6)}, index=adata.var_names)
    adata.uns["both"] = "text"
    for key, taken in [
        ("PCs", ".varm['PCs']"),
        ("pca", ".uns['pca']"),
        ("both", ".varm['both']"),
    ]:
        with pytest.raises(ValueError, match=re.escape(taken)):
            build_mask(adata, SETS, min_genes=2, key_added=key)
    assert adata.varm["PCs"].shape == (6, 2)


def test_low_coverage_is_told(recwarn):
    build_mask(data([*GENES, *(f"OTHER{i}" for i in range(44))]), SETS, min_genes=2)
    assert not recwarn.list
    adata = data([*GENES, *(f"OTHER{i}" for i in range(994))])
    words = r"0\.5 % .*5 of 1 000.*co-expression modules; pass gene sets with more"
    with pytest.warns(UserWarning, match=words) as caught:
        build_mask(adata, SETS, min_genes=2)
    assert caught[0].filename == __file__
    assert adata.uns[KEY]["coverage"] == 0.005
    adata = data(["T", "C1", *(f"Gene{i}" for i in range(98))])
    with pytest.warns(
        UserWarning, match="modules; names in adata look like mouse symbols while"
    ):
        build_mask(adata, {"a": ["T", "C1", "CD3D", "CD3E"]}, min_genes=2)


@pytest.mark.parametrize("dtype", [object, "category"])
def test_symbols_with_a_prefix_may_be_missing(dtype, toy):
    symbols = pd.Series([f"GRCh38_G{i}" for i in range(30)], toy.var_names)
    symbols.iloc[3] = None
    toy.var_names = [f"id{i}" for i in range(30)]
    toy.var["symbol"] = symbols.to_numpy(dtype=object)
    toy.var["symbol"] = toy.var["symbol"].astype(dtype)
    sets = {"first": [f"G{i}" for i in range(8)]}
    build_mask(toy, sets)
    assert toy.varm["tosica_mask"].sum() == 7
