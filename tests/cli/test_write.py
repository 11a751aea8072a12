"""What commands write, and that it is whole or not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anndata as ad
import pandas as pd
import pytest
from _killed import with_full_disk
from anndata.io import write_elem

from tosica.cli._write import check_free, write_cells, write_table

if TYPE_CHECKING:
    from anndata import AnnData


@pytest.mark.parametrize("ending", [".h5ad", ".zarr"])
def test_cells_replace_what_was_there(ending: str, toy_query: AnnData, tmp_path: Path) -> None:
    path = tmp_path / f"cells{ending}"
    for n_obs in (60, 20):
        write_cells(toy_query[:n_obs].copy(), path)
        read = ad.read_zarr if ending == ".zarr" else ad.read_h5ad
        assert read(path).n_obs == n_obs
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [".h5ad", ".csv", ".parquet"])
def test_a_full_disk_leaves_what_was_there(ending: str, toy_query: AnnData, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    toy_query.obs["long"] = [f"{i}" * 500 for i in range(60)]
    path.write_text("kept")

    def write() -> None:
        wanted = r"could not be written .*unchanged"
        if ending == ".h5ad":
            with pytest.raises(OSError, match=wanted):
                write_cells(toy_query, path)
        else:
            with pytest.raises(OSError, match=wanted):
                write_table(toy_query.obs, path)

    with_full_disk(write, 2000)
    assert path.read_text() == "kept"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_leaves_the_store_that_was_there(
    toy_query: AnnData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, because Zarr's threads are missing in one that is forked."""
    path = tmp_path / "out.zarr"
    write_cells(toy_query, path)

    def full(*arguments: object) -> None:
        write_elem(*arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("anndata.io.write_elem", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left .*unchanged"):
        write_cells(toy_query[:5].copy(), path)
    assert ad.read_zarr(path).n_obs == 60
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_names_of_cells_come_first(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": [1]}, index=["cell"])
    write_table(table, tmp_path / "t.csv")
    write_table(table.rename_axis("barcode"), tmp_path / "t.tsv")
    assert (tmp_path / "t.csv").read_text() == "obs_names,a\ncell,1\n"
    assert (tmp_path / "t.tsv").read_text() == "barcode\ta\ncell\t1\n"


def test_what_parquet_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(ValueError, match=r"Parquet does not hold .*: write .csv or .tsv"):
        write_table(pd.DataFrame({"a": [1, "x"]}, index=["c", "d"]), path)
    assert list(tmp_path.iterdir()) == []


def test_pyarrow_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"'tosica\[parquet\]', or write .csv or .tsv"):
        check_free(tmp_path / "t.parquet", overwrite=False)


def test_devices_are_not_replaced() -> None:
    with pytest.raises(FileExistsError, match="is no file that could be replaced"):
        check_free(Path("/dev/null"), overwrite=True)


def test_folders_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PermissionError, match="is read-only: choose another one"):
        check_free(tmp_path / "t.csv", overwrite=False)
