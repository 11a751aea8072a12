"""Published cells: from a folder, or downloaded from a server on this machine and converted."""

import hashlib

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
def serve(file_server, monkeypatch):
    """Serve the same file as every data set."""

    def put(content):
        file_server.files["data.rda"] = content
        for name, published in PUBLISHED.items():
            served = published._replace(
                url=f"{file_server.url}/data.rda",
                known_hash=hashlib.sha256(content).hexdigest(),
            )
            monkeypatch.setitem(PUBLISHED, name, served)

    put(b"")
    return put


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
    cells = list(adata.obs_names)
    genes = list(adata.var_names)
    log2 = adata.X.toarray().astype(float) / np.log(2)
    stage = r.factor(
        adata.obs["stage"].cat.codes.to_numpy() + 1, ["MDP", "CDP", "PreDC"]
    )
    info = r.frame(cells, group_name=stage)
    return {
        "ginhoux": r.named(expression=r.matrix(log2, cells, genes), sample_info=info)
    }


def as_citefuse(mdata):
    rna = mdata["rna"].copy()
    protein = mdata["protein"]
    rna.var_names = "hg19_" + rna.var_names
    return {
        "CITEseq_example": r.named(
            RNA=counts_of(rna), ADT=counts_of(protein), HTO=r.plain_list()
        )
    }


def as_harmony(adata):
    return {"pbmc.ctrl": counts_of(adata)}


def matrices(data):
    modalities = data.mod.values() if hasattr(data, "mod") else [data]
    return [adata.X.toarray() for adata in modalities]


@pytest.mark.data
@pytest.mark.parametrize("name", SHAPES)
def test_reads_the_users_folder(name, shared, monkeypatch):
    monkeypatch.setenv("TOSICA_DATA", str(shared))
    data = getattr(tosica.datasets, name)()
    assert data.shape == SHAPES[name]
    # The file of the unlabeled cells has a column that says nothing of them.
    n_columns = {"kang": 3, "kang_unlabeled": 0, "dc_progenitors": 1, "cite_pbmc": 1}
    assert len(data.obs.columns) == n_columns[name]
    assert getattr(tosica.datasets, name)() is not data


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
    name, as_r, shared, serve, file_server, tmp_path, monkeypatch
):
    with monkeypatch.context() as folder:
        folder.setenv("TOSICA_DATA", str(shared))
        expected = getattr(tosica.datasets, name)()
    serve(r.write_rda(tmp_path / "x.rda", **as_r(expected)).read_bytes())
    for _ in range(2):
        data = getattr(tosica.datasets, name)()
        assert list(data.obs) == list(expected.obs)
        for key in data.obs:
            assert data.obs[key].astype(str).equals(expected.obs[key].astype(str))
            assert list(data.obs[key].cat.categories) == list(
                expected.obs[key].cat.categories
            )
        for matrix, expected_matrix in zip(
            matrices(data), matrices(expected), strict=True
        ):
            np.testing.assert_allclose(matrix, expected_matrix, rtol=1e-6)
            assert matrix.dtype == np.float32
    assert file_server.asked == ["data.rda"]
    cached = [path.name for path in (tmp_path / "cache" / "datasets").iterdir()]
    assert cached == [PUBLISHED[name].file]


def test_other_contents_are_not_cached(serve, file_server, tmp_path):
    file_server.files["data.rda"] = b"<html>log in</html>"
    with pytest.raises(ValueError, match="does not match the known hash"):
        tosica.datasets.kang()
    assert list((tmp_path / "cache" / "datasets").iterdir()) == []


def test_without_a_server_one_sentence(serve, file_server):
    file_server.shutdown()
    file_server.server_close()
    with pytest.raises(
        OSError,
        match=r"data\.rda cannot be downloaded \(ConnectionError\): check the "
        r"connection and try again, or set TOSICA_DATA to a folder that has "
        r"kang_pbmc\.h5ad\.$",
    ):
        tosica.datasets.kang()


def test_not_at_the_server(serve, file_server):
    file_server.files.clear()
    with pytest.raises(OSError, match=r"\(HTTP status 404\)"):
        tosica.datasets.kang()


def test_cache_that_cannot_be_written(serve, file_server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"cannot be written \(.*TOSICA_CACHE"):
        tosica.datasets.kang()
    assert file_server.asked == []


def test_folder_without_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TOSICA_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"in TOSICA_DATA, has no kang_pbmc\.h5ad: put it"
    ):
        tosica.datasets.kang()


@pytest.mark.parametrize("name", ["kang", "cite_pbmc"])
def test_file_that_is_damaged(name, tmp_path, monkeypatch):
    (tmp_path / PUBLISHED[name].file).write_bytes(b"no HDF5")
    monkeypatch.setenv("TOSICA_DATA", str(tmp_path))
    with pytest.raises(OSError, match=r"cannot be read .*: delete it, or replace it"):
        getattr(tosica.datasets, name)()
