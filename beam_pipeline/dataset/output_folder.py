"""The output folder before and after a run: what may be written over, and what a run leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beam_pipeline import filesystem
from beam_pipeline.bad_records import FOLDER as BAD_RECORDS
from beam_pipeline.dataset import manifest
from beam_pipeline.dataset.finished_units import count_finished
from beam_pipeline.dataset.shards import SHARD_NAME
from beam_pipeline.errors import DataError, UsageError
from beam_pipeline.job import STAGING, TOKENIZER

_OF_A_SPLIT = (manifest.MANIFEST, manifest.STATISTICS, manifest.UNITS, manifest.SCHEMA)


@dataclass(frozen=True)
class Found:
    """What an output folder holds.

    Attributes:
      files: all files below it.
      fingerprint: of the run that made them, finished or not; None where no run left its description.
      splits: the splits that are finished.
    """

    files: tuple[str, ...]
    fingerprint: str | None
    splits: tuple[str, ...]


def look(output: str) -> Found:
    """Looks at what the folder holds."""
    files = tuple(filesystem.list_folder(output))
    fingerprint = None
    splits = []
    for path in files:
        if path.endswith("/" + manifest.MANIFEST):
            try:
                found = manifest.read_manifest(path.rpartition("/")[0])
            except DataError:  # some other program's manifest.json; then the folder is not ours either
                continue
            fingerprint = found["fingerprint"]
            splits.append(found["split"])
    staged = filesystem.join(output, STAGING, "fingerprint.json")
    if staged in files:
        fingerprint = json.loads(filesystem.read_bytes(staged))
    return Found(files, fingerprint, tuple(sorted(splits)))


def claim(output: str, splits: Sequence[str], fingerprint: str, *, overwrite: bool, resume: bool) -> bool:
    """Decides whether a run may use the folder, and clears away what is in its way.

    What a run left that ended before its first shard, and what the very same run left at any time, is in nobody's way.

    Returns:
      True where the folder holds the finished dataset already, and `resume` asks to keep it.

    Raises:
      UsageError: where the folder is used by something else.
    """
    found = look(output)
    if not found.files:
        return False
    if overwrite:
        _delete_ours(output, found.files)
        return False
    if found.fingerprint == fingerprint and set(splits) <= set(found.splits):
        if resume:
            clear_staging(output)  # a run killed in its last moment leaves it
            return True
        raise UsageError(
            f"--output {output}: holds this very dataset, finished; --resume keeps it, --overwrite makes it again"
        )
    if found.fingerprint == fingerprint and resume:
        return False
    if found.fingerprint == fingerprint or _is_a_beginning(output, found.files):
        _delete_ours(output, found.files)
        return False
    what = "another run's dataset" if found.fingerprint else f"other files, {found.files[0]} for one"
    raise UsageError(
        f"--output {output}: already in use, it holds {what}; name an empty folder, or use --overwrite"
    )


def give_up(output: str) -> tuple[int, int]:
    """After a run that failed: deletes what it left, if there is nothing that `--resume` can use; not bad records.

    Returns:
      The numbers of finished work units and of finished shards.
    """
    files = filesystem.list_folder(output)
    units = count_finished([path for path in files if _folder_of(output, path) == STAGING])
    shards = sum(SHARD_NAME.fullmatch(path.rpartition("/")[2]) is not None for path in files)
    if not units and not shards and _is_a_beginning(output, files):
        _delete_ours(output, [path for path in files if _folder_of(output, path) != BAD_RECORDS])
    return units, shards


def _is_a_beginning(output: str, files: Sequence[str]) -> bool:
    """Whether there is nothing but what a run writes before its first shard."""
    folders = {_folder_of(output, path) for path in files}
    # A tokenizer alone may be anybody's; beside a staging folder it is a run's copy.
    return folders <= {STAGING, TOKENIZER, BAD_RECORDS} and (STAGING in folders or TOKENIZER not in folders)


def _folder_of(output: str, path: str) -> str:
    return path[len(output) :].strip("/").partition("/")[0]


def write_staging(output: str, fingerprint: str, files: dict[str, bytes]) -> None:
    """Marks the folder as this run's, then writes what its workers will read, by path."""
    filesystem.write_bytes(
        filesystem.join(output, STAGING, "fingerprint.json"), json.dumps(fingerprint).encode()
    )
    for path, data in files.items():
        filesystem.write_bytes(path, data)


def clear_staging(output: str) -> None:
    """Removes the staging folder with all that is in it."""
    filesystem.delete_folder(filesystem.join(output, STAGING))


def _delete_ours(output: str, files: Sequence[str]) -> None:
    """Deletes what a run wrote there, manifests first, so that no half of a dataset ever has one."""
    ours = sorted(_ours(output, files), key=lambda path: not path.endswith("/" + manifest.MANIFEST))
    filesystem.delete(ours)
    if filesystem.is_local(output):  # where folders are, they stay when their files go
        inside = f"/{manifest.TRANSFORM_FN}/"
        filesystem.delete({path.partition(inside)[0] + inside.rstrip("/") for path in ours if inside in path})
    clear_staging(output)


def _ours(output: str, files: Sequence[str]) -> Iterator[str]:
    splits = {_folder_of(output, path) for path in files if SHARD_NAME.fullmatch(path.rpartition("/")[2])}
    splits.update(look(output).splits)  # a split may have no shards
    for path in files:
        folder = _folder_of(output, path)
        name = path[len(output) :].strip("/").removeprefix(folder + "/")
        known = (
            name in _OF_A_SPLIT or SHARD_NAME.fullmatch(name) or name.startswith(manifest.TRANSFORM_FN + "/")
        )
        if (folder in splits and known) or folder in (STAGING, TOKENIZER, BAD_RECORDS, manifest.REPORT):
            yield path
