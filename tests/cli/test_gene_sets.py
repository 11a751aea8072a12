"""``tosica gene-sets``: list, match and write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import scanpy as sc

import tosica

if TYPE_CHECKING:
    from pathlib import Path


def test_all_collections_are_listed(run: Any) -> None:
    result = run("gene-sets")
    table = tosica.gs.collections()
    assert all(name in result.out for name in table.index)
    rows = json.loads(run("gene-sets", "--json").out)["collections"]
    assert [row["name"] for row in rows] == list(table.index)
    assert next(row["n_genes"] for row in rows if not row["available"]) is None


def test_a_gmt_file_is_matched_and_written(run: Any, reference: Path, tmp_path: Path) -> None:
    sets = tosica.gs.read_gmt(tmp_path / "sets.gmt")
    output = tmp_path / "kept.gmt"
    with (tmp_path / "sets.gmt").open("a") as file:
        file.write("foreign\tna\tX1\tX2\tX3\tX4\tX5\n")
    arguments = ["gene-sets", tmp_path / "sets.gmt", "--for", reference, "-o", output]
    found = json.loads(run(*arguments, "--json").out)
    matched = found["reference"]
    assert (found["n_sets"], matched["n_sets"]) == (5, 4)
    assert (matched["n_genes"], matched["n_genes_covered"]) == (30, 24)
    assert tosica.gs.read_gmt(output) == sets
    result = run(*arguments, "--overwrite")
    assert result.code == 0
    assert "4 of them are kept, with 24 of 30 genes (80.0 %)" in result.out
    assert run(*arguments).code == 1


@pytest.mark.parametrize("name", ["gobp", "human_gobp"])
def test_a_collection_is_matched(name: str, run: Any, tmp_path: Path) -> None:
    path = tmp_path / "pbmc.h5ad"
    adata = sc.datasets.pbmc68k_reduced()
    adata.write_h5ad(path)
    found = json.loads(run("gene-sets", name, "--for", path, "--json").out)
    tosica.pp.build_mask(adata)
    assert found["gene_sets"] == "human_gobp"
    matched = found["reference"]
    assert matched["n_sets"] == len(adata.uns["tosica_mask"]["gene_sets"])
    assert matched["coverage"] == pytest.approx(adata.uns["tosica_mask"]["coverage"])


@pytest.mark.parametrize("name", ["nothing", "nothing.gmt"])
def test_what_does_not_exist(name: str, run: Any) -> None:
    result = run("gene-sets", name)
    assert result.code == 1
    assert name in result.err
    assert result.err.count("\n") == 1
