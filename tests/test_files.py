"""Files are replaced atomically, and downloads say what is wrong."""

import os
from pathlib import Path

import pytest

from tosica._files import (
    as_os_error,
    cache_folder,
    check_output,
    download,
    replace_file,
)


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path):
    path = tmp_path / "a"
    for text in ("1", "2"):
        with replace_file(path) as temporary:
            temporary.write_text(text)
            assert temporary.name == "a"
        assert path.read_text() == text
        path.chmod(0o640)
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError, ValueError), (RuntimeError, OSError), (OSError, OSError)],
)
def test_a_failure_leaves_what_was_there(tmp_path, error, raised):
    (tmp_path / "a").write_text("1")

    def fail():
        with replace_file(tmp_path / "a") as a, as_os_error():
            a.write_text("2")
            raise error("no space")

    with pytest.raises(raised, match="no space"):
        fail()
    assert (tmp_path / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["a"]


def test_errors_of_other_kinds_are_not_of_the_disk():
    with pytest.raises(NotImplementedError), as_os_error():
        raise NotImplementedError


def test_the_cache_is_where_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TOSICA_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("TOSICA_CACHE")
    assert cache_folder().name == "tosica"


def test_without_a_connection_one_sentence(tmp_path):
    with pytest.raises(OSError, match="cannot be downloaded") as caught:
        download(
            "http://127.0.0.1:9/x.gmt", tmp_path / "x.gmt", alternative="use another"
        )
    assert str(caught.value) == (
        "http://127.0.0.1:9/x.gmt cannot be downloaded (ConnectionError): check the "
        "connection and try again, or use another."
    )
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_not_the_network(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.retrieve", fail)
    with pytest.raises(OSError, match="No space left"):
        download("http://127.0.0.1:9/x.gmt", tmp_path / "x.gmt", alternative="wait")


def test_what_a_link_leads_to_is_replaced(tmp_path):
    (tmp_path / "other").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "other" / "real")
    with replace_file(link) as temporary:
        temporary.write_text("1")
    assert link.is_symlink()
    assert (tmp_path / "other" / "real").read_text() == "1"


def test_a_missing_folder_is_named(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"the folder '.*/none' does not exist"),
        replace_file(tmp_path / "none" / "a"),
    ):
        pass


def test_a_device_is_not_replaced():
    with (
        pytest.raises(FileExistsError, match=r"'/dev/null' is a device: give a file"),
        replace_file(Path("/dev/null")),
    ):
        pass


def test_a_link_to_a_missing_folder_is_told_before_the_work(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "none" / "real")
    with pytest.raises(FileNotFoundError, match="none' does not exist: create it"):
        check_output(link, overwrite=True)
