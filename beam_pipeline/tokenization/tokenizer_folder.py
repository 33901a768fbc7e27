"""The folder of a trained tokenizer. It is written atomically, and records the inputs and options of the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.run_folder import is_run_folder, run_folder_name
from tokenmill_reader.format.json_text import parse_own_json

RECORD = "tokenmill.json"
_FORMAT = "tokenmill-tokenizer"


def lock_folder(output: str) -> str:
    """Returns the folder, beside the tokenizer's, for the lock and the run's temporary files."""
    return output + ".partial"


def staging(output: str, fingerprint: str) -> str:
    """Returns the run's own folder in the lock folder."""
    return filesystem.join(lock_folder(output), run_folder_name(fingerprint))


def claim(output: str, fingerprint: str, *, overwrite: bool, resume: bool) -> bool:
    """Checks whether a run may write the folder, and removes leftovers of a killed run beside it. Needs the lock.

    Returns:
        True if the folder already contains the tokenizer with this fingerprint, and `resume` asks to keep it.

    Raises:
        UsageError: If the folder contains anything else.
    """
    _restore_old(output)
    for name in filesystem.list_subfolders(lock_folder(output)):
        if is_run_folder(name):
            filesystem.delete_folder(filesystem.join(lock_folder(output), name))
    files = filesystem.list_folder(output)
    if not files:
        return False
    record = _record(output, files)
    if record is None:
        raise UsageError(
            f"--output {output}: contains files that train-tokenizer did not write, such as {files[0]}; choose an "
            "empty folder"
        )
    if overwrite:
        _refuse_foreign(output, files, record)
        return False
    if record["fingerprint"] != fingerprint:
        raise UsageError(
            f"--output {output}: contains a tokenizer made from other input or with other options; choose an empty "
            "folder, or use --overwrite"
        )
    if not resume:
        raise UsageError(
            f"--output {output}: already contains this tokenizer; use --resume to keep it, or --overwrite to train it "
            "again"
        )
    return True


def commit(output: str, fingerprint: str, provenance: dict, files: dict[str, bytes]) -> None:
    """Writes the files: on a local file system with a single rename of the folder, on others with the record last."""
    record = {"format": _FORMAT, "version": 1, "fingerprint": fingerprint, **provenance}
    record["files"] = sorted([*files, RECORD])
    files = {**files, RECORD: (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()}
    local = filesystem.is_local(output)
    target = filesystem.join(staging(output, fingerprint), "new") if local else output
    if not local:
        _delete_old(output)
    for name, data in files.items():
        filesystem.write_bytes(filesystem.join(target, name), data)
    if local:
        filesystem.make_durable(filesystem.join(target, name) for name in files)
        _move_into_place(Path(target), Path(output))


def _move_into_place(new: Path, output: Path) -> None:
    """Replaces the tokenizer in `output`, if any. The folder never contains a part of a tokenizer."""
    old = new.with_name("old")
    replaces = output.exists() and any(output.iterdir())
    if replaces:
        output.replace(old)
    try:
        new.replace(output)
    except OSError:
        if replaces:
            old.replace(output)
        raise


def _restore_old(output: str) -> None:
    """Restores the old tokenizer, if a run was killed after moving it away and before the new one was in place."""
    if not filesystem.is_local(output) or filesystem.list_folder(output):
        return
    for name in filesystem.list_subfolders(lock_folder(output)):
        old = filesystem.join(lock_folder(output), name, "old")
        if is_run_folder(name) and filesystem.exists(filesystem.join(old, RECORD)):
            filesystem.remove_empty(output)
            Path(old).replace(output)
            return


def read(output: str) -> dict[str, bytes]:
    """Returns the files of a finished tokenizer, by name."""
    record = parse_own_json(filesystem.read_bytes(filesystem.join(output, RECORD)))
    return {name: filesystem.read_bytes(filesystem.join(output, name)) for name in record["files"]}


def clear(output: str, fingerprint: str) -> None:
    """Removes the run's staging folder."""
    filesystem.delete_folder(staging(output, fingerprint))


def _delete_old(output: str) -> None:
    """Deletes the tokenizer in the folder, its record first: files without a record are no finished tokenizer."""
    files = filesystem.list_folder(output)
    record = _record(output, files)
    if record is None:
        return
    _refuse_foreign(output, files, record)
    filesystem.delete([filesystem.join(output, RECORD)])
    filesystem.delete([filesystem.join(output, name) for name in record["files"]])


def _refuse_foreign(output: str, files: list[str], record: dict) -> None:
    foreign = {path[len(output) + 1 :] for path in files} - set(record["files"])
    if foreign:
        raise UsageError(
            f"--output {output}: --overwrite would delete {sorted(foreign)}, which train-tokenizer did not write; move "
            "them away, or choose another folder"
        )


def _record(output: str, files: list[str]) -> dict | None:
    path = filesystem.join(output, RECORD)
    if path not in files:
        return None
    try:
        record = parse_own_json(filesystem.read_bytes(path))
    except ValueError:  # another program's file
        return None
    return record if _is_record(record) else None


def _is_record(record: Any) -> bool:
    """Determines whether this is a record of this program that lists only files in its own folder."""
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        return False
    files = record.get("files")
    has_names = isinstance(files, list) and all(isinstance(name, str) and "/" not in name for name in files)
    return has_names and isinstance(record.get("fingerprint"), str)
