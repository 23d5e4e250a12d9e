"""Files that cannot be made or read: the error is of byname, and also the operating system's, with its number."""

import errno
import os

import pytest
import torch

import byname
from byname.errors import BynameError, RecordingError


def recorded(path, **how):
    model = torch.nn.Linear(2, 2)
    with byname.record(model, "forward", to=path, **how):
        model(torch.ones(1, 2))


@pytest.mark.parametrize("name", ["none/run.h5", "none/deep/er/run.h5"])
def test_a_missing_folder_is_a_file_not_found_error(name, tmp_path):
    with pytest.raises(
        RecordingError, match=r"there is no directory .*none.* to write to; the closest that exists:"
    ) as error:
        recorded(tmp_path / name)
    assert isinstance(error.value, FileNotFoundError) and isinstance(error.value, BynameError)
    assert not (tmp_path / "none").exists()


def test_a_name_with_a_zero_byte_cannot_be_written():
    with pytest.raises(RecordingError, match="cannot be written: .*embedded null"):
        recorded("a\0b")


def test_a_path_below_a_file_is_a_not_a_directory_error(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("notes.txt/run.h5", "notes.txt/deeper/run.h5"):
        with pytest.raises(RecordingError, match=r"notes\.txt is a file, not a directory") as error:
            recorded(tmp_path / name)
        assert isinstance(error.value, NotADirectoryError)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_is_an_is_a_directory_error(tmp_path):
    with pytest.raises(RecordingError, match=r"is a directory; name a file in it: ") as error:
        recorded(tmp_path, overwrite=True)
    assert isinstance(error.value, IsADirectoryError)


def test_a_file_that_is_there_is_a_file_exists_error(tmp_path):
    (tmp_path / "run.h5").write_bytes(b"mine")
    with pytest.raises(RecordingError, match="exists already") as error:
        recorded(tmp_path / "run.h5")
    assert isinstance(error.value, FileExistsError)


@pytest.mark.parametrize(
    ("number", "also"),
    [
        (errno.EACCES, PermissionError),
        (errno.EROFS, OSError),
        (errno.ENOENT, FileNotFoundError),
        (errno.ENOSPC, OSError),
    ],
)
def test_what_the_system_refuses_is_its_own_error_too(number, also, tmp_path, monkeypatch):
    def refused(path, *given):
        raise OSError(number, "No", str(path))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(RecordingError, match=r"run\.h5 cannot be written: ") as error:
        recorded(tmp_path / "run.h5")
    assert isinstance(error.value, also) and error.value.errno == number


def test_a_file_that_may_not_be_read_is_a_permission_error_and_not_damaged(tmp_path, monkeypatch):
    recorded(tmp_path / "run.h5")

    def refused(path, *given):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(RecordingError, match=r"run\.h5 may not be read: Permission denied") as error:
        byname.open(tmp_path / "run.h5")
    assert isinstance(error.value, PermissionError)
    assert "damaged" not in str(error.value)
