"""The folder of a trained tokenizer: there as a whole or not at all, and it says what it was made from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from beam_pipeline import filesystem
from beam_pipeline.errors import UsageError
from beam_pipeline.parsing import parse_own_json

RECORD = "tokenmill.json"
RUN_FOLDER = re.compile(r"[0-9a-f]{16}")
_FORMAT = "tokenmill-tokenizer"


def lock_folder(output: str) -> str:
    """The folder, beside the tokenizer's, with the lock and what is gone when the run ends."""
    return output + ".partial"


def staging(output: str, fingerprint: str) -> str:
    """The run's own folder in it."""
    return filesystem.join(lock_folder(output), fingerprint[:16])


def claim(output: str, fingerprint: str, *, overwrite: bool, resume: bool) -> bool:
    """Decides whether a run may write the folder; clears away what a killed run left beside it. Needs the lock.

    Returns:
      True where it holds the tokenizer with this fingerprint already, and `resume` asks to keep it.

    Raises:
      UsageError: where it holds something else.
    """
    _restore(output)
    for name in filesystem.list_subfolders(lock_folder(output)):
        if RUN_FOLDER.fullmatch(name):
            filesystem.delete_folder(filesystem.join(lock_folder(output), name))
    files = filesystem.list_folder(output)
    if not files:
        return False
    record = _record(output, files)
    if record is None:
        raise UsageError(
            f"--output {output}: already in use, it holds files of another origin, {files[0]} for one; name an empty "
            "folder"
        )
    if overwrite:
        _refuse_foreign(output, files, record)
        return False
    if record["fingerprint"] != fingerprint:
        raise UsageError(
            f"--output {output}: holds a tokenizer made from other input or with other options; name an empty folder, "
            "or use --overwrite"
        )
    if not resume:
        raise UsageError(
            f"--output {output}: holds this very tokenizer; --resume keeps it, --overwrite makes it again"
        )
    return True


def commit(output: str, fingerprint: str, made_from: dict, files: dict[str, bytes]) -> None:
    """Puts the files in place: a local folder in one rename, on other file systems with the record last."""
    record = {"format": _FORMAT, "version": 1, "fingerprint": fingerprint, **made_from}
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
        _put_in_place(Path(target), Path(output))


def _put_in_place(new: Path, output: Path) -> None:
    """In place of the tokenizer that the folder may hold: at no moment does it hold a part of one."""
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


def _restore(output: str) -> None:
    """Puts back the old tokenizer, if a run was killed after it had moved it away and before the new one was there."""
    if not filesystem.is_local(output) or filesystem.list_folder(output):
        return
    for name in filesystem.list_subfolders(lock_folder(output)):
        old = filesystem.join(lock_folder(output), name, "old")
        if RUN_FOLDER.fullmatch(name) and filesystem.exists(filesystem.join(old, RECORD)):
            filesystem.remove_empty(output)
            Path(old).replace(output)
            return


def read(output: str) -> dict[str, bytes]:
    """The files of a finished tokenizer, by name."""
    record = parse_own_json(filesystem.read_bytes(filesystem.join(output, RECORD)))
    return {name: filesystem.read_bytes(filesystem.join(output, name)) for name in record["files"]}


def clear(output: str, fingerprint: str) -> None:
    """Removes the run's staging folder."""
    filesystem.delete_folder(staging(output, fingerprint))


def _delete_old(output: str) -> None:
    """Deletes the tokenizer that the folder holds, its record first: without it the rest is no tokenizer of ours."""
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
            f"--output {output}: --overwrite would delete {sorted(foreign)}, which no run of this verb wrote; move "
            "them away, or name another folder"
        )


def _record(output: str, files: list[str]) -> dict | None:
    path = filesystem.join(output, RECORD)
    if path not in files:
        return None
    try:
        record = parse_own_json(filesystem.read_bytes(path))
    except ValueError:  # some other program's file
        return None
    return record if _is_record(record) else None


def _is_record(record: Any) -> bool:
    """Whether this is a record of this verb's: of files in its own folder only, which may be deleted."""
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        return False
    files = record.get("files")
    named = isinstance(files, list) and all(isinstance(name, str) and "/" not in name for name in files)
    return named and isinstance(record.get("fingerprint"), str)
