"""Fuzzes `prepare` and `convert` with seeded inputs, options, tokenizers and faults. One oracle checks all cases.

    python -m tests.fuzz --cases 1000 [--seed 0] [--only N] [--keep FOLDER]

Prints a line for each failure, and the counts at the end. The exit status is 1 if any case failed. The runs are forked
from this process, which imports the pipeline once and starts no threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tests.beam_pipeline.beam_signatures import remember_signatures
from tests.fuzz import faults
from tests.fuzz.cases import BEFORE, Case, make_case
from tests.fuzz.faults import Child, Ended
from tests.fuzz.oracle import Oracle, dataset_files, differences, snapshot
from tests.fuzz.tokenizers_for_fuzz import write_tokenizer

_USERS_FILES = {
    "notes": ("notes.txt", "sub/more.txt"),
    "staging": ("_staging/mine.txt", "_staging/shards/x"),
    "tokenizer": ("tokenizer/tokenizer.json", "tokenizer/mine.txt"),
    "bad_records": ("bad_records/unit-000000.jsonl",),
    "split": ("train/notes.txt", "train/train-00000-5.tfrecord"),
    "report": ("report.html",),
}


def _without_manifests(files: dict) -> dict:
    """Returns what a converted dataset has in common with a prepared one. bad_records/ is a log of the run."""
    return {
        name: data
        for name, data in files.items()
        if not name.endswith("/manifest.json") and not name.startswith("bad_records/")
    }


class CaseRun:
    """Runs one case in its own folder."""

    def __init__(self, case: Case, root: Path, oracle: Oracle):
        self._case = case
        self._oracle = oracle
        self._root = root
        self._home = root / "home"
        self._output = self._home / case.output
        self._logs = root / "logs"
        self._wrong: list[str] = []
        self._users: dict[str, bytes] = {}
        self._references: dict[tuple[str, int | None], dict | None] = {}  # by verb and seed

    def wrong(self) -> list[str]:
        """Runs the case and returns everything that is wrong."""
        case = self._case
        self._logs.mkdir(parents=True)
        case.write_input(self._root / "input")
        write_tokenizer(case.tokenizer, self._root / "tokenizer")
        for name in case.neighbours:
            if name != case.output:
                (self._home / name / "train").mkdir(parents=True)
                (self._home / name / "train" / "train-00000-5.tfrecord").write_bytes(b"not yours")
                (self._home / name / "x.tmp").write_bytes(b"not yours")
        self._home.mkdir(exist_ok=True)
        if case.output == "link":
            (self._root / "elsewhere").mkdir()
            self._output.symlink_to(self._root / "elsewhere")
        prepared = self._reference(case, verb="prepare")
        if prepared is None or self._wrong:
            return self._wrong
        reference = prepared if case.verb == "prepare" else self._reference(case)
        if reference is None:
            return self._wrong
        for found in differences(_without_manifests(prepared), _without_manifests(reference)):
            self._wrong.append(f"converted, unlike prepared: {found}")
        self._fill_output()
        around = self._surroundings()
        if case.fault.startswith(("second", "paused")):
            self._two_runs(reference)
        else:
            self._one_run(reference)
        self._wrong += [f"around the output: {found}" for found in differences(around, self._surroundings())]
        return self._wrong

    def _surroundings(self) -> dict:
        around = snapshot(self._root, leave_out=self._output)
        outside = ("logs", "input", "elsewhere", "references")
        parents = {
            str(folder.relative_to(self._root))
            for folder in self._output.parents
            if self._root in folder.parents
        }
        return {
            name: content
            for name, content in around.items()
            if name not in parents and not name.startswith(outside)
        }

    def _argv(self, output: Path, *more: str, seed: int | None = None, verb: str | None = None) -> list[str]:
        """Returns the arguments of a run of `verb`; by default that of the case."""
        case = self._case
        if (verb or case.verb) == "convert":
            source = self._source(seed)
            return [
                "convert",
                str(source),
                "--output_format",
                case.output_format,
                f"--output={output}",
                *more,
            ]
        return self._prepare(output, case.output_format, *more, seed=seed)

    def _source(self, seed: int | None) -> Path:
        """Returns the dataset that a run of `convert` reads, if it can be made."""
        folder = self._root / "references" / f"source-{seed}"
        if not folder.exists():
            Child(self._prepare(folder, self._case.converted_from, seed=seed), self._logs).wait()
        return folder

    def _prepare(self, output: Path, output_format: str, *more: str, seed: int | None) -> list[str]:
        case = self._case
        options = [*case.options, "--output_format", output_format]
        if seed is not None:
            options[options.index("--seed") + 1] = str(seed)
        inputs = ["--input", str(self._root / "input" / "*")]
        return [
            "prepare",
            *inputs,
            f"--tokenizer={self._root / 'tokenizer'}",
            f"--output={output}",
            *options,
            *more,
        ]

    def _reference(self, case: Case, seed: int | None = None, verb: str | None = None) -> dict | None:
        """Returns the files that an undisturbed run writes, or None if the run is refused or fails."""
        key = (verb or case.verb, seed)
        if key not in self._references:
            self._references[key] = self._make_reference(case, seed, verb)
        return self._references[key]

    def _make_reference(self, case: Case, seed: int | None, verb: str | None) -> dict | None:
        folder = self._root / "references" / f"{verb or case.verb}-{seed}" / case.output
        ended = Child(self._argv(folder, seed=seed, verb=verb), self._logs).wait()
        self._check_message(ended, "undisturbed")
        if case.refused or (ended.status and "--num_shards" in ended.err):
            if ended.status == 0:
                self._wrong.append(f"undisturbed: accepted despite {case.refused}")
            elif list(folder.glob("*/manifest.json")):
                self._wrong.append("undisturbed: refused, but there is a manifest")
            return None
        if ended.status != 0:
            self._wrong.append(f"undisturbed: status {ended.status}: {ended.err.strip()[-300:]}")
            return None
        if seed is None:
            self._wrong += [f"undisturbed: {found}" for found in self._oracle.check(case, folder)]
        return dataset_files(folder)

    def _fill_output(self) -> None:
        before, output = self._case.before, self._output
        if before == "empty":
            output.mkdir(parents=True, exist_ok=True)
        elif before in _USERS_FILES:
            for name in _USERS_FILES[before]:
                (output / name).parent.mkdir(parents=True, exist_ok=True)
                (output / name).write_bytes(b"the user's own")
                self._users[name] = b"the user's own"
        elif before in ("same", "other"):
            ended = Child(self._argv(output, seed=None if before == "same" else 5), self._logs).wait()
            if ended.status != 0:
                self._wrong.append(f"before: status {ended.status}: {ended.err.strip()[-300:]}")

    def _one_run(self, reference: dict) -> None:
        case = self._case
        found = snapshot(self._output)
        more = (
            ()
            if case.before == "nothing"
            else random.Random(case.name).choice(((), ("--overwrite",), ("--resume",)))
        )
        ended = Child(self._argv(self._output, *more), self._logs, **self._fault()).wait()
        label = f"{case.fault} at {case.at} {more}"
        if ended.status == -signal.SIGKILL and case.fault == "kill":
            self._check_users(label)
        else:
            self._check_end(ended, label, found, reference)
        if case.fault in ("input_gone",):
            return
        found = snapshot(self._output)
        whole = bool(list(self._output.glob("*/manifest.json"))) and not self._oracle.defects(self._output)
        if whole:
            self._wrong += [f"{label}: whole, but {loss}" for loss in self._oracle.losses(case, self._output)]
        again = Child(self._argv(self._output, *case.follow_up), self._logs).wait()
        label += f", then {case.follow_up}"
        self._check_end(again, label, found, reference)
        if again.status != 0 and not whole and not self._users and case.before not in ("same", "other"):
            self._wrong.append(f"{label}: status {again.status}: {again.err.strip()[-300:]}")

    def _fault(self) -> dict:
        case, rng = self._case, random.Random(self._case.name)
        watched = {"watched": str(self._output.resolve()), "at": case.at}
        if case.output == "link":
            watched["watched"] = str(self._output)
        if case.fault == "kill":
            return {**watched, "strike": faults.kill}
        if case.fault in ("error", "error_from"):
            strike = faults.failing(rng.choice(faults.ERRORS))
            return {**watched, "strike": strike, "from_then_on": case.fault == "error_from"}
        if case.fault == "clock":
            return {**watched, "strike": faults.jump}
        if case.fault == "input_gone":
            return {**watched, "strike": faults.removing(sorted((self._root / "input").iterdir()))}
        if case.fault == "file_size":
            return {"prepare": faults.limit_file_size(int(2 ** rng.uniform(3, 14)))}
        return {}

    def _two_runs(self, reference: dict) -> None:
        """Starts two runs with one output folder, concurrently or one while the other is paused."""
        case, output = self._case, self._output
        found = snapshot(output)
        seed = None if case.fault == "second_same" else 7
        verb = random.Random(case.name).choice(("prepare", case.verb))
        same = seed is None and verb == case.verb
        other = reference if same else self._reference(case, seed, verb)
        more = ("--overwrite",) if case.fault == "paused_overwrite" else ()
        argv, second_argv = self._argv(output), self._argv(output, *more, seed=seed, verb=verb)
        if case.fault.startswith("paused"):
            fault = {**self._fault(), "watched": str(output), "at": case.at, "strike": faults.stop}
            first = Child(argv, self._logs, **fault)
            standing = first.stopped()
            second = Child(second_argv, self._logs).wait()
            if standing:
                os.kill(first.pid, signal.SIGCONT)
            ends = (
                [(second, other), (first.wait(), reference)]
                if standing
                else [(first.wait(), reference), (second, other)]
            )
        else:
            first = Child(argv, self._logs)
            time.sleep(random.Random(case.name).choice((0, 0, 0.1, 0.5, 1)))
            second = Child(second_argv, self._logs)
            ends = [(second.wait(), other), (first.wait(), reference)]
        label = f"{case.fault} at {case.at}"
        for ended, _ in ends:
            self._check_message(ended, label)
        self._check_users(label)
        won = [files for ended, files in ends if ended.status == 0]
        if won:
            self._wrong += [f"{label}: {wrong}" for wrong in self._oracle.check(case, output)]
            now = {name: data for name, data in dataset_files(output).items() if name not in self._users}
            if all(now != files for files in won):
                self._wrong.append(f"{label}: the files are of neither run: {differences(won[-1], now)[:5]}")
        elif case.before in ("nothing", "empty"):
            failures = [(ended.status, ended.err.strip()[-200:]) for ended, _ in ends]
            self._wrong.append(f"{label}: both runs failed: {failures}")
        elif case.before in ("same", "other") or self._users:
            self._wrong += [
                f"{label}: both refused, but {change}" for change in differences(found, snapshot(output))
            ]

    def _check_end(self, ended: Ended, label: str, found: dict, reference: dict) -> None:
        """Checks what must hold after a run that was not killed."""
        self._check_message(ended, label)
        self._check_users(label)
        if ended.status == 0:
            self._wrong += [f"{label}: {wrong}" for wrong in self._oracle.check(self._case, self._output)]
            now = {
                name: data for name, data in dataset_files(self._output).items() if name not in self._users
            }
            self._wrong += [
                f"{label}: not the undisturbed run's: {wrong}" for wrong in differences(reference, now)[:5]
            ]
        elif ended.status == 2:
            changes = differences(found, snapshot(self._output))
            # The run may delete an empty staging folder, and the lock of a run that was killed.
            allowed = ["'_staging' is gone", "'_staging/run.lock' is gone"]
            # If every change fails, it cannot delete its own either.
            if "cannot release the lock" in ended.err:
                allowed += ["'_staging' is new", "'_staging/run.lock' is new"]
            self._wrong += [f"{label}: refused, but {change}" for change in changes if change not in allowed]

    def _check_users(self, label: str) -> None:
        for name, data in self._users.items():
            path = self._output / name
            if not path.is_file() or path.read_bytes() != data:
                self._wrong.append(f"{label}: the user's own {name} is gone or changed")

    def _check_message(self, ended: Ended, label: str) -> None:
        """Checks that the run ended with status 0, or with a message for the user."""
        if ended.status is None:
            self._wrong.append(f"{label}: hangs: {ended.err.strip()[-300:]}")
        elif "Traceback" in ended.err or ended.status not in (0, 1, 2, -signal.SIGKILL):
            self._wrong.append(
                f"{label}: status {ended.status}, with a traceback: {ended.err.strip()[-1500:]}"
            )
        elif ended.status > 0 and not any(
            line.startswith(("prepare: ", "convert: ")) for line in ended.err.splitlines()
        ):
            self._wrong.append(
                f"{label}: status {ended.status} without a message: {ended.err.strip()[-300:]}"
            )


def main() -> int:
    """Runs the cases and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=100, help="number of cases (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all cases (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: 0)")
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="N", help="run only the cases with these numbers"
    )
    parser.add_argument(
        "--keep", type=Path, help="keep the files of the cases in this folder (default: delete them)"
    )
    parser.add_argument("--show", action="store_true", help="print each case before it runs")
    args = parser.parse_args()
    from beam_pipeline.engines import engine  # noqa: F401
    from beam_pipeline.verbs import convert, prepare, verify  # noqa: F401 (imported once, before the forks)

    remember_signatures()
    numbers = args.only or range(args.first, args.first + args.cases)
    seen: Counter[str] = Counter()
    wrong_cases = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        root = args.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        oracle = Oracle(Path(temporary))
        try:
            for number in numbers:
                case = make_case(args.seed, number)
                seen.update(
                    [
                        f"{case.verb} {case.output_format}",
                        f"fault {case.fault}",
                        f"before {case.before}",
                        f"refused: {case.refused}",
                    ]
                )
                if args.show:
                    shown = dataclasses.replace(
                        case,
                        files=tuple(dataclasses.replace(f, content=b"", documents=()) for f in case.files),
                    )
                    print(f"case {number}: {shown}", flush=True)
                wrong = CaseRun(case, root / case.name, oracle).wrong()
                for line in wrong:
                    print(f"WRONG case {number}: {line}", flush=True)
                wrong_cases += bool(wrong)
                if not args.keep:
                    shutil.rmtree(root / case.name)
        finally:
            oracle.close()
    print(", ".join(f"{count} {what}" for what, count in sorted(seen.items())))
    print(f"{len(numbers)} cases, {wrong_cases} of them wrong")
    return 1 if wrong_cases else 0


if __name__ == "__main__":
    assert set(_USERS_FILES) < set(BEFORE)
    sys.exit(main())
