"""Runs `tpu_trainer` commands one after another in separate processes, and injects faults.

`run_all` starts this module as a process, which imports TensorFlow once and forks a process per command before
TensorFlow computes anything. It reads chains of [arguments, fault, output file] as JSON from standard input, and writes
the exit statuses (negative: a signal) to standard output.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Fault = dict[str, Any]


def run_all(
    folder: Path, chains: Sequence[Sequence[tuple[Sequence[Any], Fault]]], *, at_once: int = 2
) -> list[list[tuple[int, str]]]:
    """Returns (exit status, output) of each run of each chain.

    A run is (arguments, fault); a fault is {name of a function below: its argument}. The runs of a chain are
    sequential, and `at_once` chains run at a time. Temporary files are in `folder`/temporary.
    """
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    plan = [
        [
            [[str(argument) for argument in arguments], fault, str(folder / f"output-{chain}-{number}.txt")]
            for number, (arguments, fault) in enumerate(runs)
        ]
        for chain, runs in enumerate(chains)
    ]
    result = subprocess.run(
        [sys.executable, "-m", "tests.tpu_trainer.faults", str(at_once)],
        input=json.dumps(plan),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        # Runs lower and compile the programs of --strategy pjrt only once.
        env=os.environ
        | {
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache" / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
    )
    assert result.returncode == 0, result.stderr
    return [
        [(status, Path(log).read_text()) for status, (*_, log) in zip(statuses, runs, strict=True)]
        for statuses, runs in zip(json.loads(result.stdout), plan, strict=True)
    ]


def call_at_step(step: int, action: Callable[[], None]) -> None:
    """Calls `action` after `step` updates: after the log is written, before anything is saved."""
    from tpu_trainer.training.progress import ProgressLog

    original = ProgressLog.after

    def after(self: ProgressLog, steps: range, output: Any) -> None:
        original(self, steps, output)
        if steps.stop == step:
            action()

    ProgressLog.after = after


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def environment(values: dict[str, str]) -> None:
    os.environ.update(values)


def in_folder(path: str) -> None:
    os.chdir(path)


def lost_after(seconds: float) -> None:
    from tpu_trainer.devices.pjrt import peers

    peers.LOST_AFTER_SECONDS = seconds


def renewed_every(seconds: float) -> None:
    """Shortens the time in which the `fit` of a killed process may renew its lock in Cloud Storage."""
    from tpu_trainer.cloud import lease, run_lease

    run_lease.RENEWAL_SECONDS = lease._GRACE_SECONDS = seconds


def kill_at(step: int) -> None:
    call_at_step(step, lambda: send(signal.SIGKILL))


def terminate_at(step: int) -> None:
    call_at_step(step, lambda: send(signal.SIGTERM))


def terminate_twice_at(step: int) -> None:
    def send_twice() -> None:
        send(signal.SIGTERM)
        time.sleep(0.5)
        send(signal.SIGTERM)
        time.sleep(60)

    call_at_step(step, send_twice)


def signal_while_compiling(number: int) -> None:
    from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor

    def compiling(*arguments: Any) -> None:
        send(number)
        time.sleep(60)

    TensorFlowExecutor.train = compiling


def terminate_in_evaluation(step: int) -> None:
    from tpu_trainer.training.evaluation import Evaluator, Validation

    evaluate, run = Validation.run, Evaluator.run

    def evaluate_with_signal(self: Validation, current_step: int, **options: Any) -> Any:
        def run_with_signal(self: Evaluator, **arguments: Any) -> Any:
            send(signal.SIGTERM)
            time.sleep(0.5)
            return run(self, **arguments)

        Evaluator.run = run_with_signal if current_step == step else run
        return evaluate(self, current_step, **options)

    Validation.run = evaluate_with_signal


def kill_in_write_of(step: int) -> None:
    """Sends SIGKILL when half of the checkpoint's tensors are written."""
    import tensorflow as tf

    original = tf.raw_ops.SaveV2

    def save_half(
        *, prefix: str, tensor_names: list[str], shape_and_slices: list[str], tensors: list[Any]
    ) -> None:
        count = len(tensors)
        if f"step-{step:08d}" in prefix:
            count //= 2
        original(
            prefix=prefix,
            tensor_names=tensor_names[:count],
            shape_and_slices=shape_and_slices[:count],
            tensors=tensors[:count],
        )
        if count < len(tensors):
            send(signal.SIGKILL)

    tf.raw_ops.SaveV2 = save_half


def refuse_writes_from(step: int) -> None:
    """Imitates a full disk: from `step` on, checkpoints, log and chart cannot be written."""
    from tpu_trainer.support import files

    def raise_disk_full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse_writes() -> None:
        files.append_text = files.write_text = raise_disk_full

    call_at_step(step, refuse_writes)


def fill_disk_at(step_and_file: tuple[int, str]) -> None:
    """Fills the disk of a file after a step."""
    step, path = step_and_file

    def fill_disk() -> None:
        with Path(path).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC

    call_at_step(step, fill_disk)


def remove_before(path: str) -> None:
    Path(path).unlink()


def _start(arguments: list[str], fault: Fault, output: str, run: Callable[[], int]) -> int:
    """Forks the process of a run and returns its id."""
    child = os.fork()
    if child:
        return child
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    for name, argument in fault.items():
        globals()[name](argument)
    sys.argv = ["tpu_trainer", *arguments]
    sys.exit(run())


def main() -> None:
    import jax  # noqa: F401 all that the runs need

    import tpu_trainer.training.train
    import tpu_trainer.verbs.fit  # noqa: F401 (imported once, before the forks)
    from tpu_trainer.__main__ import main as run

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    chains = json.load(sys.stdin)
    statuses: list[list[int]] = [[] for _ in chains]
    waiting_chains, running_chains = list(range(len(chains))), {}
    while waiting_chains or running_chains:
        while waiting_chains and len(running_chains) < int(sys.argv[1]):
            chain = waiting_chains.pop(0)
            running_chains[_start(*chains[chain][0], run)] = chain
        process, status = os.wait()
        chain = running_chains.pop(process)
        statuses[chain].append(os.waitstatus_to_exitcode(status))
        if len(statuses[chain]) < len(chains[chain]):
            running_chains[_start(*chains[chain][len(statuses[chain])], run)] = chain
    json.dump(statuses, sys.stdout)


if __name__ == "__main__":
    main()
