"""The output folder before and after a run: what may be written over, and what a run leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beam_pipeline import filesystem, manifest
from beam_pipeline.bad_records import FOLDER as BAD_RECORDS
from beam_pipeline.errors import DataError, UsageError
from beam_pipeline.job import STAGING, TOKENIZER
from beam_pipeline.shards import SHARD_NAME

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
    files = tuple(path for path, _ in filesystem.match(filesystem.join(output, "**")))
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

    A folder that holds the unfinished remains of the very same run may be used again as it is: the run makes
    the same files. The remains of another run that finished no split are cleared away: there is no dataset to lose.

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
    finished = set(splits) <= set(found.splits)
    if found.fingerprint == fingerprint:
        if not finished:
            if not resume:
                _delete_ours(output, found.files)
            return False
        if resume:
            return True
        raise UsageError(
            f"--output {output}: holds this very dataset, finished; --resume keeps it, --overwrite makes it again"
        )
    if found.fingerprint and not found.splits:
        _delete_ours(output, found.files)
        return False
    what = "another run's dataset" if found.fingerprint else f"other files, {found.files[0]} for one"
    raise UsageError(
        f"--output {output}: already in use, it holds {what}; name an empty folder, or use --overwrite"
    )


def write_staging(output: str, fingerprint: str, files: dict[str, bytes]) -> None:
    """Marks the folder as this run's, then writes what its workers will read, by path."""
    filesystem.write_bytes(
        filesystem.join(output, STAGING, "fingerprint.json"), json.dumps(fingerprint).encode()
    )
    for path, data in files.items():
        filesystem.write_bytes(path, data)


def clear_staging(output: str) -> None:
    """Removes the staging folder with all that is in it."""
    folder = filesystem.join(output, STAGING)
    if filesystem.is_local(output):
        filesystem.delete([folder])
    else:
        filesystem.delete([path for path, _ in filesystem.match(filesystem.join(folder, "**"))])


def _delete_ours(output: str, files: Sequence[str]) -> None:
    """Deletes what a run wrote there, manifests first, so that no half of a dataset ever has one."""
    ours = sorted(_ours(output, files), key=lambda path: not path.endswith("/" + manifest.MANIFEST))
    filesystem.delete(ours)
    clear_staging(output)


def _ours(output: str, files: Sequence[str]) -> Iterator[str]:
    for path in files:
        folder, _, name = path[len(output) :].strip("/").partition("/")
        if folder in (STAGING, TOKENIZER, BAD_RECORDS) or name in _OF_A_SPLIT or SHARD_NAME.fullmatch(name):
            yield path
