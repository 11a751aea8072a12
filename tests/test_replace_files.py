"""Files that are replaced whole: errors of writers, and systems without locks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tosica import _replace_files
from tosica._replace_files import as_os_error, current, replacing

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, text: str) -> None:
    """Write three files together."""
    with replacing(*(folder / name for name in "abc")) as names:
        for name in names:
            name.write_text(text)


def read(folder: Path) -> str:
    return "".join(current(folder / name).read_text() for name in "abc")


def test_files_are_replaced_together(tmp_path: Path) -> None:
    for text in "12":
        write(tmp_path, text)
        assert read(tmp_path) == text * 3
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("error", [NotImplementedError, RecursionError, ValueError, RuntimeError])
def test_errors_that_are_not_of_the_disk_stay_what_they_are(tmp_path: Path, error: type) -> None:
    write(tmp_path, "1")

    def fail() -> None:
        with replacing(tmp_path / "a") as [a]:
            a.write_text("2")
            raise error("latex could not be found")

    with pytest.raises(error, match="latex could not be found"):
        fail()
    assert read(tmp_path) == "111"


def test_a_runtime_error_of_a_writer_is_one_of_the_disk() -> None:
    with pytest.raises(OSError, match="unexpected pos 64"), as_os_error():
        raise RuntimeError("unexpected pos 64")
    with pytest.raises(NotImplementedError), as_os_error():
        raise NotImplementedError


def test_a_file_that_is_open_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be replaced, and there are no locks that say whether a process lives."""
    monkeypatch.setattr(_replace_files, "fcntl", None)
    write(tmp_path, "1")
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if target == tmp_path / "b":
            raise PermissionError(13, "The process cannot access the file")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        sentence = r"cannot access the file\): .* Some of these files are new and others old: write"
        with pytest.raises(PermissionError, match=sentence):
            write(tmp_path, "2")
    # Whoever reads them through this module finds the new ones.
    assert read(tmp_path) == "222"
    write(tmp_path, "3")
    assert read(tmp_path) == "333"
    assert not list(tmp_path.glob("*/replaced_together.json"))
