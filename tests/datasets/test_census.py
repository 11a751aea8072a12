"""References by the name of a tissue, from a small census that the tests make."""

import errno
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tosica
from tosica.datasets import _census
from tosica.datasets._census_client import Experiment, open_census

pytest.importorskip("cellxgene_census", reason="needs the extra census")

import cellxgene_census
import tiledbsoma
from _small_census import (
    CD4,
    CD8,
    CELLS,
    MONOCYTE,
    VERSION,
    B,
    T,
    genes,
    make_cells,
    make_census,
)


def n_cells(**filters):
    """Number of cells of each type."""
    table = tosica.datasets.census("glow organ", dry_run=True, **filters)
    return dict(zip(table["cell_type_ontology_term_id"], table["n_cells"], strict=True))


ALL = {B: 180, CD4: 120, MONOCYTE: 50, T: 40, CD8: 40}


# --------------------------------------------------------------------------- which cells


def test_a_dry_run_counts_cells_and_downloads_none(small_census, tmp_path):
    table = tosica.datasets.census("glow organ", n_per_type=50, dry_run=True)
    assert list(table["cell_type"][:3]) == [
        "B cell",
        "CD4-positive, alpha-beta T cell",
        "monocyte",
    ]
    assert list(table["n_cells"]) == [180, 120, 50, 40, 40]
    assert list(table["n_taken"]) == [50, 50, 50, 40, 40]
    # A value and its gene take eight bytes.
    assert 0.03 < table["megabytes"][0] < 0.2
    assert not (tmp_path / "cache").exists()


def test_cells_that_are_not_primary_and_cultures_and_panels_are_left_out(small_census):
    assert n_cells() == ALL


def test_types_with_few_cells_are_left_out_unless_fewer_are_enough(small_census):
    assert n_cells(min_cells=3)["CL:0000623"] == 3
    assert n_cells(min_cells=100) == {B: 180, CD4: 120}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"disease": None}, ALL | {MONOCYTE: 90}),
        ({"disease": "Cold"}, {MONOCYTE: 40}),
        ({"assay": ["10x 5' v2"]}, {B: 60}),
        ({"suspension_type": "nucleus"}, {CD4: 40}),
        ({"development_stage": "20-year-old stage"}, {B: 30}),
        ({"age": (18, 30)}, {B: 30}),
    ],
    ids=lambda value: str(next(iter(value.items()))) if value else "",
)
def test_filters(small_census, filters, expected):
    assert n_cells(**filters) == expected


@pytest.mark.parametrize("name", ["Upper glow organ", "UBERON:9000002"])
def test_a_part_of_an_organ_is_found_by_name_and_by_term(small_census, name):
    table = tosica.datasets.census(name, dry_run=True)
    assert list(table["n_cells"]) == [30]


def test_cells_are_spread_over_data_sets_and_then_donors(small_census):
    adata = tosica.datasets.census("glow organ", n_per_type=48)
    b_cells = adata.obs[adata.obs["cell_type"] == "B cell"]
    assert b_cells["batch"].astype(str).value_counts().to_dict() == {
        "study-a/donor 1": 12,
        "study-a/donor 2": 12,
        "study-b/donor 1": 24,
    }


def test_another_organism(small_census):
    for name in ("mouse", "Mus musculus"):
        table = tosica.datasets.census("glow organ", name, dry_run=True)
        assert table["n_cells"].sum() == 80


# --------------------------------------------------------------------------- what a reference holds


def test_the_counts_are_those_of_the_cells_by_ensembl_id_and_symbol(small_census):
    adata = tosica.datasets.census("glow organ")
    source = make_cells(CELLS)
    positions = adata.obs_names.astype(int).to_numpy()
    expected = source[positions][:, adata.var_names]
    assert (adata.X != expected.X).nnz == 0
    assert adata.X.dtype == np.float32
    assert list(adata.obs["cell_type"]) == list(expected.obs["cell_type"])
    # All that both studies measured.
    assert list(adata.var["feature_name"]) == list(genes().index[:-1])


def test_types_that_stand_above_others_are_labels_of_their_own(small_census):
    adata = tosica.datasets.census("glow organ")
    types = adata.uns["census"]["types"].set_index("cell_type")
    assert types.loc["T cell", "n_below"] == 2
    assert types["n_below"].sum() == 2
    is_t = adata.obs["cell_type"] == "T cell"
    assert set(adata.obs.loc[is_t, "cell_type_ontology_term_id"]) == {T}


def test_the_version_and_what_to_cite_are_written_down(small_census):
    record = tosica.datasets.census("glow organ").uns["census"]
    assert record["version"] == VERSION
    assert record["license"] == "CC BY 4.0"
    assert list(record["filters"]["disease"]) == ["normal"]
    datasets = record["datasets"].set_index("dataset_id")
    assert list(datasets.index) == ["study-a", "study-b"]
    assert datasets.loc["study-b", "citation"].endswith("10.1/study-b")
    assert datasets["n_taken"].sum() == sum(ALL.values())


# --------------------------------------------------------------------------- cache and failures


def test_a_second_call_reads_the_cache(small_census, monkeypatch):
    adata = tosica.datasets.census("glow organ")
    monkeypatch.delattr(Experiment, "counts")
    from_cache = tosica.datasets.census("glow organ")
    assert (from_cache.X != adata.X).nnz == 0
    pd.testing.assert_frame_equal(from_cache.obs, adata.obs)


def test_a_download_goes_on_after_a_break(small_census, tmp_path, monkeypatch):
    monkeypatch.setattr(_census, "_CELLS_PER_PART", 200)
    read = Experiment.counts
    asked = []

    def break_once(self, joinids, columns):
        asked.append(len(joinids))
        if len(asked) == 2:
            raise ConnectionError("gone")
        return read(self, joinids, columns)

    monkeypatch.setattr(Experiment, "counts", break_once)
    with pytest.raises(ConnectionError):
        tosica.datasets.census("glow organ")
    adata = tosica.datasets.census("glow organ")
    assert asked == [200, 200, 200, 30]
    expected = make_cells(CELLS)[adata.obs_names.astype(int).to_numpy()][
        :, adata.var_names
    ]
    assert (adata.X != expected.X).nnz == 0
    assert not list((tmp_path / "cache").rglob("*.parts"))


def test_a_full_disk_is_one_sentence_and_harms_nothing(small_census, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(_census.sp, "save_npz", refuse)
        with pytest.raises(OSError, match=r"could not be written .No space left"):
            tosica.datasets.census("glow organ")
    assert tosica.datasets.census("glow organ").n_obs == sum(ALL.values())


def test_a_damaged_file_of_the_cache_is_named(small_census, tmp_path):
    tosica.datasets.census("glow organ")
    (path,) = (tmp_path / "cache").rglob("*.h5ad")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(OSError, match=f"{path} cannot be read .*delete it"):
        tosica.datasets.census("glow organ")


def test_a_cache_of_another_version_is_refused(small_census, tmp_path):
    adata = tosica.datasets.census("glow organ")
    (path,) = (tmp_path / "cache").rglob("*.h5ad")
    adata.uns["census"]["version"] = "2020-01-01"
    adata.write_h5ad(path)
    with pytest.raises(
        OSError,
        match=f"{path} holds cells of version 2020-01-01 .* {VERSION}: delete it",
    ):
        tosica.datasets.census("glow organ")


@pytest.fixture
def public(small_census, monkeypatch):
    """The small census as the public one, with two releases; remove ``network`` to be offline."""
    release = {"release_build": VERSION}
    monkeypatch.delenv("TOSICA_CENSUS")

    def directory():
        if not public.network:
            raise ConnectionError("no route")
        return {"stable": release, VERSION: release}

    def open_soma(*, census_version, tiledb_config):
        directory()
        assert census_version == VERSION
        context = tiledbsoma.SOMATileDBContext(tiledb_config=tiledb_config)
        return tiledbsoma.open(str(small_census), context=context)

    public.network = True
    monkeypatch.setattr(cellxgene_census, "get_census_version_directory", directory)
    monkeypatch.setattr(cellxgene_census, "open_soma", open_soma)
    return public


def test_a_release_in_the_cache_needs_no_network(public):
    tosica.datasets.census("glow organ")
    public.network = False
    assert tosica.datasets.census("glow organ", version=VERSION).n_obs > 0
    with pytest.raises(
        ConnectionError, match=f"of an earlier release: pass version='{VERSION}'"
    ):
        tosica.datasets.census("glow organ")


def test_without_a_network_there_is_one_sentence(public):
    public.network = False
    for version in ("stable", VERSION):
        with pytest.raises(ConnectionError, match=r"cannot be reached .*connection"):
            tosica.datasets.census("glow organ", version=version)


def test_a_release_that_there_is_not(public):
    with pytest.raises(ValueError, match="no version='stabel'; did you mean 'stable'"):
        tosica.datasets.census("glow organ", version="stabel")


def test_an_old_client_is_told_to_be_updated(small_census, monkeypatch):
    def refuse(**_):
        raise tiledbsoma.SOMAError("Unsupported format version 99")

    monkeypatch.setattr(cellxgene_census, "open_soma", refuse)
    with pytest.raises(OSError, match=r"format version 99.*pip install -U"):
        tosica.datasets.census("glow organ")


def test_tiles_are_ordered_where_they_are_read(small_census):
    """TileDB 2.30 ends Python now and then if a thread of its own orders them."""
    with open_census("stable") as census:
        config = census.root.context.native_context.config()
    assert config["sm.query.sparse_global_order.preprocess_tile_merge"] == "0"


def test_a_census_of_another_schema(tmp_path, monkeypatch):
    folder = make_census(
        tmp_path / "soma", schema="9.0.0", without="nnz", organisms=["mus_musculus"]
    )
    monkeypatch.setenv("TOSICA_CENSUS", str(folder))
    with (
        pytest.warns(UserWarning, match=r"follows version 9\.0\.0 .* written for 2"),
        pytest.raises(ValueError, match=r"cells have no 'nnz'.*update tosica"),
    ):
        tosica.datasets.census("glow organ", "mouse")


# --------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tissue": "glow orgn"}, "no tissue='glow orgn', .*did you mean 'glow organ'"),
        ({"tissue": "UBERON:1"}, "no tissue='UBERON:1', only 'UBERON:9000001'"),
        ({"organism": "zebra"}, "no cells of organism='zebra', only 'human', 'mouse'"),
        ({"disease": "glow fevr"}, "no disease='glow fevr', .*did you mean 'glow fev"),
        (
            {"tissue": "humming gland", "age": (1, 2)},
            "has 80 cells of 'humming gland' .*development_stage= leaves out 80 of",
        ),
        ({"min_cells": 500}, "as many cells as min_cells=500.*most frequent .* 180"),
        ({"version": "2020-01-01"}, f"is of version {VERSION}, not 2020-01-01"),
        ({"age": (60, 18)}, "age must be a pair of years"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_input(small_census, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        tosica.datasets.census(**{"tissue": "glow organ"} | arguments)


def test_no_folder_in_the_variable(monkeypatch):
    monkeypatch.setenv("TOSICA_CENSUS", "/nowhere")
    with pytest.raises(FileNotFoundError, match="folder in TOSICA_CENSUS"):
        tosica.datasets.census("glow organ")


def test_a_folder_that_is_no_census(small_census, monkeypatch):
    monkeypatch.setenv("TOSICA_CENSUS", str(Path(small_census) / "census_info"))
    with pytest.raises(ValueError, match="is no census: it has no 'census_data'"):
        tosica.datasets.census("glow organ")


def test_without_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "cellxgene_census", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tosica\[census\]'"):
        tosica.datasets.census("glow organ")


def test_a_model_of_a_tissue_has_no_dry_run():
    with pytest.raises(
        TypeError, match=r"tosica\.datasets\.census\(tissue, dry_run=True\)"
    ):
        tosica.datasets.tissue_model("lung", dry_run=True)
