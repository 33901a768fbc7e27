"""Compiles a tf.function to a TPU executable on a machine without a TPU.

With training/stablehlo.py, the only file that uses private interfaces of TensorFlow, JAX and libtpu for compile-check.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.config.mesh import MeshConfig
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.pjrt.partitioning import partition
from tpu_trainer.devices.pjrt.sharding import Placement
from tpu_trainer.devices.pjrt.stablehlo import Lowered, flat_function, parse_artifact
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.interruption import ending_at_once

# The releases whose private interfaces this file was written for.
WRITTEN_FOR = {"tensorflow": "2.20", "jax": "0.10", "jaxlib": "0.10", "libtpu": "0.0.51"}
_REMEDY = "`make compile-check` installs the supported releases (trainer/requirements-tpu-check.lock)"
# Keeps libtpu from querying the metadata server for the TPU host, and from taking its lock.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}


class DoesNotCompile(Exception):
    """XLA rejected the program. The message is XLA's."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The compiler's verdict on a program that needs more memory than the device has."""

    needed: float
    """Bytes."""
    available: float
    """Bytes."""
    arguments: int | None = None
    """Bytes of weights and optimizer, if these alone are too many. The step was not compiled then, and needs more."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A StableHLO module."""

    text: str
    digest: str
    """A hash of the program that does not depend on the process or on source locations."""


@dataclass(frozen=True, kw_only=True)
class MeshModule:
    """A step for a mesh of devices, as `fit --strategy pjrt` compiles it."""

    lowered: Lowered
    placements: tuple[Placement, ...]
    """Placements of the arguments."""
    mesh: MeshConfig
    """The mesh, with the size of each axis."""

    @property
    def digest(self) -> str:
        """A hash of the program and its placement."""
        program = partition(self.lowered, self.placements, self.mesh)
        placed = json.dumps([self.placements, self.mesh.sizes]).encode()
        return hashlib.sha256(program.artifact + placed).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Executable:
    """The compiler's figures for a compiled program on one device. Sizes are in bytes."""

    arguments: int
    outputs: int
    aliased: int
    """The part of `outputs` that is written over arguments."""
    temporaries: int
    code: int
    flops: float
    bytes_accessed: float
    hlo: str
    """Text of the optimized module."""


def versions() -> dict[str, str]:
    """Returns the installed releases of the packages in `WRITTEN_FOR`.

    Raises:
        UsageError: If a package is not installed, or its release is not supported.
    """
    installed = {}
    for name, prefix in WRITTEN_FOR.items():
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"compile-check needs {name} {prefix}, but {name} is not installed; {_REMEDY}"
            ) from None
        if not f"{installed[name]}.".startswith(f"{prefix}."):
            raise UsageError(
                f"compile-check needs {name} {prefix}, but {installed[name]} is installed; {_REMEDY}"
            )
    return installed


def all_reduce(values: Any, replicas: int) -> Any:
    """Sums a nest of tensors over all replicas, with the operation that tf.distribute's all-reduce becomes on a TPU.

    tf.distribute's own operation has no kernel on a machine without a TPU.
    """
    if replicas == 1:
        return values
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    group = tf.constant([list(range(replicas))])
    return tf.nest.map_structure(
        lambda value: gen_xla_ops.xla_all_reduce(value, group, reduce_op="Add", mode="CrossReplica"), values
    )


def called_graphs(operation: tf.Operation) -> list[tf.Graph]:
    """Returns the graphs of the functions that an operation calls: a call's body, a conditional's branches, or a loop's
    body and condition."""
    graphs = []
    for name in operation.node_def.attr:
        value = operation.get_attr(name)
        for item in value if isinstance(value, list | tuple) else [value]:
            # Function attributes are NameAttrLists.
            function_name = getattr(item, "name", None)
            if isinstance(function_name, str) and operation.graph._is_function(function_name):
                graphs.append(operation.graph._get_function(function_name).graph)
    return graphs


class BatchFunction:
    """A function of one batch that XLA compiles as a whole."""

    def __init__(
        self, function: Callable[[dict[str, tf.Tensor]], Any], specs: Mapping[str, tf.TensorSpec]
    ) -> None:
        """
        Args:
            function: The function, traced the way `fit` traces a step.
            specs: The shapes of the batch.
        """

        self.specs = specs
        self._function = flat_function(function, specs)

    def trace(self) -> tf.Graph:
        """Traces the function and returns its graph. Exceptions of the function propagate."""
        return self._function.get_concrete_function(*self.specs.values()).graph

    def lower(self) -> Module:
        """Lowers the function to StableHLO, including variables and their donation.

        Raises:
            DoesNotCompile: If XLA rejects the program.
        """
        return _lower(self._function, list(self.specs.values()))


def _lower(function: Any, specs: list[tf.TensorSpec]) -> Module:
    from jax._src.interpreters import mlir

    try:
        artifact = function.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized")
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise DoesNotCompile(str(error)) from error
    with mlir.make_ir_context() as context:
        module = parse_artifact(artifact, context)
        text = module.operation.get_asm(enable_debug_info=True)
        bare = module.operation.get_asm()
    # TensorFlow numbers functions in the order of their creation in a process. Renumber the symbols for the hash.
    symbols: dict[str, str] = {}
    bare = re.sub(r"@[\w.$-]+", lambda match: symbols.setdefault(match[0], f"@{len(symbols)}"), bare)
    return Module(text=text, digest=hashlib.sha256(bare.encode()).hexdigest())


def compile_module(module: Module | MeshModule, topology: Topology) -> Executable | OutOfMemory:
    """Compiles a module for the devices of `topology`: a replica for each device, or a mesh of them.

    Raises:
        DoesNotCompile: If XLA rejects the program.
        UsageError: If libtpu does not support the topology.
    """
    from jax.errors import JaxRuntimeError

    devices = devices_of(topology)
    with (
        tempfile.TemporaryDirectory(prefix="tpu_trainer-") as dump,
        ending_at_once(lambda: shutil.rmtree(dump, ignore_errors=True)),
    ):
        options = {"xla_dump_to": dump, "xla_dump_hlo_as_long_text": True}
        try:
            if isinstance(module, MeshModule):
                mesh = DeviceMesh(module.mesh, devices)
                compiled = mesh.compile(module.lowered, module.placements, options=options)
                executable = compiled.runtime_executable()
            else:
                executable = _compile_replicas(module, devices, options)
        except JaxRuntimeError as error:
            too_large = _out_of_memory(str(error))
            if too_large is None:
                raise DoesNotCompile(str(error)) from error
            return too_large
        # Read the compiler's dump: jaxlib cannot parse the asynchronous operations in libtpu's modules for v6e.
        # The first module of the dump is the whole program; the others are parts of it.
        hlo = min(Path(dump).glob("module_*.after_optimizations.txt")).read_text()
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    return Executable(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=cost["flops"],
        bytes_accessed=cost["bytes accessed"],
        hlo=hlo,
    )


def devices_of(topology: Topology) -> list[Any]:
    """Returns the compiler's descriptions of the devices.

    Raises:
        UsageError: If libtpu does not support the topology.
    """
    os.environ.update(_NO_TPU_HERE)
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.name, **dict(topology.chip.options)
        ).devices
    except JaxRuntimeError as error:
        raise UsageError(f"--topology is {topology.name!r}: {error}; choose other sides") from error
    if len(devices) != topology.replicas:
        raise RuntimeError(f"{topology.name}: {len(devices)} devices, {topology.replicas} expected")
    return list(devices)


def _compile_replicas(module: Module, devices: list[Any], dump_options: Mapping[str, Any]) -> Any:
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jaxlib.mlir import ir

    options = xla_client.CompileOptions()
    options.num_replicas = len(devices)
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    for name, value in dump_options.items():
        setattr(options.executable_build_options.debug_options, name, value)
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module.text)
        return devices[0].client.compile(parsed, _jax.DeviceList(tuple(devices)), options)


def mosaic_bytecode(function: Callable[..., Any], arguments: list[Any], *, version: int) -> bytes:
    """Compiles the single Pallas kernel in a JAX function to Mosaic bytecode without source locations.

    Args:
        function: The function that calls the kernel.
        arguments: A jax.ShapeDtypeStruct per argument.
        version: The bytecode format: one that the oldest compiler in use can read.
    """
    import base64
    import io
    import json

    import jax
    from jax._src import tpu_custom_call
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    # Once a process has compiled for a mesh, JAX's integers have 64 bits (devices/pjrt/mesh.py).
    with jax.enable_x64(False):
        lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    configs: list[str] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call":
            configs.append(ir.StringAttr(operation.attributes["backend_config"]).value)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir().operation.walk(visit)
    (config,) = configs
    context = mlir.make_ir_context()
    tpu_custom_call.tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        module = ir.Module.parse(base64.b64decode(json.loads(config)["custom_call_config"]["body"]))
        PassManager.parse(
            "builtin.module(mosaic-serde{serialize=false},strip-debuginfo,"
            f"mosaic-serde{{serialize=true target-version={version}}})"
        ).run(module.operation)
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer, desired_version=0)
    return buffer.getvalue()


def _out_of_memory(message: str) -> OutOfMemory | None:
    """Parses the sizes from an out-of-memory message; returns None for any other error."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    sizes = re.findall(r"\(([\d.]+)([KMG]?)\)", message)
    if "RESOURCE_EXHAUSTED" not in message or len(sizes) < 2:
        return None
    needed, available = (float(size) * units[unit] for size, unit in sizes[:2])
    return OutOfMemory(needed=needed, available=available)
