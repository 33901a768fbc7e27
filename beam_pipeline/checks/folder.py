"""Checks of a dataset's folder: its files outside of the folders of the splits and of the tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from beam_pipeline.dataset import bad_records, lock, removed_documents
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.support import filesystem
from beam_pipeline.support.run_folder import is_run_folder, run_folder_name
from tokenmill_reader.format.names import INPUTS, MANIFEST, REPORT, TOKENIZER

_MAX_NOTES = 20
_OWN_FILES = (REPORT, INPUTS, f"{STAGING}/{lock.NAME}")


def check_folder(
    dataset: str, splits: Collection[str], *, finished: str | None
) -> tuple[list[str], list[str]]:
    """Checks a dataset's folder, except for its splits and its tokenizer.

    Args:
        dataset: The folder.
        splits: The names of the splits.
        finished: The fingerprint of the dataset if its splits are complete; otherwise None.

    Returns:
        The defects and the notes.
    """
    listed_folders = (*splits, TOKENIZER)  # their own checks list them
    unreadable: list[OSError] = []
    paths = [path for path, _ in filesystem.list_files(dataset, unreadable=unreadable)]
    files = [name for name in _relative_names(dataset, paths) if name.partition("/")[0] not in listed_folders]
    defects = [
        f"{error.filename}: cannot be listed: {error}"
        for error in unreadable
        if next(_relative_names(dataset, [error.filename])).partition("/")[0] not in listed_folders
    ]
    staged = {parts[1] for name in files if (parts := name.split("/"))[0] == STAGING and len(parts) > 2}
    notes = []
    for name in sorted(filter(is_run_folder, staged)):
        path = filesystem.join(dataset, STAGING, name)
        if finished is None:
            defects.append(
                f"{path}: left behind by a run that failed or was killed; the same command with --resume deletes it"
            )
        elif name == run_folder_name(finished):
            notes.append(
                f"{path}: left behind by the run that made this dataset, which was killed after it had finished; the "
                "dataset is complete, and the same command with --resume deletes the folder"
            )
        else:
            notes.append(f"{path}: left behind by another run, and not part of the dataset; delete it")
    if MANIFEST in files:
        path = filesystem.join(dataset, MANIFEST)
        defects.append(
            f"{path}: is not part of the dataset, which programs would take for a split; delete it"
        )
        files.remove(MANIFEST)
    unknown = [name for name in files if not _is_own(name)]
    return defects, notes + unknown_notes(filesystem.join(dataset, name) for name in unknown)


def unknown_notes(paths: Iterable[str]) -> list[str]:
    """Returns a note for each file that does not belong to a dataset, but only for the first of many."""
    paths = list(paths)
    notes = [f"{path}: is not part of the dataset" for path in paths[:_MAX_NOTES]]
    if len(paths) > _MAX_NOTES:
        notes.append(f"{len(paths) - _MAX_NOTES:,} more files are not part of the dataset")
    return notes


def _relative_names(folder: str, paths: Iterable[str]) -> Iterator[str]:
    yield from (path[len(folder) :].lstrip("/") for path in paths)


def _is_own(name: str) -> bool:
    folder, _, path_in_folder = name.partition("/")
    if folder == STAGING:
        return name in _OWN_FILES or is_run_folder(path_in_folder.partition("/")[0])
    return name in _OWN_FILES or any(
        folder == kind.FOLDER and kind.FILE_NAME.fullmatch(path_in_folder) is not None
        for kind in (bad_records, removed_documents)
    )
