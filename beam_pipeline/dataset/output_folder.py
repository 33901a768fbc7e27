"""The output folder before and after a run: whether a run may use it, and deleting the files of earlier runs.

The caller holds the folder's lock (`dataset.lock`).
"""

from __future__ import annotations

from collections.abc import Sequence

from beam_pipeline.dataset import manifest
from beam_pipeline.dataset.bad_records import FOLDER as BAD_RECORDS
from beam_pipeline.dataset.finished_units import count_finished
from beam_pipeline.dataset.own_files import FolderContent, inspect_output, listed_sizes
from beam_pipeline.dataset.removed_documents import FOLDER as REMOVED
from beam_pipeline.dataset.staging import STAGING, TEMPORARY, staging_folder
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.support.run_folder import run_folder_name
from tokenmill_reader.format.names import (
    INDEX,
    INPUTS,
    MANIFEST,
    OFFSETS,
    SCHEMA,
    SHARD_NAME,
    STATISTICS,
    TOKENIZER,
    TRANSFORM_FN,
    UNITS,
)

_SPLIT_FILES = (MANIFEST, STATISTICS, UNITS, SCHEMA, INDEX)
_SPLIT_FOLDERS = (OFFSETS, SCHEMA.partition("/")[0])
_MAX_NAMED = 5
_LISTS = (BAD_RECORDS, REMOVED)


def refuse_dataset(output: str) -> None:
    """Raises UsageError if the folder contains a dataset, or parts of one, which a dry run would delete."""
    content = inspect_output(output)
    staged = [path for path in content.own_files if path.startswith(f"{STAGING}/")]
    if content.shards or content.finished or count_finished(staged):
        raise UsageError(
            f"--dry_run with --output {output}: contains a dataset, or an unfinished one; choose another folder"
        )


def claim(output: str, splits: Sequence[str], fingerprint: str, *, overwrite: bool, resume: bool) -> bool:
    """Checks that a run may use the folder, and deletes files of earlier runs that it would replace.

    Without `overwrite`, files are deleted only if they are of a run with the same fingerprint, or of a run that ended
    before its first shard. Files that this program did not write are never deleted.

    Returns:
        True if the folder contains the finished dataset, and `resume` is set, so nothing is left to do.

    Raises:
        UsageError: If the folder contains another dataset or other files.
        DataError: If the finished dataset is to be kept, but files of it are missing or changed.
    """
    content = inspect_output(output)
    if _has_all(content, splits, fingerprint):
        if not overwrite and not resume:
            raise UsageError(
                f"--output {output}: contains the same dataset, finished; use --resume to keep it, or --overwrite to "
                "make it again"
            )
        if resume:
            _refuse_damaged(content)
            clear_staging(output, fingerprint)  # it exists if a run was killed right after its last manifest
            return True
    is_same_run = run_folder_name(fingerprint) in content.staged
    if is_same_run and resume:
        _refuse_in_the_way(content, splits)
        return False
    is_dataset = content.shards or content.finished
    if not overwrite and not is_same_run and (is_dataset or content.protected_files):
        description = "another run's dataset" if is_dataset else "files that prepare did not write"
        example = "" if is_dataset else f", such as {filesystem.join(output, content.protected_files[0])}"
        raise UsageError(
            f"--output {output}: contains {description}{example}; choose an empty folder, or use --overwrite, which "
            "deletes only files that this program has written"
        )
    _refuse_in_the_way(content, splits)
    delete_own_files(content)
    return False


def is_finished(output: str, splits: Sequence[str], fingerprint: str) -> bool:
    """Returns whether the folder contains the finished dataset, and nothing is left to delete. Needs no lock.

    Compares the files' names and sizes with the manifests, but does not read their content; `verify` does.
    """
    sizes = {path[len(output) :].lstrip("/"): size for path, size in filesystem.list_files(output)}
    if any(path.startswith(f"{STAGING}/") for path in sizes):
        return False
    for split in splits:
        folder = filesystem.join(output, split)
        if not filesystem.exists(filesystem.join(folder, MANIFEST)):
            return False
        try:
            split_manifest = manifest.read_manifest(folder)
        except DataError:  # damaged, or another program's file
            return False
        if (
            split_manifest["fingerprint"] != fingerprint
            or not listed_sizes(split, split_manifest).items() <= sizes.items()
        ):
            return False
    return True


def clean_up_failed_run(output: str, splits: Sequence[str], fingerprint: str) -> tuple[int, int] | None:
    """Deletes the files of a failed run, except for bad records, unless `--resume` can use some of them.

    Returns:
        The number of finished work units, and the number of finished shards. None if the run has finished the dataset
        nevertheless: a runner that loses a worker right after the commit may repeat earlier steps, which fail since
        the commit has deleted their files.
    """
    content = inspect_output(output)
    if _has_all(content, splits, fingerprint) and not _damaged_files(content):
        clear_staging(output, fingerprint)
        return None
    units = count_finished([path for path in content.own_files if path.startswith(f"{STAGING}/")])
    if not content.shards and not content.finished and not units:
        delete_own_files(content, keep=BAD_RECORDS + "/")
    return units, len(content.shards)


def clear_staging(output: str, fingerprint: str) -> None:
    """Deletes the staging folder of the run with this fingerprint."""
    filesystem.delete_folder(staging_folder(output, fingerprint))


def _has_all(content: FolderContent, splits: Sequence[str], fingerprint: str) -> bool:
    """Returns whether the folder has a manifest of this dataset for each split."""
    return set(splits) <= {
        name for name, split_fingerprint in content.finished.items() if split_fingerprint == fingerprint
    }


def _damaged_files(content: FolderContent) -> list[str]:
    """Returns the missing or changed files of a finished dataset. Ignores the output of `analyze`."""
    return sorted(path for path in content.missing | content.changed if f"/{TRANSFORM_FN}" not in path)


def _refuse_damaged(content: FolderContent) -> None:
    """Refuses to keep a finished dataset with missing or changed files."""
    damaged = _damaged_files(content)
    if damaged:
        raise DataError(
            f"{content.output}: contains the same dataset, but {_list_first(damaged)} "
            f"{'is' if len(damaged) == 1 else 'are'} missing or changed; `verify` lists all defects; move changed "
            "files away, and use --overwrite to make the dataset again"
        )


def _refuse_in_the_way(content: FolderContent, splits: Sequence[str]) -> None:
    """Refuses files of others that the run would replace, or that a reader would mistake for a part of its dataset."""

    def in_the_way(path: str) -> bool:
        folder, _, name = path.partition("/")
        if not name:
            return folder in (*splits, TOKENIZER, *_LISTS, STAGING, INPUTS)
        if folder in splits:
            return (
                name in _SPLIT_FILES + _SPLIT_FOLDERS  # a link or a file in place of a folder
                or name.startswith(f"{OFFSETS}/")
                or SHARD_NAME.fullmatch(name) is not None
            )
        return folder in (TOKENIZER, INPUTS) or (folder in _LISTS and name.startswith("unit-"))

    conflicts = [path for path in content.protected_files if in_the_way(path)]
    if conflicts:
        changed = content.changed.intersection(conflicts)
        origin = "changed since an earlier run" if changed else "which prepare did not write"
        raise UsageError(
            f"--output {content.output}: contains {_list_first(conflicts)}, {origin}, at paths that this run would "
            "write; move them away, or choose another --output"
        )


def _list_first(paths: Sequence[str]) -> str:
    """Lists the first paths for a message."""
    return ", ".join(paths[:_MAX_NAMED]) + " and more" * (len(paths) > _MAX_NAMED)


def delete_own_files(content: FolderContent, keep: str = "\0") -> None:
    """Deletes this program's files, except for paths that start with `keep`.

    Manifests go first, so an incomplete dataset never has one. The temporary files in the staging folder are next, so
    a leftover process of an earlier run cannot publish them.
    """
    temporary = f"/{TEMPORARY}/"
    deletion_order: tuple[list[str], ...] = ([], [], [], [])
    for path in sorted(content.own_files):
        staged = path.startswith(f"{STAGING}/")
        if path.startswith(keep):
            continue
        if path.endswith("/" + MANIFEST) and not staged:
            deletion_order[0].append(path)
        elif staged and temporary in path:
            deletion_order[1].append(path)
        else:  # the lists in the staging folder after the files they list
            deletion_order[3 if staged else 2].append(path)
    for paths in deletion_order:
        filesystem.delete(filesystem.join(content.output, path) for path in paths)
    folders = {folder for path in (p for paths in deletion_order for p in paths) for folder in _folders(path)}
    for folder in sorted(folders, key=len, reverse=True):
        filesystem.remove_empty(filesystem.join(content.output, folder))
    for name in content.staged:
        filesystem.remove_empty_folders(filesystem.join(content.output, STAGING, name))


def _folders(path: str) -> list[str]:
    """Returns the folders above a relative path, without the output folder."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
