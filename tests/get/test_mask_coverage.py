"""Size, new genes and overlap of a mask's gene sets."""

from __future__ import annotations

import numpy as np
import pytest
import scanpy as sc
from anndata import AnnData

import tosica

pytestmark = pytest.mark.filterwarnings("ignore:The '.*' option is deprecated")


def masked(**kwargs: object) -> AnnData:
    adata = AnnData(np.ones((2, 6), dtype=np.float32))
    adata.var_names = list("ABCDEF")
    sets = {"small": list("AB"), "large": list("ABCD"), "apart": ["E"]}
    tosica.pp.build_mask(adata, sets, **{"min_genes": 1, **kwargs})  # type: ignore[arg-type]
    return adata


def test_table() -> None:
    adata = masked()
    before = adata.copy()
    table = tosica.get.mask_coverage(adata)
    assert table.index.to_list() == ["large", "small", "apart"]
    assert table["n_genes"].to_list() == [4, 2, 1]
    assert table["n_new"].to_list() == [4, 0, 1]
    assert table["n_covered"].to_list() == [4, 4, 5]
    assert table["max_jaccard"].to_list() == [0.5, 0.5, 0]
    assert table["nearest"].to_list()[:2] == ["small", "large"]
    assert table["nearest"].isna().to_list() == [False, False, True]
    assert list(adata.uns) == list(before.uns)


def test_agrees_with_the_mask_on_real_data() -> None:
    adata = sc.datasets.pbmc68k_reduced().raw.to_adata()
    tosica.pp.build_mask(adata, key_added="m", n_unannotated=2, max_gene_sets=300)
    table = tosica.get.mask_coverage(adata, key="m")
    mask = adata.varm["m"].toarray()[:, :300]
    assert table["n_covered"].iloc[-1] == adata.uns["m"]["n_genes_covered"]
    assert sorted(table["n_genes"]) == sorted(mask.sum(0))
    names = list(adata.uns["m"]["gene_sets"])
    for name, row in table.iloc[::37].iterrows():
        this = mask[:, names.index(name)]
        others = [
            (this & mask[:, i]).sum() / (this | mask[:, i]).sum()
            for i in range(300)
            if names[i] != name
        ]
        assert row["max_jaccard"] == pytest.approx(max(others))


def test_single_set() -> None:
    table = tosica.get.mask_coverage(masked(max_gene_sets=1))
    assert table["max_jaccard"].to_list() == [0]


def test_no_mask() -> None:
    adata = AnnData(np.ones((2, 2), dtype=np.float32))
    with pytest.raises(KeyError, match=r"There is no mask in adata\.varm\['tosica_mask'\] and"):
        tosica.get.mask_coverage(adata)


def test_mask_of_another_call() -> None:
    adata = masked()
    adata.uns["tosica_mask"]["gene_sets"] = adata.uns["tosica_mask"]["gene_sets"][1:]
    with pytest.raises(
        ValueError, match=r"has 3 gene sets and adata\.uns\['tosica_mask'\] names 2"
    ):
        tosica.get.mask_coverage(adata)


def test_no_gene_set() -> None:
    adata = masked(n_unannotated=1)
    adata.varm["tosica_mask"] = adata.varm["tosica_mask"][:, 3:]
    adata.uns["tosica_mask"]["gene_sets"] = adata.uns["tosica_mask"]["gene_sets"][3:]
    with pytest.raises(ValueError, match=r"^The mask in adata\.varm\['tosica_mask'\] has no gene"):
        tosica.get.mask_coverage(adata)
