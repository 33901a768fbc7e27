"""Checks the location of an output folder: not inside a dataset, and not above anything that the run reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from beam_pipeline.dataset import lock
from beam_pipeline.dataset.bad_records import FOLDER as BAD_RECORDS
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.support import filesystem, local_files
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.run_folder import is_run_folder
from tokenmill_reader.format.names import MANIFEST, TOKENIZER, UNITS

_NAME_BYTES = 255  # of a file or folder, on common file systems


def check_place(output: str, option: str = "--output") -> None:
    """Checks that a folder can be written, and is not inside a dataset, which its files would damage.

    Args:
        output: The folder, absolute.
        option: The option that names it, for messages.

    Raises:
        UsageError: If a folder above it is a dataset, one of its splits, or the output of an unfinished run; or if it
            cannot be a folder.
    """
    try:
        _check_place(output, option)
    except PermissionError:
        return  # nor can the run write there, which its lock reports after the input was checked


def _check_place(output: str, option: str) -> None:
    if filesystem.is_local(output):
        _check_is_folder(output, option)
        output = os.path.realpath(output)
    parents = [*_folders_above(output)]
    for folder in (output, *parents):
        if _is_split(folder):
            raise _inside_error(output, option, f"{folder}, a split of a dataset")
    for folder in parents:
        if _is_dataset(folder):
            raise _inside_error(output, option, f"the dataset {folder}")
        staging = filesystem.join(folder, STAGING)
        runs = any(map(is_run_folder, filesystem.list_subfolders(staging)))
        if runs or filesystem.exists(filesystem.join(staging, lock.NAME)):
            raise _inside_error(output, option, f"{folder}, where another run writes or has failed")


def _check_is_folder(output: str, option: str) -> None:
    if any(len(os.fsencode(name)) > _NAME_BYTES for name in Path(output).parts):
        raise UsageError(f"{option} {output}: a name has more than {_NAME_BYTES} bytes; choose a shorter one")
    link = local_files.dangling_link(output)
    if link is not None:
        raise UsageError(
            f"{option} {output}: {link} is a symbolic link to {link.readlink()}, which does not exist; create that "
            "folder, or remove the link"
        )
    for path in (Path(output), *Path(output).parents):
        if path.exists() and not path.is_dir():
            raise UsageError(f"{option} {output}: {path} is not a folder; choose another {option}")


def _inside_error(output: str, option: str, container: str) -> UsageError:
    return UsageError(
        f"{option} {output}: is inside of {container}; a run must not change what is there; choose another {option}"
    )


def _folders_above(path: str) -> Iterator[str]:
    """Yields the folders above a path without symbolic links, the nearest first."""
    if filesystem.is_local(path):
        yield from map(str, Path(path).parents)
        return
    scheme, _, names = path.partition("://")
    while "/" in names:
        names = names.rpartition("/")[0]
        yield f"{scheme}://{names}"


def _is_split(folder: str) -> bool:
    return all(filesystem.exists(filesystem.join(folder, name)) for name in (MANIFEST, UNITS))


def _is_dataset(folder: str) -> bool:
    if not filesystem.exists(filesystem.join(folder, TOKENIZER, "tokenizer.json")):
        return False  # without searching the folder, which may be large
    return _has_split(folder)


def _has_split(folder: str) -> bool:
    names = filesystem.list_subfolders(folder)
    return any(_is_split(filesystem.join(folder, name)) for name in names)


def refuse_overlap(
    output: str, splits: Sequence[str], inputs: Iterable[str], tokenizer: str | None = None
) -> None:
    """Checks that the output folder contains nothing that the run reads. Resolves symbolic links.

    Args:
        output: The folder, absolute.
        splits: The names of the folders that the run writes in it.
        inputs: The paths of the input files.
        tokenizer: The tokenizer's folder, or its name on the hub. None if the run reads none.

    Raises:
        UsageError: If the tokenizer, an input file or another dataset is in a folder that the run writes.
    """
    for name in splits:
        folder = filesystem.join(output, name)
        if _has_split(folder):
            raise UsageError(
                f"--output {output}: the split {name} would be written into {folder}, which contains another dataset; "
                "choose another --output, or another name of the split"
            )
    is_written = _ContainmentTest(
        [output, *(filesystem.join(output, name) for name in (*splits, TOKENIZER, BAD_RECORDS, STAGING))]
    )
    source = filesystem.absolute(tokenizer) if tokenizer else ""
    if source and (not filesystem.is_local(source) or _identity(source)) and is_written(source):
        raise UsageError(
            f"--output {output}: contains the folder of --tokenizer {tokenizer}, but a run must not write where it "
            "reads; copy the tokenizer to another place, or choose another --output"
        )
    for path in inputs:
        if is_written(path.rpartition("/")[0]) or (
            filesystem.is_local(path) and Path(path).is_symlink() and is_written(path)
        ):
            raise UsageError(
                f"--output {output}: contains the input file {path}, but a run must not write where it reads; choose "
                "another --output"
            )


class _ContainmentTest:
    """Tests whether a path is one of some folders or below one. Local folders are compared by device and inode."""

    def __init__(self, folders: Sequence[str]):
        self._prefixes = tuple(folder.rstrip("/") + "/" for folder in folders)
        self._identities = {identity for folder in folders if (identity := _identity(folder))}
        self._answers: dict[str, bool] = {}

    def __call__(self, path: str) -> bool:
        if path not in self._answers:
            self._answers[path] = self._is_inside(path)
        return self._answers[path]

    def _is_inside(self, path: str) -> bool:
        if not filesystem.is_local(path):
            return (path.rstrip("/") + "/").startswith(self._prefixes)
        folder = os.path.realpath(path)
        while True:
            if _identity(folder) in self._identities:
                return True
            parent = os.path.dirname(folder)  # noqa: PTH120
            if parent == folder:
                return False
            folder = parent


def _identity(path: str) -> tuple[int, int] | None:
    """Returns the device and inode of a local file or folder; None if it is missing or remote."""
    if not filesystem.is_local(path):
        return None
    try:
        status = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
