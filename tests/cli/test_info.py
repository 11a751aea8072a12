"""``tosica info``: files and models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anndata import AnnData

    import tosica


def test_a_model(run: Any, model_folder: Path, toy_model: tosica.TOSICA) -> None:
    found = json.loads(run("info", model_folder, "--json").out)
    assert found["kind"] == "model"
    assert found["fingerprint"] == toy_model.fingerprint
    assert found["labels"] == ["a", "b", "c"]
    assert found["n_gene_sets"] == len(toy_model.gene_sets)
    assert found["reference"] == {"labels_key": "kind"}
    assert found["n_genes"] == 30
    text = run("info", model_folder).out
    assert "scale: counts; taken as log1p of counts per 10 000\n" in text
    assert "\n  labels_key: kind\n" in text


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_cells(
    ending: str,
    run: Any,
    toy_query: AnnData,
    toy_model: tosica.TOSICA,
    tmp_path: Path,
    write: Callable[[AnnData, Path], None],
) -> None:
    path = tmp_path / f"cells{ending}"
    toy_model.annotate(toy_query)
    toy_query.layers["counts"] = toy_query.X.copy()
    toy_query.X = toy_query.X.toarray() - 1
    write(toy_query, path)
    result = run("info", path, "--json")
    found = json.loads(result.out)
    assert (found["n_cells"], found["n_genes"]) == (60, 30)
    assert found["genes"] == ["G0", "G1", "G2", "G3", "G4"]
    assert found["X"].startswith("neither counts nor log-normalised: ")
    assert found["layers"] == {"counts": "counts"}
    assert found["raw"] is None
    assert {"kind", "tosica_prediction"} <= set(found["obs"])
    annotation = found["annotations"]["tosica"]
    assert annotation["model"] == toy_model.fingerprint
    assert annotation["labels"] == ["a", "b", "c"]
    assert f"    model: {toy_model.fingerprint}\n" in run("info", path).out


def test_long_lists_are_cut_in_text(run: Any, toy_query: AnnData, tmp_path: Path) -> None:
    for i in range(20):
        toy_query.obs[f"column{i}"] = i
    toy_query.write_h5ad(tmp_path / "q.h5ad")
    assert ", … (22)\n" in run("info", tmp_path / "q.h5ad").out


def test_nothing(run: Any, tmp_path: Path) -> None:
    result = run("info", tmp_path / "nothing")
    path = str(tmp_path / "nothing")
    assert result == (1, "", f"tosica: error: There is no file or folder {path!r}.\n")
