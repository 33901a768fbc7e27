"""Which files of a tokenizer's folder are read, and what is refused instead of copied to every dataset."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.folder_files import read_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the key")
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    return folder


def _through_a_folder(folder: Path) -> None:
    (folder / "files").symlink_to("..")
    (folder / "chat_template.jinja").symlink_to("files/secret")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda folder: (folder / "chat_template.jinja").symlink_to(folder.parent / "secret"),
            "a link to .*/secret, out",
        ),
        (
            lambda folder: (folder / "notes.txt").symlink_to("../secret"),
            "a link to .*/secret, outside this folder",
        ),
        (_through_a_folder, "a link to .*/secret, outside this folder"),
        (
            lambda folder: (folder / "x.txt").symlink_to("/dev/zero"),
            "a link to /dev/zero, outside this folder",
        ),
        (
            lambda folder: (folder / "x.txt").symlink_to("nothing"),
            "a link to .*/nothing, which does not exist",
        ),
        (lambda folder: os.mkfifo(folder / "x.model"), "x.model is no regular file"),
    ],
)
def test_a_file_that_is_not_the_folders_own_is_refused(
    folder: Path, change: Callable[[Path], None], reason: str
):
    change(folder)
    with pytest.raises(UsageError, match=reason):
        read_folder(str(folder))


def test_links_inside_the_folder_and_a_link_to_it_are_followed(folder: Path):
    (folder / "..data").mkdir()  # (as Kubernetes mounts the entries of a ConfigMap)
    (folder / "..data" / "config.json").write_text("1")
    (folder / "config.json").symlink_to("..data/config.json")
    link = folder.with_name("link")
    link.symlink_to(folder)
    assert read_folder(str(link)) == {"tokenizer.json": b"{}", "config.json": b"1"}


def test_the_hubs_cache_has_links_to_its_own_blobs_only(tmp_path: Path, folder: Path):
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "ab12").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/ab12")
    assert read_folder(str(snapshot)) == {"tokenizer.json": b"{}"}
    (snapshot / "notes.txt").symlink_to("../../blobs/cd34")
    (repository / "blobs" / "cd34").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match=r"notes.txt is a link to .*/secret, outside"):
        read_folder(str(snapshot))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_git_lfs_pointer_is_named(folder: Path, name: str):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2125\n")
    with pytest.raises(UsageError, match=f"{name} is a Git LFS pointer instead of the file; run `git lfs"):
        read_folder(str(folder))


def test_json_is_read_without_its_byte_order_mark(folder: Path):
    for name in ("tokenizer_config.json", "vocab.txt"):
        (folder / name).write_bytes(codecs.BOM_UTF8 + b"{}")
    files = read_folder(str(folder))
    assert files["tokenizer_config.json"] == b"{}"
    assert files["vocab.txt"] == codecs.BOM_UTF8 + b"{}"  # AutoTokenizer reads it as part of the first token
