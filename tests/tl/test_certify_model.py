"""The script that certifies a model by its reference."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "certify_model.py"
SHARES = [
    "held_out_accuracy",
    "accuracy",
    "expected_calibration_error",
    "linear_share",
    "deletion, genes",
    "insertion, genes",
    "evidence",
    "evidence_permuted",
    "halves, gene sets",
]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("certify_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(model, tmp_path):
    """A saved model with a card, and its reference."""
    model.save(tmp_path / "model")
    model.adata.write_h5ad(tmp_path / "reference.h5ad")
    (tmp_path / "model" / "README.md").write_text("# A model\n\n## Labels\n\nB\n")
    return tmp_path


def test_the_script_adds_its_measurements_to_the_card(
    script, folder, model, monkeypatch, capsys
):
    arguments = "model reference.h5ad --n-cells 240 --max-epochs 2"
    monkeypatch.setattr(sys, "argv", ["certify_model.py", *arguments.split()])
    monkeypatch.chdir(folder)
    script.main()
    scores = {}
    for line in capsys.readouterr().out.strip().splitlines():
        name, value = line.rsplit(maxsplit=1)
        scores[name.strip()] = float(value)
    assert scores["held_out_accuracy"] == pytest.approx(
        model.held_out_accuracy_, abs=1e-6
    )
    assert all(0 <= scores[name] <= 1 for name in SHARES)
    assert scores["completeness_error"] <= 0.01
    assert scores["deletion, genes"] < scores["deletion, random"]
    assert scores["insertion, genes"] > scores["insertion, random"]
    assert 0.4 < scores["accuracy"] < 0.95
    assert scores["evidence_permuted"] <= scores["evidence"]
    assert scores["halves, genes"] > 0.4
    assert 200 < scores["n_cells"] <= 240
    card = Path("model/README.md").read_text()
    assert card.startswith("# A model\n\n## Labels\n\nB\n\n## Certificate\n")
    assert f"| halves, genes | {scores['halves, genes']:.4g} |" in card


def test_a_second_certificate_replaces_the_first(script, tmp_path):
    card = tmp_path / "README.md"
    for value in (0.5, 0.75):
        script.write_certificate(script.pd.Series({"accuracy": value}), card)
    assert card.read_text().count("## Certificate") == 1
    assert "| accuracy | 0.75 |" in card.read_text()
