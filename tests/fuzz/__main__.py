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
    """Returns what a converted dataset has in common with a prepared one, which also lists what its run left out."""
    return {
        name: data
        for name, data in files.items()
        if not name.endswith("/manifest.json") and not name.startswith(("bad_records/", "removed/"))
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
        self._failures: list[str] = []
        self._users: dict[str, bytes] = {}
        self._references: dict[tuple[str, int | None], dict | None] = {}  # by verb and seed

    def find_failures(self) -> list[str]:
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
        if prepared is None or self._failures:
            return self._failures
        reference = prepared if case.verb == "prepare" else self._reference(case)
        if reference is None:
            return self._failures
        for difference in differences(_without_manifests(prepared), _without_manifests(reference)):
            self._failures.append(f"converted, unlike prepared: {difference}")
        self._fill_output()
        before = self._surroundings()
        if case.fault.startswith(("second", "paused")):
            self._two_runs(reference)
        else:
            self._one_run(reference)
        self._failures += [
            f"around the output: {difference}" for difference in differences(before, self._surroundings())
        ]
        return self._failures

    def _surroundings(self) -> dict:
        files = snapshot(self._root, leave_out=self._output)
        own_folders = ("logs", "input", "elsewhere", "references")
        parents = {
            str(folder.relative_to(self._root))
            for folder in self._output.parents
            if self._root in folder.parents
        }
        return {
            name: content
            for name, content in files.items()
            if name not in parents and not name.startswith(own_folders)
        }

    def _argv(
        self, output: Path, *extra_options: str, seed: int | None = None, verb: str | None = None
    ) -> list[str]:
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
                *extra_options,
            ]
        return self._prepare(output, case.output_format, *extra_options, seed=seed)

    def _source(self, seed: int | None) -> Path:
        """Returns the dataset that a run of `convert` reads, if it can be made."""
        folder = self._root / "references" / f"source-{seed}"
        if not folder.exists():
            Child(self._prepare(folder, self._case.converted_from, seed=seed), self._logs).wait()
        return folder

    def _prepare(self, output: Path, output_format: str, *extra_options: str, seed: int | None) -> list[str]:
        case = self._case
        options = [*case.options, *case.curation.options(self._root), "--output_format", output_format]
        if seed is not None:
            options[options.index("--seed") + 1] = str(seed)
        inputs = ["--input", str(self._root / "input" / "*")]
        return [
            "prepare",
            *inputs,
            f"--tokenizer={self._root / 'tokenizer'}",
            f"--output={output}",
            *options,
            *extra_options,
        ]

    def _reference(self, case: Case, seed: int | None = None, verb: str | None = None) -> dict | None:
        """Returns the files that an undisturbed run writes, or None if the run is refused or fails."""
        key = (verb or case.verb, seed)
        if key not in self._references:
            self._references[key] = self._make_reference(case, seed, verb)
        return self._references[key]

    def _make_reference(self, case: Case, seed: int | None, verb: str | None) -> dict | None:
        folder = self._root / "references" / f"{verb or case.verb}-{seed}" / case.output
        result = Child(self._argv(folder, seed=seed, verb=verb), self._logs).wait()
        self._check_message(result, "undisturbed")
        if case.is_refused or (result.status and "--num_shards" in result.err):
            if result.status == 0:
                self._failures.append(f"undisturbed: accepted despite {case.is_refused}")
            elif list(folder.glob("*/manifest.json")):
                self._failures.append("undisturbed: refused, but there is a manifest")
            return None
        if result.status != 0:
            self._failures.append(f"undisturbed: status {result.status}: {result.err.strip()[-300:]}")
            return None
        if seed is None:
            self._failures += [f"undisturbed: {message}" for message in self._oracle.check(case, folder)]
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
            result = Child(self._argv(output, seed=None if before == "same" else 5), self._logs).wait()
            if result.status != 0:
                self._failures.append(f"before: status {result.status}: {result.err.strip()[-300:]}")

    def _one_run(self, reference: dict) -> None:
        case = self._case
        before = snapshot(self._output)
        resume_options = (
            ()
            if case.before == "nothing"
            else random.Random(case.name).choice(((), ("--overwrite",), ("--resume",)))
        )
        result = Child(self._argv(self._output, *resume_options), self._logs, **self._fault()).wait()
        label = f"{case.fault} at {case.fault_change} {resume_options}"
        if result.status == -signal.SIGKILL and case.fault == "kill":
            self._check_users(label)
        else:
            self._check_end(result, label, before, reference)
        if case.fault in ("input_gone",):
            return
        before = snapshot(self._output)
        is_complete = bool(list(self._output.glob("*/manifest.json"))) and not self._oracle.defects(
            self._output
        )
        if is_complete:
            self._failures += [
                f"{label}: whole, but {loss}" for loss in self._oracle.losses(case, self._output)
            ]
        second_result = Child(self._argv(self._output, *case.follow_up), self._logs).wait()
        label += f", then {case.follow_up}"
        self._check_end(second_result, label, before, reference)
        if (
            second_result.status != 0
            and not is_complete
            and not self._users
            and case.before not in ("same", "other")
        ):
            self._failures.append(
                f"{label}: status {second_result.status}: {second_result.err.strip()[-300:]}"
            )

    def _fault(self) -> dict:
        case, rng = self._case, random.Random(self._case.name)
        options = {"watched_folder": str(self._output.resolve()), "fault_change": case.fault_change}
        if case.output == "link":
            options["watched_folder"] = str(self._output)
        if case.fault == "kill":
            return {**options, "fault": faults.kill}
        if case.fault in ("error", "error_from"):
            fault = faults.failing(rng.choice(faults.ERRORS))
            return {**options, "fault": fault, "from_then_on": case.fault == "error_from"}
        if case.fault == "clock":
            return {**options, "fault": faults.jump}
        if case.fault == "input_gone":
            return {**options, "fault": faults.removing(sorted((self._root / "input").iterdir()))}
        if case.fault == "file_size":
            return {"prepare": faults.limit_file_size(int(2 ** rng.uniform(3, 14)))}
        return {}

    def _two_runs(self, reference: dict) -> None:
        """Starts two runs with one output folder, concurrently or one while the other is paused."""
        case, output = self._case, self._output
        before = snapshot(output)
        seed = None if case.fault == "second_same" else 7
        verb = random.Random(case.name).choice(("prepare", case.verb))
        is_same_run = seed is None and verb == case.verb
        other_reference = reference if is_same_run else self._reference(case, seed, verb)
        second_options = ("--overwrite",) if case.fault == "paused_overwrite" else ()
        argv, second_argv = self._argv(output), self._argv(output, *second_options, seed=seed, verb=verb)
        if case.fault.startswith("paused"):
            fault = {
                **self._fault(),
                "watched_folder": str(output),
                "fault_change": case.fault_change,
                "fault": faults.stop,
            }
            first = Child(argv, self._logs, **fault)
            is_stopped = first.wait_for_stop()
            second = Child(second_argv, self._logs).wait()
            if is_stopped:
                os.kill(first.pid, signal.SIGCONT)
            outcomes = (
                [(second, other_reference), (first.wait(), reference)]
                if is_stopped
                else [(first.wait(), reference), (second, other_reference)]
            )
        else:
            first = Child(argv, self._logs)
            time.sleep(random.Random(case.name).choice((0, 0, 0.1, 0.5, 1)))
            second = Child(second_argv, self._logs)
            outcomes = [(second.wait(), other_reference), (first.wait(), reference)]
        label = f"{case.fault} at {case.fault_change}"
        for result, _ in outcomes:
            self._check_message(result, label)
        self._check_users(label)
        finished_files = [files for result, files in outcomes if result.status == 0]
        if finished_files:
            self._failures += [f"{label}: {message}" for message in self._oracle.check(case, output)]
            files_now = {
                name: data for name, data in dataset_files(output).items() if name not in self._users
            }
            if all(files_now != files for files in finished_files):
                self._failures.append(
                    f"{label}: the files are of neither run: {differences(finished_files[-1], files_now)[:5]}"
                )
        elif case.before in ("nothing", "empty"):
            failures = [(result.status, result.err.strip()[-200:]) for result, _ in outcomes]
            self._failures.append(f"{label}: both runs failed: {failures}")
        elif case.before in ("same", "other") or self._users:
            self._failures += [
                f"{label}: both refused, but {change}" for change in differences(before, snapshot(output))
            ]

    def _check_end(self, result: Ended, label: str, before: dict, reference: dict) -> None:
        """Checks what must hold after a run that was not killed."""
        self._check_message(result, label)
        self._check_users(label)
        if result.status == 0:
            self._failures += [
                f"{label}: {message}" for message in self._oracle.check(self._case, self._output)
            ]
            files_now = {
                name: data for name, data in dataset_files(self._output).items() if name not in self._users
            }
            self._failures += [
                f"{label}: not the undisturbed run's: {message}"
                for message in differences(reference, files_now)[:5]
            ]
        elif result.status == 2:
            changes = differences(before, snapshot(self._output))
            # The run may delete an empty staging folder, and the lock of a run that was killed.
            allowed = ["'_staging' is gone", "'_staging/run.lock' is gone"]
            # If every change fails, it cannot delete its own either.
            if "cannot release the lock" in result.err:
                allowed += ["'_staging' is new", "'_staging/run.lock' is new"]
            self._failures += [
                f"{label}: refused, but {change}" for change in changes if change not in allowed
            ]

    def _check_users(self, label: str) -> None:
        for name, data in self._users.items():
            path = self._output / name
            if not path.is_file() or path.read_bytes() != data:
                self._failures.append(f"{label}: the user's own {name} is gone or changed")

    def _check_message(self, result: Ended, label: str) -> None:
        """Checks that the run ended with status 0, or with a message for the user."""
        if result.status is None:
            self._failures.append(f"{label}: hangs: {result.err.strip()[-300:]}")
        elif "Traceback" in result.err or result.status not in (0, 1, 2, -signal.SIGKILL):
            self._failures.append(
                f"{label}: status {result.status}, with a traceback: {result.err.strip()[-1500:]}"
            )
        elif result.status > 0 and not any(
            line.startswith(("prepare: ", "convert: ")) for line in result.err.splitlines()
        ):
            self._failures.append(
                f"{label}: status {result.status} without a message: {result.err.strip()[-300:]}"
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
    feature_counts: Counter[str] = Counter()
    wrong_cases = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        root = args.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        oracle = Oracle(Path(temporary))
        try:
            for number in numbers:
                case = make_case(args.seed, number)
                feature_counts.update(
                    [
                        f"{case.verb} {case.output_format}",
                        f"fault {case.fault}",
                        f"before {case.before}",
                        f"refused: {case.is_refused}",
                        *(f"with {name}" for name in case.curation.features),
                    ]
                )
                if args.show:
                    summary = dataclasses.replace(
                        case,
                        files=tuple(dataclasses.replace(f, content=b"", documents=()) for f in case.files),
                    )
                    print(f"case {number}: {summary}", flush=True)
                failures = CaseRun(case, root / case.name, oracle).find_failures()
                for line in failures:
                    print(f"WRONG case {number}: {line}", flush=True)
                wrong_cases += bool(failures)
                if not args.keep:
                    shutil.rmtree(root / case.name)
        finally:
            oracle.close()
    print(", ".join(f"{count} {feature}" for feature, count in sorted(feature_counts.items())))
    print(f"{len(numbers)} cases, {wrong_cases} of them wrong")
    return 1 if wrong_cases else 0


if __name__ == "__main__":
    assert set(_USERS_FILES) < set(BEFORE)
    sys.exit(main())
