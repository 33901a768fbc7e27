"""Executes steps by PJRT: TensorFlow traces and lowers them, JAX's runtime partitions and runs them."""

from __future__ import annotations

import logging
import math
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.data.batches import DatasetFunction
from tpu_trainer.devices.executor import StepExecutor, StepOutput
from tpu_trainer.devices.pjrt.lowering import Lowering
from tpu_trainer.devices.pjrt.mesh import DeviceMesh, rows_placement
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.devices.pjrt.sharding import Placement, bytes_per_device, place_variables, whole
from tpu_trainer.devices.pjrt.stablehlo import Program
from tpu_trainer.devices.pjrt.variable_names import VariableNames
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.objectives import BatchSums
from tpu_trainer.runs.channel import Channel
from tpu_trainer.runs.checkpoint import State
from tpu_trainer.runs.parts import Parts, StoredArray
from tpu_trainer.step.results import NonFinite, RunningSums
from tpu_trainer.step.task import Task
from tpu_trainer.support import files

if TYPE_CHECKING:
    import jax

_log = logging.getLogger(__name__)

# Steps that may be in progress: one runs, and the next one waits for it.
_STEPS_AHEAD = 2
_SAME_FILES = (
    "use the same --output_dir, data and --model.init_from on all hosts, on a shared disk or in a bucket"
)
NumpyBatch = Mapping[str, np.ndarray]


def train_step(task: Task) -> Callable[[dict[str, tf.Tensor]], tf.Tensor]:
    """Returns the training step as a function of a batch."""

    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        # The program is for the rows of all devices: its sums already are those of the whole batch.
        return task.step(batch, all_reduce=lambda values: values)["loss"]

    return step


class PjrtExecutor(StepExecutor):
    """Executes a task on a mesh of devices. The task's own variables keep their initial values."""

    def __init__(
        self,
        task: Task,
        devices: DeviceMesh,
        *,
        lowering: Lowering,
        peers: Peers | None = None,
        state: State | None = None,
        initial: InitialValues | None = None,
        deterministic: bool = False,
    ) -> None:
        """
        Args:
            task: Built for the default strategy, for the target of `devices`.
            devices: The devices.
            lowering: Lowers the programs.
            peers: The processes whose devices are in the mesh; None: only this one.
            state: The part of the task's state to hold; None: all.
            initial: The variables' initial values; None: those that they have.
            deterministic: Whether to restrict a GPU to deterministic operations.

        Raises:
            UsageError: If the devices cannot divide the model so.
        """
        self.replicas = devices.config.row_groups
        self.processes = devices.processes
        self._peers = peers or Peers()
        self._requests = [0, 0]  # of this process: to end, to save
        self._checksum: int | None = 0  # of the weights, until it is compared with the other processes'
        self._task = task
        self._devices = devices
        self._lowering = lowering
        self._deterministic = deterministic
        self._names = VariableNames(state or task.state())
        self._placements = place_variables(self.state_shapes(), devices.config)
        self._report_placement()
        self._values: dict[str, jax.Array] = {}  # by the variable's name
        self._initial = initial or InitialValues()
        self._evaluated: dict[str, str] = {}  # name of a weight → name of the one to use instead
        self._programs: dict[Any, _CompiledProgram] = {}
        self._pending: deque[jax.Array] = deque()

    def _report_placement(self) -> None:
        devices, shapes = self._devices, self.state_shapes()
        bytes_on_device = bytes_per_device(shapes, self._placements, devices.config.sizes)
        total_bytes = 4 * sum(map(math.prod, shapes.values()))
        _log.info(
            f"pjrt: {devices.devices} device(s) ({devices.kind}), {devices.config.describe()}: "
            f"{bytes_on_device / 1e6:,.1f} MB of the {total_bytes / 1e6:,.1f} MB of weights and optimizer on each"
        )

    def _placement(self, name: str, shape: Sequence[int]) -> Placement:
        return self._placements.get(name, whole(len(shape)))

    def _place_initial(self) -> None:
        """Places the values of variables that no checkpoint has set, one at a time."""
        for variable in (*self._names.variables.values(), *self._task.non_finite_record):
            self._place(variable)
        self._initial.release()

    def _place(self, variable: tf.Variable) -> str:
        """Places the initial value of a variable that has none on the devices; returns the variable's name."""
        name = self._names.name(variable)
        if name not in self._values:
            self._set(name, self._initial.value(variable))
        return name

    def _set(self, name: str, value: np.ndarray) -> None:
        if self.processes > 1 and self._checksum is not None:
            self._checksum = zlib.crc32(np.ascontiguousarray(value), self._checksum)
        self._values[name] = self._devices.put(value, self._placement(name, value.shape))

    def _value(self, name: str) -> jax.Array:
        if name not in self._values:
            self._place_initial()
        return self._values[name]

    def _get(self, name: str) -> np.ndarray:
        return self._devices.get(self._value(name))

    def distribute(self, rows: DatasetFunction) -> Iterable[Any]:
        return _NumpyBatches(rows(tf.distribute.InputContext(), self._devices.own_rows))

    def train(self, batches: Iterator[NumpyBatch], steps: range) -> StepOutput:
        waited, requests = 0.0, (0.0, 0.0)
        for step in steps:
            start_time = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - start_time
            program = self._compiled("train", train_step(self._task), batch)
            with self._devices.step_trace(step):
                if len(self._pending) == _STEPS_AHEAD:
                    self._devices.wait(self._pending.popleft())
                self._pending.append(self._run(program, batch)[0])
        if self.processes > 1:
            total = self._devices.total(*self._requests)
            requests = (_Element(total, 0), _Element(total, 1))
            self._requests[1] = 0
        return StepOutput(waited, *requests)

    def evaluate(self, batch: NumpyBatch) -> BatchSums:
        program = self._compiled("evaluate", self._task.evaluation_sums, batch)
        return BatchSums(*(float(value) for value in self._run(program, batch)))

    def row_sums(self, batch: NumpyBatch, count: int) -> np.ndarray:
        program = self._compiled("answer", partial(self._task.row_sums, count=count), batch)
        return self._devices.get(self._run(program, batch)[0])

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        average = self._task.average
        if average is not None:
            name = self._names.name
            self._evaluated = {name(weight): name(mean) for mean, weight in average.pairs}
        try:
            yield
        finally:
            self._evaluated = {}

    def _compiled(
        self, name: str, function: Callable[[dict[str, tf.Tensor]], Any], batch: NumpyBatch
    ) -> _CompiledProgram:
        """Returns the program of a function for batches of this shape; lowers and compiles it at the first call."""
        key = (name, bool(self._evaluated), *((feature, value.shape) for feature, value in batch.items()))
        if key not in self._programs:
            self._place_initial()
            self._check_weights()
            specs = {
                feature: tf.TensorSpec([self._devices.all_rows(len(value)), *value.shape[1:]], value.dtype)
                for feature, value in batch.items()
            }
            with elapsed(f"pjrt: lowering the program to {name}"):
                program = Program(function, specs)
                # Variables outside of the state have no value yet.
                captured = list(map(self._place, program.captured))
                lowered = self._lowering.lower(name, program, captured)
            variables = [self._evaluated.get(each, each) for each in captured]
            placements = [rows_placement(value.ndim) for value in batch.values()] + [
                self._placement(each, variable.shape)
                for each, variable in zip(variables, program.captured, strict=True)
            ]
            with elapsed(f"pjrt: compiling the program to {name}"):
                run = self._devices.compile(lowered, placements, deterministic=self._deterministic)
            self._programs[key] = _CompiledProgram(
                run=run,
                batch=list(specs),
                variables=variables,
                updates={
                    result: variables[number - len(specs)] for number, result in lowered.aliases.items()
                },
            )
        return self._programs[key]

    def _check_weights(self) -> None:
        """Checks that all processes have set the same values."""
        if self._checksum is not None:
            self._peers.check_same(
                {"the checksum of weights and optimizer": self._checksum}, remedy=_SAME_FILES
            )
            self._checksum = None

    def _run(self, program: _CompiledProgram, batch: NumpyBatch) -> list[jax.Array]:
        """Runs a program and stores the new values of its variables; returns its other results."""
        rows = [self._devices.put_rows(batch[name]) for name in program.batch]
        results = program.run(*rows, *(self._values[name] for name in program.variables))
        for number, name in program.updates.items():
            self._values[name] = results[number]
        return [value for number, value in enumerate(results) if number not in program.updates]

    def sums(self) -> RunningSums:
        return RunningSums.of_values(self._get(self._names.name(self._task.running)).tolist())

    def clear_sums(self) -> None:
        running = self._task.running
        self._set(self._names.name(running), np.zeros(running.shape, np.float32))

    def non_finite(self) -> NonFinite | None:
        step, figures = map(self._names.name, self._task.non_finite_record)
        return NonFinite.from_record(self._get(step), self._get(figures))

    def request_end(self) -> None:
        self._requests[0] = 1

    def request_save(self) -> None:
        self._requests[1] = 1

    def same_in_all_processes(self, value: int) -> bool:
        return len(set(self._peers.gather(str(value)))) == 1

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return self._names.shapes()

    def channel(self) -> Channel:
        return self._peers.channel()

    def state(self) -> Parts:
        return {
            name: self._devices.own_parts(self._value(name), number)
            for number, name in enumerate(self._names.variables)
        }

    def load_state(self, values: Iterable[tuple[str, np.ndarray | StoredArray]]) -> None:
        for name, value in values:
            self._values[name] = self._devices.put(value, self._placement(name, value.shape))
        # No process reads all of a checkpoint. They compare its checksums.
        self._checksum = None

    @contextmanager
    def profile(self, folder: str) -> Iterator[None]:
        # JAX writes only local files.
        with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
            with self._devices.profile(temporary):
                yield
            if self._peers.is_first:
                files.copy_tree(temporary, folder)


class _NumpyBatches:
    """The batches of a dataset as NumPy arrays. Each iterator starts at the first."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[NumpyBatch]:
        return self._dataset.as_numpy_iterator()


@dataclass(frozen=True, kw_only=True)
class _CompiledProgram:
    """A program, and what its arguments and results are."""

    run: Callable[..., Any]
    batch: list[str]
    """Names of the batch's arrays: the first arguments."""
    variables: list[str]
    """Names of the variables: the other arguments."""
    updates: dict[int, str]
    """Number of a result → name of the variable whose new value it is."""


@dataclass(frozen=True)
class _Element:
    """An element of an array on the devices. Converting it to a float waits for them."""

    array: jax.Array
    index: int

    def __float__(self) -> float:
        return float(np.asarray(self.array)[self.index])
