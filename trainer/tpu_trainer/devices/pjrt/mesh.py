"""The devices of --strategy pjrt: those that JAX finds, as a mesh that partitions a program.

With partitioning.py, peers.py and stablehlo.py, the only file of --strategy pjrt that uses private interfaces of
TensorFlow and JAX. Written for JAX 0.10; 0.11 has dropped one field of `jax.export.Exported`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpu_trainer.config.mesh import AXES, ROWS, MeshConfig
from tpu_trainer.devices.pjrt.sharding import Placement, whole
from tpu_trainer.support.chips import CHIPS, KINDS
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    import jax

    from tpu_trainer.devices.pjrt.stablehlo import Array, Lowered
    from tpu_trainer.runs.parts import Part, StoredArray

_SUPPORTED = ((0, 10), (0, 11))
_REMEDY = "install tokenmill-trainer[pjrt], or use another --strategy"


def import_jax() -> Any:
    """Returns JAX, set up for the steps' 64-bit counters.

    Raises:
        UsageError: If it is not installed or its release is not supported.
    """
    try:
        import jax
    except ImportError as error:
        raise UsageError(f"--strategy is 'pjrt', which needs the package jax ({error}); {_REMEDY}") from error
    if jax.__version_info__[:2] not in _SUPPORTED:
        names = " and ".join(".".join(map(str, release)) for release in _SUPPORTED)
        raise UsageError(
            f"--strategy is 'pjrt', which supports jax {names}; {jax.__version__} is installed; {_REMEDY}"
        )
    jax.config.update("jax_enable_x64", True)
    return jax


class DeviceMesh:
    """The devices that divide rows, experts, tokens and layers."""

    def __init__(self, config: MeshConfig, devices: Sequence[Any] | None = None) -> None:
        """
        Args:
            config: The mesh.
            devices: JAX's devices; None: those of this machine.

        Raises:
            UsageError: If JAX is not installed, or there are too few devices, or not as many in each process.
        """
        self._jax = import_jax()
        try:
            all_devices = self._jax.devices() if devices is None else devices
        except RuntimeError as error:
            raise UsageError(f"--strategy is 'pjrt', but JAX finds no device: {error}") from error
        self.platform: str = all_devices[0].platform
        """cpu, gpu or tpu."""
        self.kind: str = all_devices[0].device_kind
        """The vendor's name of a device."""
        self.error: type[Exception] = self._jax.errors.JaxRuntimeError
        """The error that the compiler and the devices raise."""
        self.processes: int = self._jax.process_count()
        """Processes whose devices are in the mesh."""
        self._check_divided_equally(all_devices)
        several = self.processes > 1
        name = f"JAX finds {len(all_devices)} {f'of {self.processes} processes' if several else 'here'} ({self.kind})"
        self.config = config.on(len(all_devices), name, all_used=several)
        """The mesh, with the size of each axis."""
        self.devices = self.config.devices
        """Number of devices in use."""
        sizes = tuple(self.config.sizes.values())
        self._mesh = self._jax.sharding.Mesh(np.array(all_devices[: self.devices]).reshape(sizes), AXES)
        self._summed = self._jax.jit(_sum, out_shardings=self.sharding(((),)))
        # Several devices of a CPU that execute several programs at a time confuse Gloo's messages between processes.
        self._waits = self.platform == "cpu" and self.processes > 1

    def _check_divided_equally(self, all_devices: Sequence[Any]) -> None:
        counts = dict.fromkeys(range(self.processes), 0) | Counter(
            device.process_index for device in all_devices
        )
        if len(set(counts.values())) > 1:
            least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise UsageError(
                f"--strategy pjrt needs the same number of devices in each process, but process {least} has "
                f"{counts[least]} and process {most} {counts[most]} ({self.kind}); check the devices of these hosts"
            )

    def sharding(self, placement: Placement) -> Any:
        """Returns JAX's form of a placement."""
        return self._jax.sharding.NamedSharding(self._mesh, self._jax.sharding.PartitionSpec(*placement))

    def put(self, value: np.ndarray | StoredArray, placement: Placement) -> jax.Array:
        """Copies an array, which is the same in all processes, to the devices. May return before it has.

        Of a stored array, it reads the parts of this process's devices.
        """
        sharding = self.sharding(placement)
        if self.processes == 1 and isinstance(value, np.ndarray):
            # Without `may_alias`, a CPU would use the array's own memory, which a donating step then overwrites.
            return self._jax.device_put(value, sharding, may_alias=False)
        parts: dict[str, np.ndarray] = {}  # several devices may have the same

        def part(index: tuple[slice, ...]) -> np.ndarray:
            if str(index) not in parts:
                parts[str(index)] = value[index]
            # A CPU would use the array's own memory, which a donating step then overwrites.
            return np.array(parts[str(index)]) if self.platform == "cpu" else parts[str(index)]

        return self._jax.make_array_from_callback(value.shape, sharding, part)

    def own_rows(self, rows: int) -> np.ndarray:
        """Returns which rows of a batch of `rows` the devices of this process use, in ascending order, int64[n]."""
        parts = self.sharding((ROWS,)).addressable_devices_indices_map((rows,)).values()
        return np.unique(np.concatenate([np.arange(rows)[part] for part in parts]))

    def all_rows(self, own_count: int) -> int:
        """Returns the number of rows of a batch in which this process has `own_count`."""
        groups = self.config.row_groups
        return own_count * groups // self.own_rows(groups).size

    def put_rows(self, rows: np.ndarray) -> jax.Array:
        """Copies the `own_rows` of a batch to the devices. May return before it has."""
        placement = rows_placement(rows.ndim)
        if self.processes == 1:
            return self.put(rows, placement)
        shape = (self.all_rows(len(rows)), *rows.shape[1:])
        return self._jax.make_array_from_process_local_data(self.sharding(placement), rows, shape)

    def get(self, value: jax.Array) -> np.ndarray:
        """Copies an array that no mesh axis divides to the host."""
        # A copy: an array of a CPU's memory is donated to the next step.
        return np.array(value)

    def own_parts(self, value: jax.Array, number: int) -> list[Part]:
        """Copies the parts of an array that this process saves to the host.

        Several devices may have a copy of a part. Which of them saves it depends on `number`, so that processes share
        the work if each array has another.
        """
        from tpu_trainer.runs.parts import Part  # imports TensorFlow

        indices = value.sharding.devices_indices_map(value.shape).values()
        copies = len(indices) // len(set(map(str, indices)))
        # An array of a CPU's memory is donated to the next step.
        copy = np.array if self.platform == "cpu" else np.asarray
        return [
            Part(value.shape, tuple(part.start or 0 for part in shard.index), copy(shard.data))
            for shard in value.addressable_shards
            if shard.replica_id == number % copies
        ]

    def total(self, *counts: int) -> jax.Array:
        """Returns the sums of counts over the processes, int32[n]. Does not wait for them."""
        own_counts = np.zeros((self._jax.local_device_count(), len(counts)), np.int32)
        own_counts[0] = counts
        sharding = self.sharding((AXES, ()))
        values = self._jax.make_array_from_process_local_data(
            sharding, own_counts, (self.devices, len(counts))
        )
        return self._finished(self._summed(values))

    def from_first(self, data: bytes) -> bytes:
        """Returns the bytes that process 0 calls this with."""
        from jax.experimental.multihost_utils import broadcast_one_to_all

        size = int(broadcast_one_to_all(np.array(len(data))))
        buffer = np.zeros(size, np.uint8)
        if self._jax.process_index() == 0:
            buffer[:] = np.frombuffer(data, np.uint8)
        return np.asarray(broadcast_one_to_all(buffer)).tobytes()

    def _finished(self, results: Any) -> Any:
        return self._jax.block_until_ready(results) if self._waits else results

    def compile(
        self,
        lowered: Lowered,
        arguments: Sequence[Placement],
        *,
        deterministic: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compiles a program for the mesh. Results that replace an argument have its placement; others are whole.

        Args:
            lowered: The program, for the rows of all devices.
            arguments: Placement of each argument.
            deterministic: Whether a GPU is restricted to deterministic operations.
            options: Further options of the compiler.

        Returns:
            A function of the placed arguments, which donates those that a result replaces.
        """
        from tpu_trainer.devices.pjrt.partitioning import partition  # imports TensorFlow

        results: list[Placement] = [whole(len(shape)) for shape, _ in lowered.results]
        for argument, result in lowered.aliases.items():
            results[result] = arguments[argument]
        lowered = partition(lowered, arguments, self.config)
        jitted = self._jax.jit(
            _exported(lowered, platform=self.platform).call,
            in_shardings=tuple(map(self.sharding, arguments)),
            out_shardings=tuple(map(self.sharding, results)),
            donate_argnums=tuple(lowered.aliases),
        )
        shapes = [self._jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in lowered.arguments]
        options = dict(options or {})
        if (chip := CHIPS.get(KINDS.get(self.kind, ""))) is not None:
            options |= dict(chip.compiler_options)
        if deterministic and self.platform == "gpu":
            options["xla_gpu_deterministic_ops"] = True
        compiled = jitted.lower(*shapes).compile(compiler_options=options)
        return (lambda *values: self._finished(compiled(*values))) if self._waits else compiled

    def wait(self, value: jax.Array) -> None:
        """Waits until an array is computed."""
        self._jax.block_until_ready(value)

    def step_trace(self, step: int) -> Any:
        """Returns a context whose operations the profiler groups as a step."""
        return self._jax.profiler.StepTraceAnnotation("train", step_num=step)

    def profile(self, folder: str) -> Any:
        """Returns a context that is profiled into a local folder."""
        return self._jax.profiler.trace(folder)


def rows_placement(dimensions: int) -> Placement:
    """Returns the placement of an array of a batch: [B] or [B, L].

    Devices that divide tokens have the numbers of whole rows: few bytes, whose shifts would otherwise be exchanged.
    """
    return (ROWS, *whole(dimensions - 1))


# Not a lambda, because JAX would compile each of them again.
def _sum(values: jax.Array) -> jax.Array:
    return values.sum(axis=0, dtype=values.dtype)


def _exported(lowered: Lowered, *, platform: str) -> Any:
    """Returns the program as if JAX had exported it, so that jax.jit can call, partition and donate."""
    import jax
    from jax import export
    from jax._src import core

    def avals(arrays: Sequence[Array]) -> tuple[Any, ...]:
        return tuple(core.ShapedArray(shape, np.dtype(dtype)) for shape, dtype in arrays)

    inputs, outputs = avals(lowered.arguments), avals(lowered.results)
    values = {
        "fun_name": "step",
        "in_tree": jax.tree.structure((inputs, {})),
        "in_avals": inputs,
        "out_tree": jax.tree.structure(outputs),
        "out_avals": outputs,
        "_has_named_shardings": True,
        "_in_named_shardings": (None,) * len(inputs),
        "_out_named_shardings": (None,) * len(outputs),
        "in_shardings_hlo": (None,) * len(inputs),
        "out_shardings_hlo": (None,) * len(outputs),
        "nr_devices": 1,
        "platforms": (platform,),
        "ordered_effects": (),
        "unordered_effects": (),
        "disabled_safety_checks": (export.DisabledSafetyCheck.platform(),),
        "mlir_module_serialized": lowered.artifact,
        "calling_convention_version": export.maximum_supported_calling_convention_version,
        "module_kept_var_idx": tuple(range(len(inputs))),
        "uses_global_constants": False,
        "_get_vjp": None,
    }
    names = {field.name for field in dataclasses.fields(export.Exported)}
    return export.Exported(**{name: value for name, value in values.items() if name in names})
