"""Which files of an output folder are this program's own: those that a record of ours lists, and that still fit it.

The records are the manifests of finished splits and, while a run is not finished, the lists in its staging folder,
each of which is written before the files it lists. A file is deleted only if it is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import google_crc32c

from beam_pipeline import filesystem
from beam_pipeline.dataset import bad_records, lock, manifest
from beam_pipeline.dataset.manifest import TOKENIZER
from beam_pipeline.dataset.shards import SHARD_NAME
from beam_pipeline.dataset.staging import FINISHED, RUN_FOLDER, STAGING, WRITTEN
from beam_pipeline.errors import DataError
from beam_pipeline.parsing import parse_own_json

_BAD_RECORDS = re.compile(r"unit-\d{6,}\.jsonl(\.tmp)?")
_BAD_RECORD_KEYS = {"path", "place", "reason", "content"}
_SMALL = 64 << 20  # files up to this size are compared by checksum
_READS_AT_ONCE = 32
# What version 1 of the format wrote without recording it.
_OF_A_SPLIT = (manifest.STATISTICS, manifest.UNITS, manifest.SCHEMA)
_TOKENIZER_FILES = (".json", ".txt", ".model", ".jinja")
_SAVED_MODEL = re.compile(
    r"(saved_model\.pb|fingerprint\.pb|variables/variables\.(index|data-\d{5}-of-\d{5})|assets/[^/]+)"
)
# In the folder of the function that `analyze` saves.
SAVED_MODEL_RECORD = "tokenmill_files.json"
_PAGE_HEAD = b'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" '
_PAGE_TITLE = b"<title>Dataset report</title>"  # of pages without a last line, by earlier versions
_PAGE_END = re.compile(rb"<!-- tokenmill: crc32c ([0-9a-f]{8}) of all lines above -->\n\Z")


@dataclass(frozen=True)
class Expected:
    """What a record says of a file; None for what it does not say."""

    size: int | None = None
    crc32c: str | None = None


def signed_page(page: bytes) -> bytes:
    """An HTML page with a last line that tells, with a checksum, that this program wrote it."""
    return page + f"<!-- tokenmill: crc32c {google_crc32c.value(page):08x} of all lines above -->\n".encode()


def is_own_page(page: bytes) -> bool:
    """Whether this program wrote the page, and it is unchanged."""
    end = _PAGE_END.search(page)
    if end:
        return f"{google_crc32c.value(page[: end.start()]):08x}".encode() == end[1]
    return page.startswith(_PAGE_HEAD) and _PAGE_TITLE in page


def _is_unfinished_page(page: bytes) -> bool:
    """Whether it is the beginning of a page of ours: of a run that was killed while it wrote it."""
    return page.startswith(_PAGE_HEAD) or _PAGE_HEAD.startswith(page)


@dataclass(frozen=True)
class FolderContent:
    """What an output folder holds; all paths are relative to it.

    Attributes:
      output: the folder.
      own: this program's files.
      changed: files that a record lists, but that differ from it.
      foreign: all other files.
      missing: files that the manifest of a finished split lists, but that are not there.
      finished: the fingerprint of each finished split, by its name.
      staged: the names of the runs' folders in the staging folder.
    """

    output: str
    own: frozenset[str]
    changed: frozenset[str]
    foreign: frozenset[str]
    missing: frozenset[str]
    finished: Mapping[str, str]
    staged: frozenset[str]

    @property
    def kept(self) -> list[str]:
        """The files that are never deleted, sorted."""
        return sorted(self.changed | self.foreign)

    @property
    def shards(self) -> list[str]:
        return [path for path in self.own if SHARD_NAME.fullmatch(path.rpartition("/")[2])]


def inspect_output(output: str) -> FolderContent:
    """Reads the records in a folder, and compares its files with them. The lock is no part of the content."""
    sizes = {path[len(output) :].lstrip("/"): size for path, size in filesystem.list_files(output)}
    sizes = {path: size for path, size in sizes.items() if not path.startswith(f"{STAGING}/{lock.NAME}")}
    expected: dict[str, Expected] = {}
    finished: dict[str, str] = {}
    missing: set[str] = set()
    for path in sorted(sizes):
        folder, _, name = path.rpartition("/")
        if name == manifest.MANIFEST and folder and "/" not in folder:
            try:
                found = manifest.read_manifest(filesystem.join(output, folder))
            except DataError:  # another program's manifest.json, or a damaged one: not known to be ours
                continue
            finished[folder] = found["fingerprint"]
            expected |= _of_manifest(output, folder, found, sizes)
            missing |= _files_of(folder, found).keys() - sizes.keys()
    staged = {name for name in _children(sizes, STAGING) if RUN_FOLDER.fullmatch(name)}
    for name in staged:
        expected |= dict.fromkeys(
            (path for path in sizes if path.startswith(f"{STAGING}/{name}/")), Expected()
        )
        expected |= _of_run(output, f"{STAGING}/{name}", sizes)
    expected |= _bad_records(output, sizes, unfinished=bool(finished or staged))
    listed = {path: expected[path] for path in sizes if path in expected}
    changed = _changed(output, listed, sizes)
    return FolderContent(
        output=output,
        own=frozenset(listed) - changed,
        changed=changed,
        foreign=frozenset(sizes) - frozenset(listed),
        missing=frozenset(missing),
        finished=finished,
        staged=frozenset(staged),
    )


def _children(paths: Iterable[str], folder: str) -> set[str]:
    below = (path[len(folder) + 1 :] for path in paths if path.startswith(folder + "/"))
    return {rest.partition("/")[0] for rest in below if "/" in rest}


def _of_manifest(
    output: str, split: str, found: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, Expected]:
    """The files of a finished split, and of its tokenizer, report and analysis."""
    expected = {f"{split}/{manifest.MANIFEST}": Expected(), **_files_of(split, found)}
    if "files" not in found:
        expected |= {f"{split}/{name}": Expected() for name in _OF_A_SPLIT}
        expected |= _tokenizer_of_version_1(output, found, sizes)
    for folder in {folder for path in sizes if (folder := _saved_model_folder(path, split))}:
        expected |= _saved_model(output, folder, sizes)
    for report in (manifest.REPORT, f"{split}/{manifest.REPORT}"):
        if report in sizes and is_own_page(filesystem.read_bytes(filesystem.join(output, report))):
            expected[report] = Expected()
        temporary = report + ".tmp"
        if temporary in sizes and _is_unfinished_page(
            filesystem.read_bytes(filesystem.join(output, temporary))
        ):
            expected[temporary] = Expected()
    return expected


def _files_of(split: str, found: Mapping[str, Any]) -> dict[str, Expected]:
    """The files that a manifest lists; in version 1 those are the shards alone."""
    shards = {
        f"{split}/{shard['name']}": Expected(shard["bytes"], shard["crc32c"]) for shard in found["shards"]
    }
    others = _entries(split, found.get("files", ()))
    return shards | others | _entries(TOKENIZER, found["tokenizer"].get("files", ()))


def listed_sizes(split: str, found: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the files that a manifest lists, by their paths below the dataset's folder."""
    return {path: expected.size for path, expected in _files_of(split, found).items()}


def _entries(folder: str, entries: Sequence[Mapping[str, Any]]) -> dict[str, Expected]:
    """What a list says of the files below `folder`; of paths below the output folder if that is empty."""
    above = f"{folder}/" if folder else ""
    return {above + entry["path"]: Expected(entry["bytes"], entry["crc32c"]) for entry in entries}


def _tokenizer_of_version_1(
    output: str, found: Mapping[str, Any], sizes: Mapping[str, int]
) -> dict[str, Expected]:
    """The copied tokenizer, if its model is the one that the manifest names."""
    model = f"{TOKENIZER}/tokenizer.json"
    if model not in sizes:
        return {}
    data = filesystem.read_bytes(filesystem.join(output, model))
    if hashlib.sha256(data).hexdigest() != found["tokenizer"]["sha256"]:
        return {}
    return {
        path: Expected()
        for path in sizes
        if path.startswith(f"{TOKENIZER}/") and path.count("/") == 1 and path.endswith(_TOKENIZER_FILES)
    }


def _saved_model_folder(path: str, split: str) -> str | None:
    """The folder of a saved function that a file is in, complete or as a killed run left it."""
    found = re.match(rf"{re.escape(split)}/{manifest.TRANSFORM_FN}(\.[0-9a-f]{{32}})?(?=/)", path)
    return found[0] if found else None


def own_saved_model(folder: str) -> list[str]:
    """The paths of the files of the function that `analyze` saved in a folder; [] if there is none.

    Raises:
      DataError: if the folder holds other files, too.
    """
    above, _, name = folder.rpartition("/")
    sizes = {path[len(above) + 1 :]: size for path, size in filesystem.list_files(folder)}
    listed = {path: own for path, own in _saved_model(above, name, sizes).items() if path in sizes}
    foreign = (sizes.keys() - listed.keys()) | _changed(above, listed, sizes)
    if foreign:
        raise DataError(
            f"{above}/{min(foreign)}: was not written by this program, or was changed since; move it away"
        )
    return [filesystem.join(above, path) for path in listed]


def _saved_model(output: str, folder: str, sizes: Mapping[str, int]) -> dict[str, Expected]:
    """The function that `analyze` saved: by its list of files, or by the names of a saved model if it has no list."""
    record = f"{folder}/{SAVED_MODEL_RECORD}"
    if record in sizes:
        listed = _listed(output, [record], partial(_entries, folder))
        return {record: Expected(), **listed} if listed else {}
    return {
        path: Expected()
        for path in sizes
        if path.startswith(folder + "/") and _SAVED_MODEL.fullmatch(path[len(folder) + 1 :])
    }


def _of_run(output: str, staging: str, sizes: Mapping[str, int]) -> dict[str, Expected]:
    """What the lists in an unfinished run's staging folder say."""
    records = [path for path in sizes if path.startswith(f"{staging}/{WRITTEN}/")]
    shards = [path for path in sizes if path.startswith(f"{staging}/{FINISHED}/")]
    return _listed(output, records, partial(_entries, "")) | _listed(output, shards, _shard_of)


def _shard_of(info: Mapping[str, Any]) -> dict[str, Expected]:
    split = SHARD_NAME.fullmatch(info["name"])["split"]
    return {f"{split}/{info['name']}": Expected(info["bytes"], info["crc32c"])}


def _listed(
    output: str, paths: Sequence[str], read: Callable[[Any], dict[str, Expected]]
) -> dict[str, Expected]:
    """What `read` finds in the JSON of some files, several of which are read at a time."""
    listed: dict[str, Expected] = {}
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for data in pool.map(lambda path: filesystem.read_bytes(filesystem.join(output, path)), paths):
            # Of a machine that crashed, or another program's: what it would list is kept.
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                listed |= read(parse_own_json(data))
    return listed


def _bad_records(output: str, sizes: Mapping[str, int], *, unfinished: bool) -> dict[str, Expected]:
    """The files of bad records, known by their names and the form of their lines: a failed run leaves them, and no
    list of them. Incomplete ones are only known beside other traces of a run (`unfinished`)."""
    folder = bad_records.FOLDER + "/"
    paths = [
        path for path in sizes if path.startswith(folder) and _BAD_RECORDS.fullmatch(path[len(folder) :])
    ]

    def is_own(path: str) -> bool:
        if path.endswith(".tmp"):  # the run was killed while it wrote it
            return unfinished
        try:
            lines = filesystem.read_bytes(filesystem.join(output, path)).splitlines()
            return bool(lines) and all(parse_own_json(line).keys() == _BAD_RECORD_KEYS for line in lines)
        except (ValueError, AttributeError):
            return False

    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        return {path: Expected() for path, own in zip(paths, pool.map(is_own, paths), strict=True) if own}


def _changed(output: str, listed: Mapping[str, Expected], sizes: Mapping[str, int]) -> frozenset[str]:
    """The files that differ from their records: all by size, small ones that are no shards by checksum, too."""

    def differs(path: str) -> bool:
        expected = listed[path]
        if expected.size is None:
            return False
        if sizes[path] != expected.size:
            return True
        if SHARD_NAME.fullmatch(path.rpartition("/")[2]) or expected.size > _SMALL:
            return False
        data = filesystem.read_bytes(filesystem.join(output, path))
        return f"{google_crc32c.value(data):08x}" != expected.crc32c

    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        paths = list(listed)
        return frozenset(path for path, found in zip(paths, pool.map(differs, paths), strict=True) if found)
