"""Executes steps by PJRT: TensorFlow traces and lowers them, JAX's runtime partitions and runs them."""

from __future__ import annotations

import json
import logging
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config.mesh import DATA, MODEL, MeshConfig
from tpu_trainer.data.batches import DatasetFunction
from tpu_trainer.devices.executor import StepExecutor, StepOutput
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache, packed, unpacked
from tpu_trainer.devices.pjrt.mesh import DeviceMesh, rows_placement
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.devices.pjrt.sharding import (
    Placement,
    bytes_per_device,
    check_heads,
    is_fused,
    place_variables,
)
from tpu_trainer.devices.pjrt.stablehlo import Lowered, Program
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernel_check import Rejected
from tpu_trainer.network.objectives import Sums
from tpu_trainer.network.patches.fused_projection import grouped, ungrouped
from tpu_trainer.runs.checkpoint import State, named_variables
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
_SAME_RELEASES = "install the same releases of all packages on all hosts"
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
        mesh: MeshConfig,
        cache: LoweringCache,
        peers: Peers | None = None,
        state: State | None = None,
        initial: InitialValues | None = None,
        deterministic: bool = False,
    ) -> None:
        """
        Args:
            task: Built for the default strategy, with `devices.data` shards and `devices.model` column groups.
            devices: The devices.
            mesh: The options that determine how they divide the variables.
            cache: Of lowered programs.
            peers: The processes whose devices are in the mesh; None: only this one.
            state: The part of the task's state to hold; None: all.
            initial: The variables' initial values; None: those that they have.
            deterministic: Whether to restrict a GPU to deterministic operations.

        Raises:
            UsageError: If the devices cannot divide the model so.
        """
        self.replicas = devices.data
        self.processes = devices.processes
        self._peers = peers or Peers()
        self._requests = [0, 0]  # of this process: to end, to save
        self._checksum: int | None = 0  # of the weights, until it is compared with the other processes'
        self._task = task
        self._devices = devices
        self._cache = cache
        self._deterministic = deterministic
        check_heads(task.network.config, devices.model)
        self._named = named_variables(state or task.state())
        placements = place_variables(self.state_shapes(), mesh, data=devices.data)
        self._report_placement(placements)
        # Keyed by the variables' handles: Keras wraps variables, and a wrapper has the handle of its variable.
        self._placements = {id(variable.handle): placements[name] for name, variable in self._named.items()}
        self._fused = {id(variable.handle) for name, variable in self._named.items() if is_fused(name)}
        self._values: dict[int, jax.Array] = {}
        self._initial = initial or InitialValues()
        self._evaluated: dict[int, int] = {}  # handle of a weight → handle of the one to use instead
        self._programs: dict[Any, _CompiledProgram] = {}
        self._pending: deque[jax.Array] = deque()

    def _report_placement(self, placements: Mapping[str, Placement]) -> None:
        devices, shapes = self._devices, self.state_shapes()
        sizes = {DATA: devices.data, MODEL: devices.model}
        own = bytes_per_device(shapes, placements, sizes)
        whole = bytes_per_device(shapes, placements, {DATA: 1, MODEL: 1})
        _log.info(
            f"pjrt: {devices.devices} device(s) ({devices.kind}), data {devices.data}, model {devices.model}: "
            f"{own / 1e6:,.1f} MB of the {whole / 1e6:,.1f} MB of weights and optimizer on each"
        )

    def _placement(self, variable: tf.Variable) -> Placement:
        return self._placements.get(id(variable.handle), (None,) * len(variable.shape))

    def _place_initial(self) -> None:
        """Places the values of variables that no checkpoint has set, one at a time."""
        for variable in (*self._named.values(), *self._task.non_finite_record):
            if id(variable.handle) not in self._values:
                self._set(variable, self._initial.value(variable))
        self._initial.release()

    def _set(self, variable: tf.Variable, value: np.ndarray) -> None:
        if self.processes > 1 and self._checksum is not None:
            self._checksum = zlib.crc32(np.ascontiguousarray(value), self._checksum)
        if id(variable.handle) in self._fused:
            value = grouped(value, self._devices.model)
        self._values[id(variable.handle)] = self._devices.put(value, self._placement(variable))

    def _get(self, variable: tf.Variable) -> np.ndarray:
        if id(variable.handle) not in self._values:
            self._place_initial()
        value = self._devices.get(self._values[id(variable.handle)])
        return ungrouped(value, self._devices.model) if id(variable.handle) in self._fused else value

    def distribute(self, rows: DatasetFunction) -> Iterable[Any]:
        return _Batches(rows(tf.distribute.InputContext(), self._devices.own_rows))

    def train(self, batches: Iterator[NumpyBatch], steps: range) -> StepOutput:
        waited, requests = 0.0, (0.0, 0.0)
        for step in steps:
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
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

    def evaluate(self, batch: NumpyBatch) -> Sums:
        program = self._compiled("evaluate", self._task.evaluation_sums, batch)
        return Sums(*(float(value) for value in self._run(program, batch)))

    @contextmanager
    def evaluated_weights(self) -> Iterator[None]:
        average = self._task.average
        if average is not None:
            self._evaluated = {id(weight.handle): id(mean.handle) for mean, weight in average.pairs}
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
                lowered = self._lowered(name, program)
            variables: list[int] = []
            placements = [rows_placement(value.ndim) for value in batch.values()]
            for variable in program.captured:
                handle = id(variable.handle)
                variables.append(self._evaluated.get(handle, handle))
                if handle not in self._values:
                    # Outside of the state: the optimizer's note of its current learning rate.
                    self._set(variable, self._initial.value(variable))
                placements.append(self._placements.get(variables[-1], (None,) * len(variable.shape)))
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

    def results(
        self, function: Callable[[dict[str, tf.Tensor]], list[tf.Tensor]], arrays: dict[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Executes a function of arrays, which each device gets whole, on all devices together; raises Rejected."""
        program = Program(
            function, {name: tf.TensorSpec(each.shape, each.dtype) for name, each in arrays.items()}
        )
        placements: list[Placement] = [(None,) * array.ndim for array in arrays.values()]
        lowered = self._lowered("check the attention kernel", program)
        try:
            run = self._devices.compile(lowered, placements)
            return list(map(self._devices.get, run(*map(self._devices.put, arrays.values(), placements))))
        except self._devices.error as error:
            raise Rejected(str(error)) from error

    def _check_weights(self) -> None:
        """Checks that all processes have set the same values."""
        if self._checksum is not None:
            self._peers.check_same(
                {"the checksum of weights and optimizer": self._checksum}, remedy=_SAME_FILES
            )
            self._checksum = None

    def _lowered(self, name: str, program: Program) -> Lowered:
        """Lowers a program in the first process: names in what is lowered depend on the process's past."""
        if self.processes == 1:
            return self._cache.lower(program)
        names = {id(variable.handle): each for each, variable in self._named.items()}
        arguments = [names.get(id(variable.handle), "") for variable in program.captured]
        same = {"": self._cache.key(program), "'s arguments": zlib.crc32(json.dumps(arguments).encode())}
        self._peers.check_same(
            {f"the program to {name}{part}": value for part, value in same.items()}, remedy=_SAME_RELEASES
        )
        data = packed(self._cache.lower(program)) if self._peers.is_first else b""
        self._peers.gather("lowered")  # takes long: devices would not wait so long for each other
        return unpacked(self._devices.from_first(data))

    def _run(self, program: _CompiledProgram, batch: NumpyBatch) -> list[jax.Array]:
        """Runs a program and stores the new values of its variables; returns its other results."""
        rows = [self._devices.put_rows(batch[name]) for name in program.batch]
        results = program.run(*rows, *(self._values[handle] for handle in program.variables))
        for number, handle in program.updates.items():
            self._values[handle] = results[number]
        return [value for number, value in enumerate(results) if number not in program.updates]

    def sums(self) -> RunningSums:
        return RunningSums(*self._get(self._task.running).tolist())

    def clear_sums(self) -> None:
        self._set(self._task.running, np.zeros(len(RunningSums._fields), np.float32))

    def non_finite(self) -> NonFinite | None:
        step, figures = self._task.non_finite_record
        return NonFinite.of(self._get(step), self._get(figures))

    def request_end(self) -> None:
        self._requests[0] = 1

    def request_save(self) -> None:
        self._requests[1] = 1

    def same_in_all_processes(self, value: int) -> bool:
        return len(set(self._peers.gather(str(value)))) == 1

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(variable.shape.as_list()) for name, variable in self._named.items()}

    def state(self) -> Mapping[str, np.ndarray]:
        found = {}
        for name, variable in self._named.items():
            value = self._get(variable)
            if self._peers.is_first:
                found[name] = value
        return found

    def load_state(self, values: Iterable[tuple[str, np.ndarray]]) -> None:
        self._checksum = 0
        for name, value in values:
            self._set(self._named[name], value)

    @contextmanager
    def profile(self, folder: str) -> Iterator[None]:
        # JAX writes only local files.
        with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
            with self._devices.profile(temporary):
                yield
            if self._peers.is_first:
                files.copy_tree(temporary, folder)


class _Batches:
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
    variables: list[int]
    """Handles of the variables: the other arguments."""
    updates: dict[int, int]
    """Number of a result → handle of the variable whose new value it is."""


@dataclass(frozen=True)
class _Element:
    """An element of an array on the devices. Converting it to a float waits for them."""

    array: jax.Array
    index: int

    def __float__(self) -> float:
        return float(np.asarray(self.array)[self.index])
