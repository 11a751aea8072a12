"""Counts that are not whole are taken as counts, and nothing else is."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from _fractional import alevin, decontx, deep_and_shallow, soupx
from scipy.stats import rankdata

import tosica
from tosica.data import CellMatrix, are_fractional_counts, detect_values
from tosica.data._reference_scale import scale_of

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = deep_and_shallow()
CLUSTERS = np.arange(len(COUNTS)) % 3
SHARES = COUNTS / COUNTS.sum(1, keepdims=True)
SOUPX = soupx(COUNTS, CLUSTERS)
OF_SOUPX = SOUPX / SOUPX.sum(1, keepdims=True)
LENGTH = np.random.default_rng(1).lognormal(0, 1, COUNTS.shape[1])
TPM = 1e6 * (COUNTS / LENGTH) / (COUNTS / LENGTH).sum(1, keepdims=True)
VARIABLE = np.sort(np.argsort(-np.log1p(1e4 * SHARES).var(0))[:120])
LOG = np.log1p(1e4 * SHARES)
STANDARDIZED = np.clip((LOG - LOG.mean(0)) / np.maximum(LOG.std(0), 1e-9), 0, 10)
FRACTIONAL = {
    "SoupX": SOUPX,
    "SoupX, much": soupx(COUNTS, CLUSTERS, 0.3),
    "SoupX, variable genes": SOUPX[:, VARIABLE],
    "DecontX": decontx(COUNTS),
    "alevin": alevin(COUNTS),
    "alevin, much": alevin(COUNTS, 0.8),
    "one value": np.where((np.arange(COUNTS.size) == 9).reshape(COUNTS.shape), 1.5, COUNTS),
}
OTHERS = {
    "counts": COUNTS,
    "log1p": LOG,
    "log1p, variable genes": LOG[:, VARIABLE],
    "log1p of SoupX": np.log1p(1e4 * OF_SOUPX),
    "log1p of SoupX, variable genes": np.log1p(1e4 * OF_SOUPX)[:, VARIABLE],
    "log1p of SoupX, not normalised": np.log1p(SOUPX),
    "log2 of TPM": np.log2(1 + TPM),
    "log2 of TPM, variable genes": np.log2(1 + TPM)[:, VARIABLE],
    "TPM": TPM,
    "TPM, variable genes": TPM[:, VARIABLE],
    "CP10k": 1e4 * SHARES,
    "CP10k, variable genes": 1e4 * SHARES[:, VARIABLE],
    "fractions": SHARES,
    "square roots": np.sqrt(1e4 * SHARES),
    "square roots of TPM, variable genes": np.sqrt(TPM)[:, VARIABLE],
    # Few counts, most of which are 1.
    "log2 of raw counts": np.log2(1 + np.minimum(COUNTS, 6)),
    "square roots of raw counts": np.sqrt(np.minimum(COUNTS, 6)),
    "log2 of one cell's raw counts": np.log2(1 + COUNTS[:1]),
    "z-scores": STANDARDIZED,
    "z-scores, variable genes": STANDARDIZED[:, VARIABLE],
    "ranks": rankdata(COUNTS, axis=1),
    "multiplied": COUNTS * 100.5,
    "half counts, half log1p": np.where(CLUSTERS[:, None] > 0, COUNTS, LOG),
    "half alevin, half log1p": np.where(CLUSTERS[:, None] > 0, alevin(COUNTS), LOG),
}


def query(x: np.ndarray) -> ad.AnnData:
    adata = ad.AnnData(x.astype(np.float32))
    adata.obs_names = [f"cell{i}" for i in range(adata.n_obs)]
    adata.var_names = [f"G{i}" for i in range(adata.n_vars)]
    return adata


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", FRACTIONAL)
def test_counts_that_are_not_whole(name: str, form: Any, caplog: pytest.LogCaptureFixture) -> None:
    adata = query(FRACTIONAL[name])
    adata.X = form(adata.X)
    assert are_fractional_counts(adata.X)
    with caplog.at_level(logging.INFO, "tosica"):
        assert scale_of(CellMatrix(adata)).kind == "counts"
    assert (
        "adata.X holds counts that are not whole, as SoupX, CellBender or alevin leave them; they "
        "are taken as they are"
    ) in caplog.messages


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_are_not_taken_for_counts(name: str) -> None:
    x = OTHERS[name].astype(np.float32)
    for block in (x, sp.csr_matrix(x)):
        assert not are_fractional_counts(block)
        if not (x == np.rint(x)).all():
            with contextlib.suppress(ValueError):
                assert detect_values(block, "adata.X") == "log1p"


@pytest.mark.parametrize("value", [np.nan, np.inf, -1])
def test_wrong_values_are_none(value: float) -> None:
    x = SOUPX.copy()
    x[3, 3] = value
    assert not are_fractional_counts(x)
    with pytest.raises(ValueError, match=r"holds (NaN|infinity|negative)"):
        detect_values(x, "adata.X", fractional=True)


def test_no_cells_and_zeros() -> None:
    assert not are_fractional_counts(SOUPX[:0])
    assert not are_fractional_counts(np.zeros((5, 4)))


@pytest.mark.parametrize("n", [1, 3])
def test_a_few_cells_with_shared_reads_are_counts(n: int) -> None:
    assert detect_values(alevin(COUNTS)[:n], "adata.X") == "counts"


def test_what_cannot_be_told_says_what_to_do() -> None:
    x = SOUPX[:3] * 20
    with pytest.raises(ValueError, match=r"Give counts \(those of SoupX or alevin rounded: np"):
        scale_of(CellMatrix(query(x)))
    assert scale_of(CellMatrix(query(np.rint(x)))).kind == "counts"


def reference(x: np.ndarray) -> ad.AnnData:
    """Every second cell."""
    adata = query(x[::2])
    adata.obs["kind"] = pd.Categorical(np.array(["a", "b", "c"])[CLUSTERS[::2]])
    sets = {f"s{i}": [f"G{j}" for j in range(40 * i, 40 * i + 40)] for i in range(4)}
    tosica.pp.build_mask(adata, sets, select="variable", max_gene_sets=3)
    return adata


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> tosica.TOSICA:
    train = request.getfixturevalue("train")
    return train(reference(COUNTS))


@pytest.mark.parametrize("name", ["SoupX", "DecontX", "alevin", "alevin, much"])
def test_query_of_counts_that_are_not_whole(
    model: tosica.TOSICA, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    truth = np.array(["a", "b", "c"])[CLUSTERS[1::2]]
    cells = query(FRACTIONAL[name][1::2])
    with caplog.at_level(logging.INFO, "tosica"):
        found = model.predict(cells)
    assert "query: adata.X holds counts" in caplog.messages
    assert (found == truth).mean() > 0.95
    # What becomes of them is what becomes of other counts.
    [batch] = list(model.iter_batches(cells, batch_size=256))
    own = FRACTIONAL[name][1::2].astype(np.float32)
    expected = np.log1p(1e4 * own / own.sum(1, keepdims=True))
    np.testing.assert_allclose(batch.x, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["SoupX", "alevin"])
def test_reference_of_counts_that_are_not_whole(train: Any, name: str) -> None:
    found = train(reference(FRACTIONAL[name])).predict(query(COUNTS[1::2]))
    assert (found == np.array(["a", "b", "c"])[CLUSTERS[1::2]]).mean() > 0.95


def test_on_disk_and_by_command(
    model: tosica.TOSICA, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tosica import cli

    cells = query(SOUPX[1::2])
    cells.write_h5ad(tmp_path / "query.h5ad")
    output = tmp_path / "annotated.h5ad"
    tosica.tl.annotate_file(tmp_path / "query.h5ad", model, output, cells_per_part=7)
    assert list(ad.read_h5ad(output).obs["tosica_prediction"]) == list(model.predict(cells))
    assert cli.main(["info", str(tmp_path / "query.h5ad")]) == 0
    assert "counts" in capsys.readouterr().out


# ------------------------------------------------------------------ real cells


@pytest.mark.data
@pytest.mark.parametrize("depth", [1, 0.1])
def test_kangs_cells(shared: Path, depth: float) -> None:
    adata = ad.read_h5ad(shared / "kang_pbmc.h5ad")[::5].copy()
    counts, rng = adata.X.toarray().astype(np.float64), np.random.default_rng(0)
    if depth < 1:
        counts = rng.binomial(counts.astype(int), depth).astype(np.float64)
    counts = counts[counts.sum(1) > 5][:, counts.sum(0) > 0]
    clusters = adata.obs["cluster_id"].cat.codes.to_numpy()[: len(counts)]
    corrected = soupx(counts, clusters)
    shares = corrected / np.maximum(corrected.sum(1, keepdims=True), 1e-9)
    for x in (corrected, decontx(counts), alevin(counts)):
        assert are_fractional_counts(x.astype(np.float32))
    genes = np.argsort(-np.log1p(1e4 * shares).var(0))[:300]
    for x in (
        np.log1p(1e4 * shares),
        np.log1p(1e4 * shares[:, genes]),
        np.sqrt(1e4 * shares[:, genes]),
        1e4 * shares[:, genes],
        np.log1p(corrected),
    ):
        assert not are_fractional_counts(x.astype(np.float32))
