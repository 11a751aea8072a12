"""Published cells: from a folder, or downloaded from a server on this machine and converted."""

from __future__ import annotations

import _r_files as r
import numpy as np
import pytest

import tosica
from tosica.datasets._public import PUBLISHED

SHAPES = {
    "kang": (1556, 1267),
    "kang_unlabeled": (1000, 9015),
    "dc_progenitors": (245, 2000),
    "cite_pbmc": (500, 12029),
}


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOSICA_DATA", raising=False)


@pytest.fixture
def at_server(file_server, monkeypatch):
    """Every data set is at the server."""
    for name, data in PUBLISHED.items():
        monkeypatch.setitem(
            PUBLISHED, name, data._replace(url=f"{file_server.url}/data.rda")
        )
    return file_server


def counts_of(adata):
    return r.sparse(adata.X, list(adata.var_names), list(adata.obs_names))


def as_muscat(adata):
    """A SingleCellExperiment, with a level that no cell has and a column that is not wanted."""
    columns = {
        key: r.factor(
            adata.obs[key].cat.codes.to_numpy() + 1, [*adata.obs[key].cat.categories]
        )
        for key in ("cluster_id", "sample_id", "group_id")
    }
    columns["cluster_id"].attributes["levels"].value.append("Megakaryocytes")
    cells = r.s4(
        "DFrame",
        rownames=r.strings(*adata.obs_names),
        listData=r.named(**columns, n=r.vector(np.zeros(adata.n_obs))),
    )
    assays = r.s4(
        "SimpleAssays",
        data=r.s4("SimpleList", listData=r.named(counts=counts_of(adata))),
    )
    return {"example_sce": r.s4("SingleCellExperiment", colData=cells, assays=assays)}


def as_scorpius(adata):
    cells, genes = list(adata.obs_names), list(adata.var_names)
    log2 = adata.X.toarray().astype(float) / np.log(2)
    stage = r.factor(
        adata.obs["stage"].cat.codes.to_numpy() + 1, ["MDP", "CDP", "PreDC"]
    )
    info = r.frame(cells, group_name=stage)
    return {
        "ginhoux": r.named(expression=r.matrix(log2, cells, genes), sample_info=info)
    }


def as_citefuse(mdata):
    rna, protein = mdata["rna"].copy(), mdata["protein"]
    rna.var_names = "hg19_" + rna.var_names
    return {
        "CITEseq_example": r.named(
            RNA=counts_of(rna), ADT=counts_of(protein), HTO=r.plain_list()
        )
    }


def as_harmony(adata):
    return {"pbmc.ctrl": counts_of(adata)}


def values(data):
    parts = data.mod.values() if hasattr(data, "mod") else [data]
    return [part.X.toarray() for part in parts]


@pytest.mark.data
@pytest.mark.parametrize("name", SHAPES)
def test_reads_a_folder_of_ones_own(name, shared, monkeypatch):
    monkeypatch.setenv("TOSICA_DATA", str(shared))
    found = getattr(tosica.datasets, name)()
    assert found.shape == SHAPES[name]
    # The file of the unlabelled cells has a column that says nothing of them.
    columns = {"kang": 3, "kang_unlabeled": 0, "dc_progenitors": 1, "cite_pbmc": 1}
    assert len(found.obs.columns) == columns[name]
    # Each call gives cells of its own.
    assert getattr(tosica.datasets, name)() is not found


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "as_r"),
    [
        ("kang", as_muscat),
        ("kang_unlabeled", as_harmony),
        ("dc_progenitors", as_scorpius),
        pytest.param("cite_pbmc", as_citefuse, marks=pytest.mark.slow),
    ],
)
def test_downloads_and_converts_once(
    name, as_r, shared, at_server, tmp_path, monkeypatch
):
    with monkeypatch.context() as folder:
        folder.setenv("TOSICA_DATA", str(shared))
        expected = getattr(tosica.datasets, name)()
    at_server.files["data.rda"] = r.write_rda(
        tmp_path / "x.rda", **as_r(expected)
    ).read_bytes()
    for _ in range(2):
        found = getattr(tosica.datasets, name)()
        assert list(found.obs) == list(expected.obs)
        for key in found.obs:
            assert found.obs[key].astype(str).equals(expected.obs[key].astype(str))
            assert list(found.obs[key].cat.categories) == list(
                expected.obs[key].cat.categories
            )
        for one, other in zip(values(found), values(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
            assert one.dtype == np.float32
    assert at_server.asked == ["data.rda"]
    (kept,) = (tmp_path / "cache" / "datasets").iterdir()
    assert kept.name == PUBLISHED[name].file


@pytest.mark.data
def test_other_contents_are_not_kept(shared, at_server, tmp_path, monkeypatch):
    monkeypatch.setenv("TOSICA_DATA", str(shared))
    changed = tosica.datasets.kang()
    changed.X.data[0] += 1
    monkeypatch.delenv("TOSICA_DATA")
    at_server.files["data.rda"] = r.write_rda(
        tmp_path / "x.rda", **as_muscat(changed)
    ).read_bytes()
    with pytest.raises(
        ValueError, match=r"data\.rda does not hold the cells, .*TOSICA_DATA"
    ):
        tosica.datasets.kang()
    assert list((tmp_path / "cache" / "datasets").iterdir()) == []
    changed.write_h5ad(tmp_path / "kang_pbmc.h5ad")
    monkeypatch.setenv("TOSICA_DATA", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"kang_pbmc\.h5ad does not hold the cells, .*replace it"
    ):
        tosica.datasets.kang()


def test_without_a_server_one_sentence(at_server):
    at_server.shutdown()
    at_server.server_close()
    with pytest.raises(OSError, match=r"127\.0\.0\.1") as caught:
        tosica.datasets.kang()
    assert "TOSICA_DATA" in caught.value.__notes__[0]


def test_not_at_the_server(at_server):
    with pytest.raises(OSError, match="404"):
        tosica.datasets.kang()


def test_cache_that_cannot_be_written(at_server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"cannot be written \(.*TOSICA_CACHE"):
        tosica.datasets.kang()
    assert at_server.asked == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>log in</html>", "NotImplementedError: Unknown file format"),
        (
            b"RDX2\nX\n\x00\x00",
            "ValueError: buffer size must be a multiple of element size",
        ),
    ],
)
def test_something_else_at_the_server(content, reason, at_server, tmp_path):
    at_server.files["data.rda"] = content
    with pytest.raises(ValueError, match=rf"is damaged, .*\({reason}\)"):
        tosica.datasets.kang()
    assert list((tmp_path / "cache" / "datasets").iterdir()) == []


def test_another_object_at_the_server(at_server, tmp_path):
    at_server.files["data.rda"] = r.write_rda(
        tmp_path / "x.rda", iris=r.plain_list()
    ).read_bytes()
    with pytest.raises(
        ValueError, match=r"has no object 'example_sce', so it was not kept"
    ):
        tosica.datasets.kang()


def test_folder_without_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TOSICA_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"in TOSICA_DATA, has no kang_pbmc\.h5ad: put it"
    ):
        tosica.datasets.kang()


@pytest.mark.parametrize("name", ["kang", "cite_pbmc"])
def test_file_that_is_not_whole(name, tmp_path, monkeypatch):
    (tmp_path / PUBLISHED[name].file).write_bytes(b"no HDF5")
    monkeypatch.setenv("TOSICA_DATA", str(tmp_path))
    with pytest.raises(OSError, match=r"cannot be read .*: delete it, or replace it"):
        getattr(tosica.datasets, name)()
