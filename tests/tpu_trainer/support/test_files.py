"""File operations give the same results for local paths and URLs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


@pytest.fixture(params=["local", "url"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    # file:// is TensorFlow's name for the local disk: the same code path as gs://.
    return str(tmp_path) if request.param == "local" else f"file://{tmp_path}"


def test_an_empty_folder_is_the_current_one() -> None:
    assert files.join("", "a", "b") == "a/b"
    assert files.join("/", "a") == "/a"


def test_files_can_be_written_listed_read_and_removed(root: str) -> None:
    folder = files.join(root, "a", "b")
    assert files.list_names(folder) == []
    assert not files.is_dir(folder)
    files.make_dirs(folder)
    files.make_dirs(folder)
    path = files.join(folder, "x.txt")
    files.write_text(path, "ü1\n")
    files.write_text(path, "ü2\n")
    files.append_text(path, "3\n")
    files.append_text(files.join(folder, "y.txt"), "new\n")
    assert files.list_names(folder) == ["x.txt", "y.txt"]
    assert files.read_text(path) == "ü2\n3\n"
    assert files.size(path) == 6
    assert files.is_file(path) and not files.is_dir(path)
    assert files.is_dir(folder) and not files.is_file(folder)
    files.remove_file(path)
    assert not files.is_file(path)
    files.remove_tree(files.join(root, "a"))
    assert files.list_names(root) == []
    files.remove_tree(files.join(root, "a"))


def test_copies(root: str, tmp_path: Path) -> None:
    files.make_dirs(files.join(root, "from", "deep"))
    files.write_text(files.join(root, "from", "one"), "1")
    files.write_text(files.join(root, "from", "deep", "two"), "2")
    files.copy_tree(files.join(root, "from"), str(tmp_path / "to"))
    assert (tmp_path / "to" / "one").read_text() == "1"
    assert (tmp_path / "to" / "deep" / "two").read_text() == "2"
    with files.local_copy(files.join(root, "from")) as copy:
        assert (Path(copy) / "deep" / "two").read_text() == "2"
    assert Path(copy).exists() == (not files.is_url(root))


def test_urls_have_no_parent_components() -> None:
    assert files.join("gs://bucket/dataset/train/", "../tokenizer") == "gs://bucket/dataset/tokenizer"
    assert files.join("gs://bucket/dataset/train", "..", "tokenizer") == "gs://bucket/dataset/tokenizer"
    assert files.join("gs://bucket", "x..y") == "gs://bucket/x..y"
    assert files.join("a", "..", "b") == "a/../b"  # a may be a symbolic link


def test_without_its_client_cloud_storage_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(UsageError, match=r"gs://bucket/data: needs .*'tokenmill-trainer\[gcp\]'"):
        files.list_files("gs://bucket/data")
