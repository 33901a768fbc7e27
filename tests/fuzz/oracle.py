"""Checks the invariants of an output folder after a run, whatever happened to it.

An output folder has either no dataset, or one that both `verify` and an independent reader find complete. Files that do
not belong to the run are unchanged. If the independent reader finds damage, `verify` must find some, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tests.fuzz.cases import Case
from tests.fuzz.tokenizers_for_fuzz import expected_ids

Snapshot = dict[str, bytes | str]

# The report contains the folder's name, so it is never compared.
_VIEWS = ("report.html",)


def snapshot(folder: Path, leave_out: Path | None = None) -> Snapshot:
    """Returns the content of a folder: files with their bytes, links with their targets, and folders."""
    content: Snapshot = {}
    for path in sorted(folder.rglob("*")):
        if leave_out is not None and (path == leave_out or leave_out in path.parents):
            continue
        name = str(path.relative_to(folder))
        if path.is_symlink():
            content[name] = f"link to {path.readlink()}"
        else:
            content[name] = "folder" if path.is_dir() else path.read_bytes()
    return content


def dataset_files(folder: Path) -> Snapshot:
    """Returns the files of a dataset except its report."""
    return {
        name: content
        for name, content in snapshot(folder).items()
        if isinstance(content, bytes) and name not in _VIEWS
    }


def differences(before: Mapping, after: Mapping) -> list[str]:
    """Returns what is new, gone or changed, one sentence each."""
    return [
        *(f"{name!r} is gone" for name in sorted(set(before) - set(after))),
        *(f"{name!r} is new" for name in sorted(set(after) - set(before))),
        *(
            f"{name!r} has changed"
            for name in sorted(before)
            if name in after and before[name] != after[name]
        ),
    ]


class Oracle:
    """Checks output folders. The independent reader runs in its own process, which imports TensorFlow only once."""

    def __init__(self, scratch: Path):
        self._arrays = scratch / "arrays.npz"
        self._reader = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.independent_readers"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # TensorFlow logs while it starts
            text=True,
        )

    def close(self) -> None:
        """Ends the reader's process."""
        self._reader.stdin.close()
        self._reader.wait(timeout=60)

    def defects(self, folder: Path) -> list[str]:
        """Returns the defects that `verify` finds."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException), os.fdopen(write_end, "w") as pipe:
                os.close(read_end)
                pipe.write(json.dumps(_verify(folder)))
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text) if text else ["verify ended without output"]

    def check(self, case: Case, folder: Path) -> list[str]:
        """Returns what is wrong with a dataset that must be complete and contain the case's documents."""
        defects = self.defects(folder)
        return [f"verify: {defect}" for defect in defects] or self.losses(case, folder)

    def losses(self, case: Case, folder: Path) -> list[str]:
        """Returns what the independent reader finds missing or in excess, compared with the case's documents."""
        max_length = (
            None if case.packing == "none" else int(case.options[case.options.index("--max_length") + 1])
        )
        manifests = sorted(folder.glob("*/manifest.json"))
        rows: list[np.ndarray] = []
        for manifest in manifests:
            request = {"folder": str(manifest.parent), "format": case.output_format, "max_length": max_length}
            request["to"] = str(self._arrays)
            self._reader.stdin.write(json.dumps(request) + "\n")
            self._reader.stdin.flush()
            answer = json.loads(self._reader.stdout.readline())
            if answer != "ok":
                return [f"the independent reader: {manifest.parent.name}: {answer}"]
            with np.load(self._arrays) as arrays:
                rows += np.split(arrays["ids"], np.cumsum(arrays["lengths"]))[:-1]
        expected = [
            np.array(ids, np.int64) for ids in expected_ids(case.tokenizer, case.documents, case.append_eos)
        ]
        expected = [ids for ids in expected if len(ids)]
        if case.packing == "none":
            if len(manifests) == 1 and self._one_unit(folder):
                is_same = [*map(_key, rows)] == [*map(_key, expected)]
                return [] if is_same else ["the records are not equal to the documents in order"]
            return _compare("documents", map(_key, rows), map(_key, expected))
        if case.packing == "pad":
            pieces = [
                ids[first : first + max_length]
                for ids in expected
                for first in range(0, len(ids), max_length)
            ]
            return _compare("rows", map(_key, rows), map(_key, pieces))
        if (
            case.packing == "concat"
            and "none" in case.options  # --shuffle
            and len(manifests) == 1
            and self._one_unit(folder)
        ):
            is_same = np.array_equal(_joined(rows), _joined(expected))
            return [] if is_same else ["the stream of tokens is not equal to the documents in order"]
        return _compare("tokens", _joined(rows).tolist(), _joined(expected).tolist())

    def _one_unit(self, folder: Path) -> bool:
        units = next(iter(folder.glob("*/units.jsonl"))).read_text().splitlines()
        return sum("tails" not in json.loads(line) for line in units) == 1


def _verify(folder: Path) -> list[str]:
    from beam_pipeline.__main__ import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run("verify", [str(folder)])
    if status:
        return [*out.getvalue().splitlines(), *err.getvalue().splitlines()]
    return []


def _key(ids: np.ndarray) -> bytes:
    return ids.astype(np.int64).tobytes()


def _joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _compare(item: str, actual: Iterable, expected: Iterable) -> list[str]:
    """Returns the differences of two multisets."""
    from collections import Counter

    actual, expected = Counter(actual), Counter(expected)
    if actual == expected:
        return []
    missing, excess = expected - actual, actual - expected
    return [
        f"{missing.total()} {item} lost ({list(missing.items())[:5]}), "
        f"{excess.total()} in excess ({list(excess.items())[:5]})"
    ]
