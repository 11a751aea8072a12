"""The demo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anndata as ad
import matplotlib.image
import pytest
import scanpy as sc

from tosica import _demo, cli
from tosica.model import TOSICA

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def quick_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the demo's model for two epochs; the whole demo is run by the project's checks."""
    train = TOSICA.train

    def short(self: TOSICA) -> None:
        train(self, max_epochs=2, enable_progress_bar=False)

    monkeypatch.setattr(TOSICA, "train", short)


@pytest.mark.slow
def test_demo_writes_what_it_says(quick_training, tmp_path, capsys):
    out = tmp_path / "made" / "by demo"
    assert cli.main(["demo", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for column in ("accuracy", "macro-F1", "seconds", "tosica", "logistic regression"):
        assert column in printed
    names = {path.name for path in out.iterdir()}
    assert names == {"annotated.h5ad", "umap.png", "confusion.png", "gene_set_heatmap.png"}
    assert all(str(out / name) in printed for name in names)
    annotated = ad.read_h5ad(out / "annotated.h5ad")
    assert annotated.shape == (210, 765)
    # The heatmap shows what gene sets contribute.
    for key in ("tosica", "tosica_presence"):
        assert annotated.obsm[f"X_{key}"].shape == (210, len(annotated.uns[key]["gene_sets"]))
    for name in names - {"annotated.h5ad"}:
        picture = matplotlib.image.imread(out / name)
        assert min(picture.shape[:2]) > 300
        assert picture.std() > 0.05


def test_demo_compares_on_the_same_cells():
    reference, query = _demo._split(seed=0)
    assert (reference.n_obs, query.n_obs) == (490, 210)
    assert not set(reference.obs_names) & set(query.obs_names)
    assert (reference.var_names == query.var_names).all()
    known = sc.datasets.pbmc68k_reduced()
    labels = "bulk_labels"
    assert set(query.obs[labels]) == set(known.obs[labels])
    assert list(reference.uns[f"{labels}_colors"]) == list(known.uns[f"{labels}_colors"])


def test_demo_seed_changes_the_split():
    first, second = (_demo._split(seed)[1].obs_names for seed in (0, 1))
    assert list(first) != list(second)


def test_out_that_is_a_file_is_refused(tmp_path, run):
    path = tmp_path / "file"
    path.write_text("kept")
    result = run("demo", "--out", path)
    assert result.code == 2
    assert "is a file; give a folder" in result.err
    assert path.read_text() == "kept"


@pytest.mark.parametrize("seed", ["-1", "4294967296", "one"])
def test_seeds_are_what_numpy_and_torch_take(seed: str, run: Any) -> None:
    assert run("demo", "--seed", seed).code == 2


def test_scores_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Any) -> None:
    def printed(out: Path, *, seed: int) -> Any:
        print("not JSON")
        return _demo.pd.DataFrame({"accuracy": [0.5]}, index=[f"{out.name} {seed}"])

    monkeypatch.setattr(_demo, "run_demo", printed)
    result = run("demo", "--out", tmp_path, "--seed", 3, "--json")
    scores = {f"{tmp_path.name} 3": {"accuracy": 0.5}}
    assert json.loads(result.out) == {"out": str(tmp_path), "scores": scores}
