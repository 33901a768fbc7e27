"""Finds the files in an output folder that this program wrote: those that a record lists and that still match it.

The records are the manifests of finished splits and, until a run is finished, the lists in its staging folder. Each
list is written before the files that it lists. Only files that this module finds are ever deleted.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import google_crc32c

from beam_pipeline.dataset import bad_records, lock, manifest, removed_documents
from beam_pipeline.dataset.own_pages import is_own_page, is_unfinished_page
from beam_pipeline.dataset.shards import files_of_shard
from beam_pipeline.dataset.staging import FINISHED, STAGING, WRITTEN
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.run_folder import is_run_folder
from tokenmill_reader.format.inputs import inputs_entry
from tokenmill_reader.format.json_text import parse_own_json
from tokenmill_reader.format.names import MANIFEST, OFFSETS, REPORT, SHARD_NAME, TOKENIZER, TRANSFORM_FN

_BAD_RECORD_KEYS = {"path", "place", "reason", "content"}
_MAX_CHECKED_BYTES = 64 << 20  # files up to this size are compared by checksum
_READS_AT_ONCE = 32
# Lists the files of the function that `analyze` saves, in the same folder.
SAVED_MODEL_RECORD = "tokenmill_files.json"


@dataclass(frozen=True)
class RecordedFile:
    """A file's size and checksum according to a record; None if the record has none."""

    size: int | None = None
    crc32c: str | None = None


@dataclass(frozen=True)
class FolderContent:
    """The content of an output folder. All paths are relative to it."""

    output: str
    """The folder."""
    own_files: frozenset[str]
    """This program's files, unchanged."""
    changed: frozenset[str]
    """Files that differ from the record that lists them."""
    foreign: frozenset[str]
    """All other files."""
    missing: frozenset[str]
    """Files that do not exist, though the manifest of a finished split lists them."""
    finished: Mapping[str, str]
    """The fingerprint of each finished split, by its name."""
    staged: frozenset[str]
    """The names of the runs' folders in the staging folder."""

    @property
    def protected_files(self) -> list[str]:
        """The files that are never deleted, sorted."""
        return sorted(self.changed | self.foreign)

    @property
    def shards(self) -> list[str]:
        return [path for path in self.own_files if SHARD_NAME.fullmatch(path.rpartition("/")[2])]


def inspect_output(output: str) -> FolderContent:
    """Compares the files in a folder with the records there. Ignores the lock."""
    sizes = {path[len(output) :].lstrip("/"): size for path, size in filesystem.list_files(output)}
    sizes = {path: size for path, size in sizes.items() if not path.startswith(f"{STAGING}/{lock.NAME}")}
    recorded: dict[str, RecordedFile] = {}
    finished: dict[str, str] = {}
    missing: set[str] = set()
    for path in sorted(sizes):
        folder, _, name = path.rpartition("/")
        if name == MANIFEST and folder and "/" not in folder:
            try:
                split_manifest = manifest.read_manifest(filesystem.join(output, folder))
            except DataError:  # damaged, or another program's manifest.json
                continue
            finished[folder] = split_manifest["fingerprint"]
            recorded |= _split_files(output, folder, split_manifest, sizes)
            missing |= _listed_files(folder, split_manifest).keys() - sizes.keys()
    staged = {name for name in _children(sizes, STAGING) if is_run_folder(name)}
    for name in staged:
        recorded |= dict.fromkeys(
            (path for path in sizes if path.startswith(f"{STAGING}/{name}/")), RecordedFile()
        )
        recorded |= _run_files(output, f"{STAGING}/{name}", sizes)
    unfinished = bool(finished or staged)
    recorded |= _excluded_files(output, sizes, bad_records, _lists_bad_records, unfinished=unfinished)
    is_removed_file = removed_documents.is_removed_file
    recorded |= _excluded_files(output, sizes, removed_documents, is_removed_file, unfinished=unfinished)
    listed = {path: recorded[path] for path in sizes if path in recorded}
    changed = _changed_files(output, listed, sizes)
    return FolderContent(
        output=output,
        own_files=frozenset(listed) - changed,
        changed=changed,
        foreign=frozenset(sizes) - frozenset(listed),
        missing=frozenset(missing),
        finished=finished,
        staged=frozenset(staged),
    )


def _children(paths: Iterable[str], folder: str) -> set[str]:
    subpaths = (path[len(folder) + 1 :] for path in paths if path.startswith(folder + "/"))
    return {subpath.partition("/")[0] for subpath in subpaths if "/" in subpath}


def _split_files(
    output: str, split: str, split_manifest: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, RecordedFile]:
    """Returns the files of a finished split, and of its tokenizer, report and analysis."""
    recorded = {f"{split}/{MANIFEST}": RecordedFile(), **_listed_files(split, split_manifest)}
    for folder in {folder for path in sizes if (folder := _saved_model_folder(path, split))}:
        recorded |= _saved_model(output, folder, sizes)
    for report in (REPORT, f"{split}/{REPORT}"):
        if report in sizes and is_own_page(filesystem.read_bytes(filesystem.join(output, report))):
            recorded[report] = RecordedFile()
        unfinished = report + ".tmp"
        if unfinished in sizes and is_unfinished_page(
            filesystem.read_bytes(filesystem.join(output, unfinished))
        ):
            recorded[unfinished] = RecordedFile()
    return recorded


def _listed_files(split: str, split_manifest: Mapping[str, Any]) -> dict[str, RecordedFile]:
    """Returns the files that a manifest lists, by path."""
    shards = {
        path: sums for shard in split_manifest["shards"] for path, sums in _shard_files(split, shard).items()
    }
    others = _entries(split, split_manifest["files"]) | _entries("", [inputs_entry(split_manifest)])
    return shards | others | _entries(TOKENIZER, split_manifest["tokenizer"]["files"])


def listed_sizes(split: str, split_manifest: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of the files that a manifest lists, by their paths below the dataset's folder."""
    return {path: recorded.size for path, recorded in _listed_files(split, split_manifest).items()}


def _entries(folder: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, RecordedFile]:
    """Returns the files of a list whose paths are relative to `folder`; "" is the output folder."""
    prefix = f"{folder}/" if folder else ""
    return {prefix + entry["path"]: RecordedFile(entry["bytes"], entry["crc32c"]) for entry in entries}


def _saved_model_folder(path: str, split: str) -> str | None:
    """Returns the folder of the saved function that contains a file; its name has a suffix if a run was killed."""
    match = re.match(rf"{re.escape(split)}/{TRANSFORM_FN}(\.[0-9a-f]{{32}})?(?=/)", path)
    return match[0] if match else None


def own_saved_model(folder: str) -> list[str]:
    """Returns the paths of the files of the function that `analyze` saved in a folder, their list last; [] if there is
    none.

    Raises:
        DataError: If the folder contains other files, too.
    """
    parent, _, name = folder.rpartition("/")
    sizes = {path[len(parent) + 1 :]: size for path, size in filesystem.list_files(folder)}
    listed = {path: recorded for path, recorded in _saved_model(parent, name, sizes).items() if path in sizes}
    foreign = (sizes.keys() - listed.keys()) | _changed_files(parent, listed, sizes)
    if foreign:
        raise DataError(
            f"{parent}/{min(foreign)}: `analyze` did not write this file, or it was changed since; move it away"
        )
    return [filesystem.join(parent, path) for path in reversed(listed)]


def _saved_model(output: str, folder: str, sizes: Mapping[str, int]) -> dict[str, RecordedFile]:
    """Returns the files of the function that `analyze` saved, by its list, which is written before them."""
    record = f"{folder}/{SAVED_MODEL_RECORD}"
    listed = _read_lists(output, [record], partial(_entries, folder)) if record in sizes else {}
    return {record: RecordedFile(), **listed} if listed else {}


def _run_files(output: str, staging: str, sizes: Mapping[str, int]) -> dict[str, RecordedFile]:
    """Returns the files in the lists in an unfinished run's staging folder."""
    records = [path for path in sizes if path.startswith(f"{staging}/{WRITTEN}/")]
    shards = [path for path in sizes if path.startswith(f"{staging}/{FINISHED}/")]
    return _read_lists(output, records, partial(_entries, "")) | _read_lists(
        output, shards, _recorded_shard_files
    )


def _shard_files(split: str, shard: Mapping[str, Any]) -> dict[str, RecordedFile]:
    """Returns the files of a shard, given its entry in the manifest or its record."""
    return {f"{split}/{name}": RecordedFile(*sums) for name, sums in files_of_shard(shard).items()}


def _recorded_shard_files(shard: Mapping[str, Any]) -> dict[str, RecordedFile]:
    return _shard_files(SHARD_NAME.fullmatch(shard["name"])["split"], shard)


def _read_lists(
    output: str, paths: Sequence[str], read: Callable[[Any], dict[str, RecordedFile]]
) -> dict[str, RecordedFile]:
    """Merges what `read` returns for the JSON of each file. Reads several files at a time."""
    listed: dict[str, RecordedFile] = {}
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for data in pool.map(lambda path: filesystem.read_bytes(filesystem.join(output, path)), paths):
            # A broken list, from a machine that crashed or another program, must not cause a deletion.
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                listed |= read(parse_own_json(data))
    return listed


def _lists_bad_records(path: str) -> bool:
    """Determines by the form of its lines whether a file lists bad records."""
    try:
        lines = filesystem.read_bytes(path).splitlines()
        return bool(lines) and all(parse_own_json(line).keys() == _BAD_RECORD_KEYS for line in lines)
    except (ValueError, AttributeError):
        return False


def _excluded_files(
    output: str,
    sizes: Mapping[str, int],
    kind: ModuleType,
    has_form: Callable[[str], bool],
    *,
    unfinished: bool,
) -> dict[str, RecordedFile]:
    """Returns the files of bad records or removed documents, by their names and their form.

    A failed run leaves these files without a list. Temporary files count only if the folder has other files of a run
    (`unfinished`).

    Args:
        kind: The module with the `FOLDER` and `FILE_NAME` of the files.
        has_form: Whether the file at a path has their form.
    """
    folder = kind.FOLDER + "/"
    paths = [
        path for path in sizes if path.startswith(folder) and kind.FILE_NAME.fullmatch(path[len(folder) :])
    ]

    def is_own(path: str) -> bool:
        if path.endswith(".tmp"):  # the run was killed while writing it
            return unfinished
        return has_form(filesystem.join(output, path))

    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        return {
            path: RecordedFile()
            for path, is_ours in zip(paths, pool.map(is_own, paths), strict=True)
            if is_ours
        }


def _changed_files(
    output: str, listed: Mapping[str, RecordedFile], sizes: Mapping[str, int]
) -> frozenset[str]:
    """Returns the files that differ from their records, by size.

    Also compares the checksums of small files, except for shards and their offsets.
    """

    def differs(path: str) -> bool:
        recorded = listed[path]
        if recorded.size is None:
            return False
        if sizes[path] != recorded.size:
            return True
        folder, _, name = path.rpartition("/")
        if folder.endswith(f"/{OFFSETS}") or SHARD_NAME.fullmatch(name) or recorded.size > _MAX_CHECKED_BYTES:
            return False
        data = filesystem.read_bytes(filesystem.join(output, path))
        return f"{google_crc32c.value(data):08x}" != recorded.crc32c

    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        paths = list(listed)
        return frozenset(
            path for path, is_changed in zip(paths, pool.map(differs, paths), strict=True) if is_changed
        )
