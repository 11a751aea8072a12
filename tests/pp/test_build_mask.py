"""Which gene sets become tokens, and which genes feed them."""

from __future__ import annotations

import gzip
import logging
import random
import re
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from _strategies import anndatas, gene_set_collections
from anndata import AnnData
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from tosica import gs
from tosica.pp import build_mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# Newer pandas deprecates options that anndata reads; anndata announces its next zarr format.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*' option is deprecated"),
    pytest.mark.filterwarnings("ignore:Writing zarr v2 data"),
]

KEY = "tosica_mask"
SETS = {
    "T cell": ["CD3D", "CD3E", "CD2", "absent"],
    "B cell": ["MS4A1", "CD19"],
    "lymphocyte": ["CD3D", "CD3E", "CD2", "MS4A1", "CD19"],
}
GENES = ["CD3D", "CD3E", "CD19", "MS4A1", "LYZ", "CD2"]

low_coverage_is_no_matter = pytest.mark.filterwarnings("ignore:only .* of adata's genes")


def data(genes: Iterable[str] = GENES, n_obs: int = 3) -> AnnData:
    genes = list(genes)
    adata = AnnData(np.arange(n_obs * len(genes), dtype=np.float32).reshape(n_obs, len(genes)))
    adata.var_names = genes
    return adata


def mask_of(adata: AnnData, key: str = KEY) -> np.ndarray:
    return adata.varm[key].toarray()


def names_of(adata: AnnData, key: str = KEY) -> list[str]:
    return list(adata.uns[key]["gene_sets"])


def naive(
    genes: list[str],
    gene_sets: Mapping[str, Iterable[str]],
    min_genes: int,
    max_genes: int,
    max_gene_sets: int | None,
    n_unannotated: int,
) -> tuple[list[str], np.ndarray]:
    """The rules, one after the other, in plain Python."""
    present = {name: set(s).intersection(genes) for name, s in gene_sets.items()}
    fitting = [
        name
        for name, s in present.items()
        if len(s) >= min_genes and len(set(gene_sets[name])) <= max_genes
    ]
    largest = sorted(fitting, key=lambda name: -len(present[name]))[:max_gene_sets]
    kept = [name for name in fitting if name in largest]
    rows = [[gene in present[name] for name in kept] + [True] * n_unannotated for gene in genes]
    names = kept + [f"unannotated_{i}" for i in range(1, n_unannotated + 1)]
    return names, np.array(rows, dtype=bool)


def assert_same(left: AnnData, right: AnnData, key: str = KEY) -> None:
    assert (left.varm[key] != right.varm[key]).nnz == 0
    a, b = dict(left.uns[key]), dict(right.uns[key])
    assert list(a.pop("gene_sets")) == list(b.pop("gene_sets"))
    assert a == b


@pytest.fixture(scope="session")
def pbmc() -> AnnData:
    return sc.datasets.pbmc68k_reduced().raw.to_adata()


# ------------------------------------------------------------------------------ what is written


def test_mask_and_what_is_said_about_it() -> None:
    adata = data()
    assert build_mask(adata, SETS, min_genes=2) is None
    mask = adata.varm[KEY]
    assert isinstance(mask, sparse.csr_matrix)
    assert mask.dtype == bool
    assert mask.shape == (6, 3)
    assert mask.has_sorted_indices
    assert mask.nnz == mask.sum() == 3 + 2 + 5
    np.testing.assert_array_equal(
        mask.toarray().astype(int),
        [[1, 0, 1], [1, 0, 1], [0, 1, 1], [0, 1, 1], [0, 0, 0], [1, 0, 1]],
    )
    about = adata.uns[KEY]
    assert about["gene_sets"].dtype == object
    assert about.pop("gene_sets").tolist() == ["T cell", "B cell", "lymphocyte"]
    # Files hold no None: 0 gene sets at most stand for no limit.
    assert about == {
        "source": "dict",
        "organism": "unknown",
        "release": "",
        "matched_by": "var_names",
        "n_genes_mapped": 0,
        "params": {
            "min_genes": 2,
            "max_genes": 300,
            "max_gene_sets": 0,
            "n_unannotated": 0,
            "mask_ratio": 0.015,
            "seed": 0,
            "select": "largest",
            "max_jaccard": 1.0,
            "identifiers": "auto",
        },
        "n_unannotated": 0,
        "n_genes": 6,
        "n_genes_covered": 5,
        "coverage": 5 / 6,
    }
    values = [*about["params"].values(), about["n_genes_covered"], about["coverage"]]
    assert {type(value) for value in values} == {int, float, str}


def test_columns_with_every_gene_where_they_are_asked_for() -> None:
    plain, adata = data(), data()
    build_mask(plain, SETS, min_genes=2)
    build_mask(adata, SETS, min_genes=2, n_unannotated=2)
    assert names_of(adata) == [*SETS, "unannotated_1", "unannotated_2"]
    np.testing.assert_array_equal(mask_of(adata)[:, :3], mask_of(plain))
    assert mask_of(adata)[:, 3:].all()
    assert adata.uns[KEY]["n_unannotated"] == 2
    assert adata.uns[KEY]["coverage"] == plain.uns[KEY]["coverage"]


@low_coverage_is_no_matter
def test_nothing_else_changes() -> None:
    adata = sc.datasets.pbmc68k_reduced()
    before = adata.copy()
    build_mask(adata, SETS, min_genes=1, key_added="m")
    assert set(adata.varm) == set(before.varm) | {"m"}
    assert set(adata.uns) == set(before.uns) | {"m"}
    np.testing.assert_array_equal(adata.X, before.X)
    assert adata.X.dtype == before.X.dtype
    assert (adata.raw.X != before.raw.X).nnz == 0
    pd.testing.assert_frame_equal(adata.obs, before.obs)
    pd.testing.assert_frame_equal(adata.var, before.var)
    assert set(adata.obsm) == set(before.obsm)
    np.testing.assert_array_equal(adata.varm["PCs"], before.varm["PCs"])


def test_gene_sets_given_are_left_alone() -> None:
    sets = {name: list(genes) for name, genes in SETS.items()}
    table = pd.DataFrame({"source": ["a", "a", None], "target": ["LYZ", "CD2", "CD19"]})
    before = table.copy()
    build_mask(data(), sets, min_genes=1)
    build_mask(data(), table, min_genes=1)
    assert sets == SETS
    pd.testing.assert_frame_equal(table, before)


def test_copy_leaves_the_given_one_alone() -> None:
    adata = data()
    changed = build_mask(adata, SETS, min_genes=2, copy=True)
    assert changed is not adata
    assert KEY in changed.varm
    assert KEY in changed.uns
    assert KEY not in adata.varm
    assert KEY not in adata.uns
    in_place = data()
    build_mask(in_place, SETS, min_genes=2)
    assert_same(changed, in_place)


def test_key_added_moves_both_and_an_older_mask_is_replaced() -> None:
    adata = data()
    build_mask(adata, SETS, min_genes=2, key_added="other")
    assert list(adata.varm) == list(adata.uns) == ["other"]
    build_mask(adata, {"only": ["LYZ"]}, min_genes=1, n_unannotated=0, key_added="other")
    assert names_of(adata, "other") == ["only"]
    assert adata.varm["other"].shape == (6, 1)


def test_mask_without_its_uns_is_replaced_too() -> None:
    adata = data()
    adata.varm[KEY] = np.ones((6, 2), dtype=bool)
    build_mask(adata, SETS, min_genes=2)
    assert adata.varm[KEY].shape == (6, 3)


def test_log_line(caplog: pytest.LogCaptureFixture) -> None:
    genes = [f"G{i}" for i in range(3000)]
    sets = {f"s{i}": genes[i : i + 12] for i in range(1200)}
    with caplog.at_level(logging.INFO, logger="tosica"):
        build_mask(data(genes, n_obs=1), sets, max_gene_sets=1100)
    assert caplog.messages == [
        "build_mask: kept 1 100 of 1 200 gene sets (12–12 genes each), covering 1 111 of 3 000 "
        "genes (37.0 %); added .varm['tosica_mask'] and .uns['tosica_mask']"
    ]


# -------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, ["two", "three", "four", "three again", "two again"]),
        ({"min_genes": 3}, ["three", "four", "three again"]),
        ({"max_genes": 3}, ["two", "three", "three again", "two again"]),
        ({"max_genes": 2}, ["two again"]),
        ({"min_genes": 3, "max_genes": 3}, ["three", "three again"]),
        ({"max_gene_sets": 1}, ["four"]),
        ({"max_gene_sets": 2}, ["three", "four"]),
        ({"max_gene_sets": 3}, ["three", "four", "three again"]),
        ({"max_gene_sets": 4}, ["two", "three", "four", "three again"]),
        ({"max_genes": 3, "max_gene_sets": 1}, ["three"]),
    ],
)
def test_largest_are_kept_in_order_and_ties_go_to_the_earlier(
    limits: dict[str, int], kept: list[str]
) -> None:
    sets = {
        "none": ["absent"],
        "two": ["CD3D", "CD3E", "absent"],
        "three": ["CD3D", "CD3E", "CD19"],
        "four": ["CD3D", "CD3E", "CD19", "LYZ"],
        "three again": ["LYZ", "CD2", "MS4A1"],
        "two again": ["LYZ", "CD2"],
    }
    adata = data()
    build_mask(adata, sets, **{"min_genes": 2, "n_unannotated": 0, **limits})
    assert names_of(adata) == kept
    for column, name in enumerate(kept):
        inside = adata.var_names[mask_of(adata)[:, column]]
        assert set(inside) == set(sets[name]) - {"absent"}


def test_least_size_counts_genes_in_the_data_and_each_once() -> None:
    sets = {
        "repeats": ["CD2", "CD2", "CD2", "LYZ"],
        "absent ones": ["LYZ", "a", "b", "c"],
        "fits": ["LYZ", "CD2", "CD19", "d", "e"],
    }
    adata = data()
    build_mask(adata, sets, min_genes=3)
    assert names_of(adata) == ["fits"]


def test_largest_size_counts_listed_genes_and_each_once() -> None:
    sets = {
        "repeats": ["CD2", "CD2", "CD2", "LYZ", "CD19"],
        "broad": ["LYZ", "CD2", "CD19", "d"],
    }
    adata = data()
    build_mask(adata, sets, min_genes=3, max_genes=3)
    assert names_of(adata) == ["repeats"]


def test_names_are_matched_exactly() -> None:
    adata = data()
    build_mask(adata, {"s": ["cd2", " LYZ", "CD19.1", "CD2"]}, min_genes=1)
    assert adata.var_names[mask_of(adata)[:, 0]].tolist() == ["CD2"]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_fully_connected_columns_come_last(n: int) -> None:
    adata = data()
    build_mask(adata, SETS, min_genes=2, n_unannotated=n)
    assert adata.varm[KEY].shape == (6, 3 + n)
    assert mask_of(adata)[:, 3:].all()
    assert names_of(adata)[3:] == ["unannotated_1", "unannotated_2", "unannotated_3"][:n]
    assert adata.uns[KEY]["n_unannotated"] == n
    # A gene that only they hold is not covered.
    assert adata.uns[KEY]["n_genes_covered"] == 5


set_collections = gene_set_collections(
    st.text(min_size=1, max_size=4).filter(lambda name: not name.startswith("unannotated")),
    st.sampled_from([f"G{i}" for i in range(12)]),
)


@low_coverage_is_no_matter
@settings(max_examples=80)
@given(
    gene_sets=set_collections,
    n_genes=st.integers(1, 12),
    min_genes=st.integers(1, 3),
    width=st.integers(0, 8),
    max_gene_sets=st.integers(1, 6),
    n_unannotated=st.integers(0, 2),
    as_table=st.booleans(),
)
def test_as_plain_python(
    gene_sets: dict[str, list[str]],
    n_genes: int,
    min_genes: int,
    width: int,
    max_gene_sets: int,
    n_unannotated: int,
    as_table: bool,
) -> None:
    genes = [f"G{i}" for i in range(n_genes)]
    names, mask = naive(
        genes, gene_sets, min_genes, min_genes + width, max_gene_sets, n_unannotated
    )
    given_sets: Any = gene_sets
    if as_table:
        pairs = [(name, gene) for name, s in gene_sets.items() for gene in s]
        given_sets = pd.DataFrame(pairs, columns=["source", "target"])
    adata = data(genes)

    def build() -> None:
        build_mask(
            adata,
            given_sets,
            min_genes=min_genes,
            max_genes=min_genes + width,
            max_gene_sets=max_gene_sets,
            n_unannotated=n_unannotated,
        )

    if len(names) == n_unannotated:
        with pytest.raises(ValueError, match="gene set"):
            build()
        assert not adata.varm
        assert not adata.uns
    else:
        build()
        assert names_of(adata) == names
        np.testing.assert_array_equal(mask_of(adata), mask)
        about = adata.uns[KEY]
        covered = int(mask[:, : len(names) - n_unannotated].any(1).sum())
        assert (about["n_genes"], about["n_genes_covered"]) == (n_genes, covered)
        assert about["coverage"] == covered / n_genes


@low_coverage_is_no_matter
@settings(max_examples=40)
@given(gene_sets=set_collections, order=st.permutations(range(12)), data_=st.data())
def test_order_of_genes_moves_rows_and_nothing_else(
    gene_sets: dict[str, list[str]], order: list[int], data_: st.DataObject
) -> None:
    genes = [f"G{i}" for i in range(12)]
    gene_sets = {"always": ["G3"], **gene_sets}
    n = data_.draw(st.integers(1, 6))
    plain, shuffled = data(genes), data([genes[i] for i in order])
    # The order of the genes inside a set has no meaning either.
    turned = {name: s[::-1] for name, s in gene_sets.items()}
    build_mask(plain, gene_sets, min_genes=1, max_gene_sets=n)
    build_mask(shuffled, turned, min_genes=1, max_gene_sets=n)
    assert_same(plain[:, shuffled.var_names], shuffled)


@low_coverage_is_no_matter
@settings(max_examples=40)
@given(gene_sets=set_collections, n_more=st.integers(1, 30))
def test_genes_of_no_set_add_rows_and_nothing_else(
    gene_sets: dict[str, list[str]], n_more: int
) -> None:
    genes = [f"G{i}" for i in range(12)]
    gene_sets = {"always": genes[:6], **gene_sets}
    more = [f"other{i}" for i in range(n_more)]
    plain, longer = data(genes), data([*more[::2], *genes, *more[1::2]])
    build_mask(plain, gene_sets, min_genes=1)
    build_mask(longer, gene_sets, min_genes=1)
    assert names_of(longer) == names_of(plain)
    np.testing.assert_array_equal(mask_of(longer[:, genes]), mask_of(plain))
    assert not mask_of(longer[:, more]).any()
    assert longer.uns[KEY]["n_genes_covered"] == plain.uns[KEY]["n_genes_covered"]
    assert longer.uns[KEY]["n_genes"] == 12 + n_more


@low_coverage_is_no_matter
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(adata=anndatas(n_vars=(1, 20)), data_=st.data())
def test_any_anndata_gets_a_mask_and_nothing_else(
    adata: AnnData, data_: st.DataObject, contents: Any, new_keys: Any
) -> None:
    genes = adata.var_names.tolist()
    members = data_.draw(st.lists(st.sampled_from(genes), min_size=1, unique=True))
    before = contents(adata)
    build_mask(adata, {"some": members, "first": genes[:1]}, min_genes=1)
    new = new_keys(before, contents(adata))
    assert f"varm/{KEY}" in new
    assert {key.split("/")[1] for key in new} == {KEY}
    columns = dict(zip(names_of(adata), mask_of(adata).T, strict=True))
    for name, expected in (("some", members), ("first", genes[:1])):
        # Of two sets with the same genes one is kept.
        held = columns.get(name, next(iter(columns.values())))
        np.testing.assert_array_equal(held, np.isin(genes, expected))


@settings(max_examples=20)
@given(order=st.permutations(list(SETS)))
def test_order_of_sets_is_kept(order: list[str]) -> None:
    adata = data()
    build_mask(adata, {name: SETS[name] for name in order}, min_genes=2, n_unannotated=0)
    assert names_of(adata) == order


# --------------------------------------------------------------------- forms in which sets come


def test_default_is_the_collection_of_human_processes(pbmc: AnnData) -> None:
    adata = pbmc.copy()
    build_mask(adata, identifiers="exact", max_jaccard=1)
    names, mask = naive(list(adata.var_names), gs.load("human_gobp"), 5, 300, None, 0)
    assert len(names) > 1_000
    assert names_of(adata) == names
    np.testing.assert_array_equal(mask_of(adata), mask)
    assert adata.varm[KEY].shape == (765, len(names))
    assert adata.uns[KEY]["source"] == "human_gobp"
    assert adata.uns[KEY]["organism"] == "human"
    assert adata.uns[KEY]["coverage"] > 0.5


def test_name_of_a_collection_wins_over_a_file_called_so(
    pbmc: AnnData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "human_gobp").write_text("mine\tna\tCD3D\n")
    (tmp_path / "mine").write_text("mine\tna\tLYZ\n")
    elsewhere, adata = pbmc.copy(), pbmc.copy()
    build_mask(elsewhere, "human_gobp")
    monkeypatch.chdir(tmp_path)
    build_mask(adata, "human_gobp")
    assert_same(adata, elsewhere)
    with_file = data()
    build_mask(with_file, "mine", min_genes=1)
    assert names_of(with_file) == ["mine"]


@pytest.mark.parametrize("name", ["sets.gmt", "sets.gmt.gz", "SETS.GMT", "sets.txt", "sets"])
@pytest.mark.parametrize("as_text", [True, False])
def test_file(tmp_path: Path, name: str, as_text: bool) -> None:
    lines = "".join(f"{s}\tna\t" + "\t".join(genes) + "\n" for s, genes in SETS.items())
    content = lines.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    path: Any = tmp_path / name
    from_file, from_dict = data(), data()
    build_mask(from_file, str(path) if as_text else path, min_genes=2)
    build_mask(from_dict, SETS, min_genes=2)
    assert from_file.uns[KEY].pop("source") == name
    assert from_dict.uns[KEY].pop("source") == "dict"
    assert_same(from_file, from_dict)


@pytest.mark.parametrize("kind", [tuple, set, frozenset, np.array, pd.Index, pd.Series, iter])
def test_genes_of_a_set_in_any_container(kind: Any) -> None:
    other, plain = data(), data()
    build_mask(other, {name: kind(genes) for name, genes in SETS.items()}, min_genes=2)
    build_mask(plain, SETS, min_genes=2)
    assert_same(other, plain)


def test_empty_sets_among_others_do_no_harm() -> None:
    adata = data()
    build_mask(adata, {"first": [], **SETS, "last": []}, min_genes=1)
    assert names_of(adata) == [*SETS]


@pytest.mark.parametrize("dtype", [object, "category", "string"])
def test_table(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    pairs = [(name, gene) for name, genes in SETS.items() for gene in genes]
    # Rows of a set need not lie together, pairs may repeat, other columns do not matter.
    pairs = [pairs[i] for i in (0, 4, 6)] + pairs
    table = pd.DataFrame(pairs, columns=["source", "target"]).astype(dtype)
    table["weight"] = -1.0
    table.index = range(5, 5 + len(table))
    from_table, from_dict = data(), data()
    build_mask(from_table, table, min_genes=2)
    build_mask(from_dict, SETS, min_genes=2)
    assert from_table.uns[KEY].pop("source") == "table"
    assert (from_table.uns[KEY].pop("weights")["weight"] == -1).all()
    del from_dict.uns[KEY]["source"]
    assert_same(from_table, from_dict)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_rows_with_missing_values_are_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    table = pd.DataFrame(
        {"source": ["a", None, "a", "b"], "target": ["CD2", "CD19", "LYZ", float("nan")]}
    )
    adata = data()
    build_mask(adata, table, min_genes=1)
    assert names_of(adata) == ["a"]
    assert mask_of(adata)[:, 0].sum() == 2
    assert caplog.messages[0] == (
        "build_mask: left out 2 of 4 rows of the table, whose source or target is missing"
    )


# ------------------------------------------------------------------------------------ random sets


def test_random_sets() -> None:
    genes = [f"G{i}" for i in range(2000)]
    adata = data(genes, n_obs=1)
    build_mask(adata, None, max_gene_sets=50, mask_ratio=0.03, n_unannotated=2)
    assert names_of(adata) == [
        *(f"random_{i}" for i in range(1, 51)),
        "unannotated_1",
        "unannotated_2",
    ]
    mask = mask_of(adata)
    # 100 000 draws: five standard deviations are 0.0027.
    assert mask[:, :50].mean() == pytest.approx(0.03, abs=0.0027)
    assert mask[:, 50:].all()
    assert len(np.unique(mask[:, :50], axis=1).T) == 50
    assert adata.uns[KEY]["source"] == "random"
    assert adata.uns[KEY]["organism"] == "unknown"
    assert adata.uns[KEY]["n_genes_covered"] == mask[:, :50].any(1).sum()


def test_random_sets_are_three_hundred_by_default() -> None:
    adata = data([f"G{i}" for i in range(300)], n_obs=1)
    build_mask(adata, None)
    assert names_of(adata) == [f"random_{i}" for i in range(1, 301)]


def test_random_sets_follow_the_seed_alone() -> None:
    genes = [f"G{i}" for i in range(300)]
    masks = []
    for global_seed, seed in [(0, 0), (1, 0), (0, 1)]:
        np.random.seed(global_seed)  # noqa: NPY002
        random.seed(global_seed)
        state = np.random.get_state()[1].copy()  # noqa: NPY002
        adata = data(genes, n_obs=1)
        build_mask(adata, None, seed=seed)
        assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
        masks.append(mask_of(adata))
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).any()


def test_random_sets_are_topped_up() -> None:
    adata = data([f"G{i}" for i in range(40)])
    build_mask(adata, None, mask_ratio=0.001, min_genes=4, max_genes=4, n_unannotated=0)
    sizes = mask_of(adata).sum(0)
    assert sizes.min() == 4
    assert sizes.max() <= 5
    # Topped up with genes from everywhere, not with the first ones.
    assert mask_of(adata).any(1).all()


def test_random_sets_of_every_gene() -> None:
    adata = data()
    build_mask(adata, None, mask_ratio=1, max_gene_sets=2)
    assert mask_of(adata).all()


# --------------------------------------------------------------------------- AnnData as they come


@pytest.mark.parametrize(
    "form", [np.asarray, sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_form_of_x_does_not_matter(form: Any, dtype: Any) -> None:
    plain = data()
    other = AnnData(form(plain.X.astype(dtype)), var=plain.var)
    build_mask(plain, SETS, min_genes=2)
    build_mask(other, SETS, min_genes=2)
    assert other.X.dtype == dtype
    assert_same(plain, other)


def test_without_x() -> None:
    adata = AnnData(obs=pd.DataFrame(index=["c"]), var=pd.DataFrame(index=GENES))
    build_mask(adata, SETS, min_genes=2)
    assert adata.X is None
    assert adata.varm[KEY].shape == (6, 3)


def test_view_becomes_actual_with_the_usual_warning() -> None:
    parent = data()
    view = parent[:, ["CD2", "CD3D", "CD19"]]
    with pytest.warns(ad.ImplicitModificationWarning, match=r"\.varm"):
        build_mask(view, SETS, min_genes=1)
    assert not view.is_view
    assert not parent.varm
    assert not parent.uns
    plain = data(["CD2", "CD3D", "CD19"])
    build_mask(plain, SETS, min_genes=1)
    assert_same(view, plain)


def test_copy_of_a_view_leaves_it_a_view() -> None:
    view = data()[:, ["CD2", "CD3D", "CD19"]]
    changed = build_mask(view, SETS, min_genes=1, copy=True)
    assert view.is_view
    assert KEY not in view.varm
    assert not changed.is_view
    assert changed.varm[KEY].shape == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["h5ad", "zarr"])
@pytest.mark.parametrize("gene_sets", ["human_gobp", None])
def test_written_and_read_back_equal(
    pbmc: AnnData, tmp_path: Path, form: str, gene_sets: str | None
) -> None:
    if form == "zarr":
        pytest.importorskip("zarr")
    adata = pbmc.copy()
    build_mask(adata, gene_sets, n_unannotated=2)
    path = tmp_path / f"data.{form}"
    getattr(adata, f"write_{form}")(path)
    back = ad.io.read_h5ad(path) if form == "h5ad" else ad.io.read_zarr(path)
    assert isinstance(back.varm[KEY], sparse.csr_matrix)
    assert back.varm[KEY].dtype == bool
    assert_same(adata, back)
    # What was read can be built upon.
    build_mask(back, gene_sets, n_unannotated=2)
    assert_same(adata, back)


def test_backed(tmp_path: Path) -> None:
    path = tmp_path / "data.h5ad"
    data().write_h5ad(path)
    backed = ad.io.read_h5ad(path, backed="r")
    build_mask(backed, SETS, min_genes=2)
    assert backed.isbacked
    plain = data()
    build_mask(plain, SETS, min_genes=2)
    assert_same(backed, plain)
    backed.file.close()
    assert not ad.io.read_h5ad(path).varm


def test_backed_cannot_be_copied_and_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.h5ad"
    data().write_h5ad(path)
    backed = ad.io.read_h5ad(path, backed="r")
    with pytest.raises(ValueError, match="to_memory"):
        build_mask(backed, SETS, min_genes=2, copy=True)
    assert not backed.varm
    assert not backed.uns
    backed.file.close()


def test_mask_follows_the_genes_of_a_subset() -> None:
    adata = data()
    build_mask(adata, SETS, min_genes=2)
    some = adata[:, ["LYZ", "CD3D"]].copy()
    np.testing.assert_array_equal(mask_of(some), [[0, 0, 0], [1, 0, 1]])


# --------------------------------------------------------------------------------------- real data


@pytest.mark.data
def test_reactome_on_real_cells(shared: Path) -> None:
    path = shared / "gene_sets" / "reactome.gmt.gz"
    adata = ad.io.read_h5ad(shared / "kang_pbmc.h5ad")
    build_mask(adata, path, max_gene_sets=100)
    names, mask = naive(list(adata.var_names), gs.read_gmt(path), 5, 300, 100, 0)
    assert names_of(adata) == names
    np.testing.assert_array_equal(mask_of(adata), mask)
    assert adata.uns[KEY]["source"] == "reactome.gmt.gz"


@pytest.mark.data
def test_same_mask_as_the_original_implementation(shared: Path) -> None:
    project = shared / "legacy_project" / "project"
    pathways = pd.read_csv(project / "pathway.csv", index_col=0).iloc[:, 0].tolist()
    expected = np.load(project / "mask.npy").astype(bool)
    reactome = gs.read_gmt(shared / "gene_sets" / "reactome.gmt.gz")
    # It compares 300 with the length of a set in the file, and counts its "node 0" among the sets.
    listed = {name: genes for name, genes in reactome.items() if len(genes) <= 300}
    adata = ad.io.read_h5ad(shared / "legacy_project" / "query.h5ad")
    adata.uns.clear()
    build_mask(adata, listed, max_gene_sets=len(pathways) - 1, n_unannotated=1)
    assert names_of(adata)[:-1] == pathways[:-1]
    np.testing.assert_array_equal(mask_of(adata), expected)


@pytest.mark.data
def test_mask_of_other_data_of_the_same_organism(pbmc: AnnData, shared: Path) -> None:
    """Two data sets agree on a gene that both have, for a set that both keep."""
    first, second = pbmc.copy(), ad.io.read_h5ad(shared / "kang_pbmc.h5ad")
    for adata in (first, second):
        build_mask(adata, "human_gobp")
    genes = [gene for gene in first.var_names if gene in second.var_names]
    both = [name for name in names_of(first) if name in names_of(second)]
    assert len(genes) > 100
    assert len(both) > 100
    np.testing.assert_array_equal(
        mask_of(first[:, genes])[:, [names_of(first).index(name) for name in both]],
        mask_of(second[:, genes])[:, [names_of(second).index(name) for name in both]],
    )


# -------------------------------------------------------------------------------------- wrong input


def refused(
    error: type[Exception], sentence: str, adata: Any, gene_sets: Any = SETS, **kwargs: Any
) -> None:
    """`build_mask` says this sentence, all of it, and has written nothing."""
    is_adata = isinstance(adata, AnnData)
    before = (list(adata.varm), list(adata.uns)) if is_adata else None
    with pytest.raises(error, match=f"^{re.escape(sentence)}$"):
        build_mask(adata, gene_sets, **kwargs)
    if is_adata:
        assert (list(adata.varm), list(adata.uns)) == before


def test_not_an_anndata() -> None:
    refused(
        TypeError,
        "adata must be an AnnData or a MuData, not a DataFrame: make an AnnData of it, "
        "with cells as rows and genes as columns, by anndata.AnnData(...).",
        pd.DataFrame({"CD3D": [1.0]}),
    )


def test_no_cells() -> None:
    refused(
        ValueError,
        "adata has no cells (shape 0 × 6): check the filters that were applied before.",
        data(n_obs=0),
    )


def test_no_genes() -> None:
    refused(
        ValueError,
        "adata has no genes (shape 3 × 0): check the filters that were applied before.",
        data([]),
    )


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
@pytest.mark.parametrize(
    ("genes", "which"),
    [
        (
            ["LYZ", "CD2", "LYZ", "CD2", "X", "X"],
            "var_names are not unique .*'LYZ', 'CD2' and 1 more",
        ),
        (["LYZ", "CD2", "LYZ"], "var_names are not unique .*'LYZ'"),
    ],
)
def test_duplicated_genes(genes: list[str], which: str) -> None:
    with pytest.raises(ValueError, match=rf"^{which}.* adata\.var_names_make_unique\(\) first"):
        build_mask(data(genes), SETS)


@pytest.mark.parametrize(
    ("kwargs", "error", "sentence"),
    [
        ({"min_genes": 0}, ValueError, "min_genes must be at least 1, not 0."),
        ({"max_genes": 0}, ValueError, "max_genes must be at least 1, not 0."),
        (
            {"min_genes": 9, "max_genes": 8},
            ValueError,
            "max_genes (8) must not be below min_genes (9).",
        ),
        ({"max_gene_sets": 0}, ValueError, "max_gene_sets must be at least 1 or None, not 0."),
        ({"n_unannotated": -1}, ValueError, "n_unannotated must be at least 0, not -1."),
        ({"seed": -1}, ValueError, "seed must be at least 0, not -1."),
        ({"min_genes": 2.5}, TypeError, "min_genes must be a whole number, not 2.5."),
        (
            {"max_gene_sets": "all"},
            TypeError,
            "max_gene_sets must be a whole number or None, not 'all'.",
        ),
        ({"mask_ratio": 0}, ValueError, "mask_ratio must be above 0 and at most 1, not 0."),
        ({"mask_ratio": 1.1}, ValueError, "mask_ratio must be above 0 and at most 1, not 1.1."),
        (
            {"mask_ratio": float("nan")},
            ValueError,
            "mask_ratio must be above 0 and at most 1, not nan.",
        ),
        ({"max_jaccard": 0}, ValueError, "max_jaccard must be above 0 and at most 1, not 0."),
        ({"max_jaccard": "half"}, TypeError, "max_jaccard must be a number, not 'half'."),
        (
            {"select": "best"},
            ValueError,
            "select must be 'largest', 'coverage' or 'variable', not 'best'.",
        ),
        (
            {"identifiers": "ensembl"},
            ValueError,
            "identifiers must be 'auto', 'map' or 'exact', not 'ensembl'.",
        ),
        (
            {"organism": "rat"},
            ValueError,
            "organism must be 'auto', 'human' or 'mouse', not 'rat'.",
        ),
        ({"mask_ratio": "1"}, TypeError, "mask_ratio must be a number, not '1'."),
        (
            {"key_added": ""},
            ValueError,
            "key_added must be a name without a slash, which a file could not hold, not ''.",
        ),
        ({"key_added": 1}, TypeError, "key_added must be a string, not 1."),
    ],
)
def test_parameters_out_of_range(
    kwargs: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    refused(error, sentence, data(), **kwargs)


def test_numpy_numbers_are_numbers() -> None:
    adata = data()
    build_mask(adata, SETS, min_genes=np.int32(2), mask_ratio=np.float32(0.5))
    assert {type(value) for value in adata.uns[KEY]["params"].values()} == {int, float, str}


def test_key_that_holds_something_else() -> None:
    adata = data()
    adata.varm["PCs"] = np.zeros((6, 2))
    adata.uns["pca"] = {"variance": np.ones(2)}
    adata.varm["both"] = pd.DataFrame({"a": range(6)}, index=adata.var_names)
    adata.uns["both"] = "text"
    for key, taken in [
        ("PCs", ".varm['PCs']"),
        ("pca", ".uns['pca']"),
        ("both", ".varm['both'] and .uns['both']"),
    ]:
        refused(
            ValueError,
            f"adata has {taken} already, which build_mask did not write: choose another key_added.",
            adata,
            min_genes=2,
            key_added=key,
        )
    assert adata.varm["PCs"].shape == (6, 2)


@pytest.mark.parametrize("gene_sets", [[], {"CD3D"}, 5, pd.Series(["CD3D"])])
def test_gene_sets_of_another_kind(gene_sets: Any) -> None:
    refused(
        TypeError,
        "gene_sets must be a collection's name, a path of a GMT file, a dict of lists, a table "
        "with 'source' and 'target' columns, a list of names and paths or None, not "
        f"{type(gene_sets).__name__}.",
        data(),
        gene_sets,
    )


def test_unknown_collection() -> None:
    with pytest.raises(ValueError, match=r"no gene set collection 'human_go'.*human_gobp"):
        build_mask(data(), "human_go")
    with pytest.raises(ValueError, match=r"no gene set collection 'CD3D'; those that exist"):
        build_mask(data(), ["CD3D"])


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gmt", str(tmp_path / "none.gmt.gz"), tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="none"):
            build_mask(data(), path)


def test_web_page_for_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sets.gmt"
    path.write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(ValueError, match="web page"):
        build_mask(data(), path)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            ["tf", "target"],
            "the table of gene sets has no column 'source': it needs 'source' (the gene set) and "
            "'target' (the gene), but its columns are tf, target.",
        ),
        (
            ["a", "b"],
            "the table of gene sets has no column 'source' and no column 'target': it needs "
            "'source' (the gene set) and 'target' (the gene), but its columns are a, b.",
        ),
        (
            [],
            "the table of gene sets has no column 'source' and no column 'target': it needs "
            "'source' (the gene set) and 'target' (the gene), but its columns are none.",
        ),
    ],
)
def test_table_without_its_columns(columns: list[str], sentence: str) -> None:
    refused(ValueError, sentence, data(), pd.DataFrame(columns=columns))


@pytest.mark.parametrize(
    ("gene_sets", "source"),
    [({}, "dict"), (pd.DataFrame({"source": [], "target": []}), "table")],
)
def test_no_gene_sets(gene_sets: Any, source: str) -> None:
    refused(
        ValueError,
        f"there is no gene set in gene_sets ({source}): pass at least one.",
        data(),
        gene_sets,
    )


def test_gene_sets_without_genes() -> None:
    refused(
        ValueError,
        "no gene set in gene_sets (dict) holds a gene: pass sets with genes.",
        data(),
        {"a": [], "b": ()},
    )


@pytest.mark.parametrize(
    ("genes", "what"),
    [("CD3D", "str ('CD3D')"), (b"CD3D", "bytes (b'CD3D')"), (None, "NoneType (None)")],
)
def test_genes_that_are_no_list(genes: Any, what: str) -> None:
    refused(
        TypeError,
        f"the genes of gene set 'T' must be a list of names, not {what}: "
        "write {'T': ['CD3D', 'CD3E']}.",
        data(),
        {**SETS, "T": genes},
    )


@pytest.mark.parametrize(
    ("gene", "what"), [(916, "int (916)"), (float("nan"), "float (nan)"), (None, "NoneType (None)")]
)
def test_gene_that_is_no_string(gene: Any, what: str) -> None:
    refused(
        TypeError,
        f"gene set 'T' holds a {what} where the name of a gene is expected: gene names are "
        "strings.",
        data(),
        {"empty": [], "B": ["CD19"], "T": ["CD3D", gene], "last": ["LYZ"]},
    )


@pytest.mark.parametrize(
    "gene_sets", [{"a": ["LYZ"], 5: ["CD3D"]}, pd.DataFrame({"source": [5], "target": ["CD3D"]})]
)
def test_name_that_is_no_string(gene_sets: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^the name of a gene set must be a string, not int \(5\): rename it\.$"
    ):
        build_mask(data(), gene_sets)


def test_name_like_a_fully_connected_token() -> None:
    refused(
        ValueError,
        "gene set 'unannotated_7' has the name of a fully connected token: rename it.",
        data(),
        {**SETS, "unannotated_7": ["CD3D"]},
    )
    build_mask(data(), {**SETS, "unannotated": ["CD3D"]}, min_genes=1)


def test_too_few_genes_for_random_sets() -> None:
    refused(
        ValueError,
        "a random gene set cannot hold min_genes=7 genes because adata has only 6: lower min_genes "
        "or pass an adata with more genes.",
        data(),
        None,
        min_genes=7,
    )


def test_no_gene_in_any_set_without_a_reason_to_see() -> None:
    refused(
        ValueError,
        "no gene of 1 gene sets (dict) is among adata.var_names ('CD3D' in adata, 'NKG7' in "
        "the gene sets): pass gene sets with the names that adata uses.",
        data(),
        {"NK": ["NKG7", "GNLY"]},
    )


def test_sets_too_small() -> None:
    refused(
        ValueError,
        "none of 3 gene sets (dict) lists at most 300 genes and has at least 6 of them in "
        "adata (they list 2 to 5 and have 2 to 5): lower min_genes or pass other gene sets.",
        data(),
        min_genes=6,
    )


def test_sets_too_large() -> None:
    refused(
        ValueError,
        "none of 3 gene sets (dict) lists at most 1 genes and has at least 1 of them in "
        "adata (they list 2 to 5 and have 2 to 5): lower min_genes or raise max_genes.",
        data(),
        min_genes=1,
        max_genes=1,
    )


@pytest.mark.slow
@pytest.mark.data
def test_names_of_another_kind_that_are_to_be_matched_exactly(shared: Path) -> None:
    adata = ad.io.read_h5ad(shared / "lungmix_celseq2_dropseq.h5ad")
    first = gs.load("human_gobp")
    gene = next(iter(first.values()))[0]
    refused(
        ValueError,
        f"no gene of {len(first):,} gene sets (human_gobp) is among adata.var_names ".replace(
            ",", " "
        )
        + f"('{adata.var_names[0]}' in adata, '{gene}' in the gene sets): names in adata look like "
        "human Ensembl IDs while the gene sets' look like human symbols, so map them to symbols "
        "first.",
        adata,
        "human_gobp",
        identifiers="exact",
    )


def test_hint_names_the_column_with_symbols_and_following_it_works() -> None:
    adata = data([f"ENSG{i:011d}.1" for i in range(6)])
    adata.var["gene_ids"] = [f"ENSG{i:011d}" for i in range(6)]
    adata.var["gene_symbols"] = pd.Categorical(GENES)
    refused(
        ValueError,
        "no gene of 3 gene sets (dict) is among adata.var_names ('ENSG00000000000.1' in adata, "
        "'CD3D' in the gene sets): names in adata look like versioned human Ensembl IDs while the "
        "gene sets' look like human symbols, but var['gene_symbols'] fits better, so take that: "
        "adata.var_names = adata.var['gene_symbols'].astype(str), then "
        "adata.var_names_make_unique().",
        adata,
        identifiers="exact",
    )
    adata.var_names = adata.var["gene_symbols"].astype(str)
    adata.var_names_make_unique()
    build_mask(adata, SETS, min_genes=2)
    assert names_of(adata) == [*SETS]


def test_hint_at_another_species_where_a_few_sets_match_by_chance() -> None:
    adata = data(["Cd3d", "Cd3e", "Cd2", "Lyz2", "Ms4a1", "T"])
    refused(
        ValueError,
        "none of 2 gene sets (dict) lists at most 300 genes and has at least 5 of them in "
        "adata (they list 1 to 3 and have 0 to 1): names in adata look like mouse symbols while "
        "the gene sets' look like human symbols, so use the same species on both sides, or map "
        "the genes to their orthologs first (tosica.gs.map_genes).",
        adata,
        {"a": ["CD3D", "CD3E", "T"], "b": ["MS4A1"]},
    )


def test_hint_at_entrez_numbers() -> None:
    with pytest.raises(ValueError, match=r"like Entrez numbers while .* human symbols, so map"):
        build_mask(data(["916", "930", "4069"]), SETS)


def test_hint_at_lost_names() -> None:
    refused(
        ValueError,
        "no gene of 3 gene sets (dict) is among adata.var_names ('0' in adata, 'CD3D' in the "
        "gene sets): names in adata look like row numbers, so they were lost in a conversion and "
        "var_names must be set to gene names again, which tosica.io.from_seurat does for a Seurat "
        "object.",
        data([str(i) for i in range(20)]),
    )


def test_low_coverage_is_told() -> None:
    adata = data([*GENES, *(f"OTHER{i}" for i in range(994))])
    with pytest.warns(
        UserWarning,
        match=r"^only 0\.5 % of adata's genes \(5 of 1 000\) are in a gene set that was kept, so "
        r"that all other genes are only in co-expression modules; pass gene sets with more of "
        r"them\.$",
    ):
        build_mask(adata, SETS, min_genes=2)
    assert adata.uns[KEY]["coverage"] == 0.005
    with pytest.warns(UserWarning, match="all other genes are only in fully connected tokens"):
        build_mask(adata, SETS, min_genes=2, n_unannotated=1)
    with pytest.warns(UserWarning, match="modules; raise mask_ratio or max_gene_sets"):
        build_mask(adata, None, max_gene_sets=1)


def test_low_coverage_with_a_reason_is_told_with_it() -> None:
    adata = data(["T", "C1", *(f"Gene{i}" for i in range(98))])
    with pytest.warns(UserWarning, match="modules; names in adata look like mouse symbols while"):
        build_mask(adata, {"a": ["T", "C1", "CD3D", "CD3E"]}, min_genes=2)


@pytest.mark.parametrize(("n_genes", "warns"), [(50, False), (51, True)])
def test_low_coverage_begins_below_a_tenth(
    n_genes: int, warns: bool, recwarn: pytest.WarningsRecorder
) -> None:
    build_mask(data([*GENES, *(f"OTHER{i}" for i in range(n_genes - 6))]), SETS, min_genes=2)
    assert bool(recwarn.list) is warns
