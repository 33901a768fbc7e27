from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.support import filesystem, local_files
from beam_pipeline.support.errors import user_message


def test_match_is_sorted_and_takes_files_only(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        filesystem.write_bytes(f"{tmp_path}/{name}", name.encode())
    files = [(f"{tmp_path}/a.txt", 5), (f"{tmp_path}/b.txt", 5)]
    assert filesystem.match(f"{tmp_path}/*") == files
    assert filesystem.match(f"{tmp_path}/**") == [*files, (f"{tmp_path}/sub/c.txt", 9)]
    assert filesystem.match(f"{tmp_path}/a.txt") == files[:1]
    for pattern in ("", "sub", "none", "none/*"):
        assert filesystem.match(f"{tmp_path}/{pattern}") == []
    assert filesystem.list_folder(str(tmp_path)) == [
        path for path, _ in [*files, (f"{tmp_path}/sub/c.txt", 9)]
    ]


def test_a_file_that_goes_while_its_folder_is_listed_hides_no_other(tmp_path: Path, monkeypatch) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    walk = os.walk

    def walk_while_one_goes(folder: str, **options) -> Iterator[tuple[str, list[str], list[str]]]:
        for entry in walk(folder, **options):
            (tmp_path / "1.txt").unlink()
            yield entry

    monkeypatch.setattr(os, "walk", walk_while_one_goes)
    assert len(filesystem.list_folder(str(tmp_path))) == 4


def test_an_unknown_scheme(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="odd://x"):
        filesystem.match("odd://x/*")


def test_a_compressed_file_is_opened_as_it_lies_there(tmp_path: Path) -> None:
    path = f"{tmp_path}/a.gz"
    filesystem.write_bytes(path, b"\x1f\x8b not really")
    assert Path(path).read_bytes() == filesystem.read_bytes(path) == b"\x1f\x8b not really"


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = f"{tmp_path}/deep/er/a"
    filesystem.write_bytes(path, b"long content")
    filesystem.write_bytes(path, b"short")
    assert filesystem.read_bytes(path) == b"short"
    assert filesystem.list_folder(str(tmp_path)) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = f"{tmp_path}/a"
    filesystem.write_bytes(path, b"old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        filesystem.write_bytes(path, b"new")
    assert filesystem.read_bytes(path) == b"old"


def test_a_full_disk_names_the_file_even_if_a_runner_quotes_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "_without_links", lambda path, flags: os.open("/dev/full", os.O_WRONLY))
    with (
        pytest.raises(OSError) as error,
        filesystem.create_new(f"{tmp_path}/new", f"{tmp_path}/new.tmp") as file,
    ):
        for _ in range(20):  # the write that fails leaves bytes that closing the file writes again
            file.write(bytes(1000))
    message = f"[Errno 28] No space left on device: '{tmp_path}/new'"
    quoted = RuntimeError("".join(traceback.format_exception(error.value)))
    assert "No space left on device\n" in str(quoted)
    assert (user_message(error.value), user_message(quoted)) == (message, message)


def test_a_remote_rename_that_did_nothing_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(FileSystems, "rename", lambda sources, targets: None)
    monkeypatch.setattr(FileSystems, "exists", lambda path: False)
    with pytest.raises(OSError, match="gs://b/x was renamed to gs://b/y, but gs://b/y does not exist"):
        filesystem.rename("gs://b/x", "gs://b/y")


def test_delete_takes_files_and_folders_and_what_is_gone(tmp_path: Path) -> None:
    filesystem.write_bytes(f"{tmp_path}/folder/a", b"")
    filesystem.write_bytes(f"{tmp_path}/b", b"")
    filesystem.delete([f"{tmp_path}/b", f"{tmp_path}/gone"])
    filesystem.delete_folder(f"{tmp_path}/folder")
    filesystem.delete_folder(f"{tmp_path}/gone")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "result"),
    [("gs://b/x/", "gs://b/x"), ("gs://b/x/*", "gs://b/x/*"), ("/x/../y", "/y"), ("/x/", "/x")],
)
def test_absolute(path: str, result: str) -> None:
    assert filesystem.absolute(path) == result
    assert filesystem.is_local(path) == (not path.startswith("gs://"))


def test_absolute_takes_the_folder_that_the_launcher_runs_in(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert filesystem.absolute("x/*.txt") == f"{tmp_path}/x/*.txt"


def test_join() -> None:
    assert filesystem.join("gs://b/", "x", "y") == "gs://b/x/y"
