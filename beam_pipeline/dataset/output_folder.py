"""The output folder before and after a run: what may be deleted, and what a run leaves.

All of it needs the folder's lock (`dataset.lock`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from beam_pipeline import filesystem
from beam_pipeline.dataset import manifest
from beam_pipeline.dataset.bad_records import FOLDER as BAD_RECORDS
from beam_pipeline.dataset.finished_units import count_finished
from beam_pipeline.dataset.manifest import TOKENIZER
from beam_pipeline.dataset.own_files import FolderContent, inspect_output, listed_sizes
from beam_pipeline.dataset.shards import SHARD_NAME
from beam_pipeline.dataset.staging import STAGING, TEMPORARY, staging_folder
from beam_pipeline.errors import DataError, UsageError

_OF_A_SPLIT = (manifest.MANIFEST, manifest.STATISTICS, manifest.UNITS, manifest.SCHEMA)
_MOST_NAMED = 5


def claim(output: str, splits: Sequence[str], fingerprint: str, *, overwrite: bool, resume: bool) -> bool:
    """Decides whether a run may use the folder, and deletes what an earlier run left in its way.

    What a run left that ended before its first shard, and what the very same run left at any time, can safely be
    deleted. Files that are not this program's own are never deleted.

    Returns:
      True if the folder holds the finished dataset already, and `resume` asks to keep it.

    Raises:
      UsageError: if the folder is used by something else.
    """
    content = inspect_output(output)
    if set(splits) <= {name for name, found in content.finished.items() if found == fingerprint}:
        if not overwrite and not resume:
            raise UsageError(
                f"--output {output}: holds this very dataset, finished; --resume keeps it, --overwrite makes it again"
            )
        if resume:
            _refuse_damaged(content)
            clear_staging(output, fingerprint)  # a run killed in its last moment leaves it
            return True
    same = fingerprint[:16] in content.staged
    if same and resume:
        _refuse_in_the_way(content, splits)
        return False
    used = content.shards or content.finished
    if not overwrite and not same and (used or content.kept):
        foreign = f"other files, {filesystem.join(output, content.kept[0])} for one" if content.kept else ""
        what = "another run's dataset" if used else foreign
        raise UsageError(
            f"--output {output}: already in use, it holds {what}; name an empty folder, or use --overwrite, which "
            "deletes what this program has written there, and nothing else"
        )
    _refuse_in_the_way(content, splits)
    delete_own(content)
    return False


def is_finished(output: str, splits: Sequence[str], fingerprint: str) -> bool:
    """Whether the folder holds the finished dataset, with nothing left to clear away; needs no lock.

    Of the files, the names and sizes are compared with the manifests: their content is for `verify` to read.
    """
    sizes = {path[len(output) :].lstrip("/"): size for path, size in filesystem.list_files(output)}
    if any(path.startswith(f"{STAGING}/") for path in sizes):
        return False
    for split in splits:
        folder = filesystem.join(output, split)
        if not filesystem.exists(filesystem.join(folder, manifest.MANIFEST)):
            return False
        try:
            found = manifest.read_manifest(folder)
        except DataError:  # another program's file
            return False
        if found["fingerprint"] != fingerprint or not listed_sizes(split, found).items() <= sizes.items():
            return False
    return True


def refuse_overlap(
    output: str, splits: Sequence[str], inputs: Iterable[str], tokenizer: str | None = None
) -> None:
    """Refuses an output folder that holds what the run reads.

    Args:
      output: the folder, absolute.
      splits: the names of the folders that the run writes in it.
      inputs: the paths of the input files.
      tokenizer: the tokenizer's folder, or its name on the hub; None if the run reads none.

    Raises:
      UsageError: if the tokenizer or an input file is inside, symbolic links resolved.
    """
    inside = _Inside(
        [output, *(filesystem.join(output, name) for name in (*splits, TOKENIZER, BAD_RECORDS, STAGING))]
    )
    source = filesystem.absolute(tokenizer) if tokenizer else ""
    if source and (not filesystem.is_local(source) or _identity(source)) and inside(source):
        raise UsageError(
            f"--output {output}: the folder of --tokenizer {tokenizer} is inside; a run must not write where it reads: "
            "copy the tokenizer to another place, or name another --output"
        )
    for path in inputs:
        if inside(path.rpartition("/")[0]) or (
            filesystem.is_local(path) and Path(path).is_symlink() and inside(path)
        ):
            raise UsageError(
                f"--output {output}: the input file {path} is inside; a run must not write where it reads: name "
                "another --output"
            )


class _Inside:
    """Whether a path is one of some folders, or is in one, whatever the names and links it is reached by."""

    def __init__(self, folders: Sequence[str]):
        self._prefixes = tuple(folder.rstrip("/") + "/" for folder in folders)
        self._identities = {found for folder in folders if (found := _identity(folder))}
        self._known: dict[str, bool] = {}

    def __call__(self, path: str) -> bool:
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: str) -> bool:
        if not filesystem.is_local(path):
            return (path.rstrip("/") + "/").startswith(self._prefixes)
        above = os.path.realpath(path)
        while True:
            if _identity(above) in self._identities:
                return True
            parent = os.path.dirname(above)  # noqa: PTH120
            if parent == above:
                return False
            above = parent


def _identity(path: str) -> tuple[int, int] | None:
    """A local file's or folder's device and inode; None if there is none."""
    if not filesystem.is_local(path):
        return None
    try:
        found = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def give_up(output: str) -> tuple[int, int]:
    """After a run that failed: deletes what it left, if there is nothing that `--resume` can use; not bad records.

    Returns:
      The numbers of finished work units and of finished shards.
    """
    content = inspect_output(output)
    units = count_finished([path for path in content.own if path.startswith(f"{STAGING}/")])
    if not content.shards and not content.finished and not units:
        delete_own(content, keep=BAD_RECORDS + "/")
    return units, len(content.shards)


def clear_staging(output: str, fingerprint: str) -> None:
    """Deletes the staging folder of the run with this fingerprint."""
    filesystem.delete_folder(staging_folder(output, fingerprint))


def _refuse_damaged(content: FolderContent) -> None:
    """Refuses to keep a finished dataset of which files are missing or changed; its views can be made again."""
    damaged = sorted(
        path for path in content.missing | content.changed if f"/{manifest.TRANSFORM_FN}" not in path
    )
    if damaged:
        raise DataError(
            f"{content.output}: holds this very dataset, but {', '.join(damaged[:_MOST_NAMED])}"
            f"{' and more' * (len(damaged) > _MOST_NAMED)} {'is' if len(damaged) == 1 else 'are'} missing or changed: "
            "`verify` names every defect; move changed files away, and use --overwrite to make the dataset again"
        )


def _refuse_in_the_way(content: FolderContent, splits: Sequence[str]) -> None:
    """Refuses files that a run would replace, or that a reader would take for a part of its dataset."""

    def in_the_way(path: str) -> bool:
        folder, _, name = path.partition("/")
        if not name:
            return folder in (*splits, TOKENIZER, BAD_RECORDS, STAGING)
        if folder in splits:
            return name in _OF_A_SPLIT or SHARD_NAME.fullmatch(name) is not None
        return folder == TOKENIZER or (folder == BAD_RECORDS and name.startswith("unit-"))

    found = [path for path in content.kept if in_the_way(path)]
    if found:
        changed = content.changed.intersection(found)
        raise UsageError(
            f"--output {content.output}: {', '.join(found[:_MOST_NAMED])}{' and more' * (len(found) > _MOST_NAMED)} "
            f"{'differ from what a run wrote there' if changed else 'were not written by this program'}, so they are "
            "not deleted, and are in the way; move them away, or name another --output"
        )


def delete_own(content: FolderContent, keep: str = "\0") -> None:
    """Deletes this program's files: manifests first, so that no part of a dataset ever has one; then the staging
    folder's temporary files, so that a process left over from a run can publish none; then the rest.

    Args:
      content: the folder's.
      keep: the beginning of the paths to keep.
    """
    temporary = f"/{TEMPORARY}/"
    order: tuple[list[str], ...] = ([], [], [], [])
    for path in sorted(content.own):
        staged = path.startswith(f"{STAGING}/")
        if path.startswith(keep):
            continue
        if path.endswith("/" + manifest.MANIFEST) and not staged:
            order[0].append(path)
        elif staged and temporary in path:
            order[1].append(path)
        else:
            order[3 if staged else 2].append(path)  # the records after the files that they list
    for paths in order:
        filesystem.delete(filesystem.join(content.output, path) for path in paths)
    folders = {folder for path in (p for paths in order for p in paths) for folder in _folders(path)}
    for folder in sorted(folders, key=len, reverse=True):
        filesystem.remove_empty(filesystem.join(content.output, folder))
    for name in content.staged:
        filesystem.remove_empty_folders(filesystem.join(content.output, STAGING, name))


def _folders(path: str) -> list[str]:
    """The folders that a relative path is in, without the output folder."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
