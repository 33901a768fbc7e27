"""The way from a tf.function to a TPU's executable on a machine without a TPU.

All private interfaces of TensorFlow, JAX and libtpu that compile-check uses are in this file.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import tensorflow as tf

from tpu_trainer.chips import Topology
from tpu_trainer.errors import UsageError

# The releases whose private interfaces this file was written for.
WRITTEN_FOR = {"tensorflow": "2.20", "jax": "0.10", "jaxlib": "0.10", "libtpu": "0.0.51"}
_REMEDY = "`make compile-check` makes an environment of the right ones (trainer/requirements-tpu-check.lock)"
# What keeps libtpu from asking the network which TPU host this is, and from taking the lock of one.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}


class DoesNotCompile(Exception):
    """XLA refused the program; the message is its own."""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The program needs more memory than the device has; both in bytes, as the compiler says."""

    needed: float
    available: float


@dataclass(frozen=True, kw_only=True)
class Module:
    """A StableHLO module's text, and a hash that the same program has in every process, wherever its lines stand."""

    text: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Executable:
    """What the compiler says of a compiled program, for one device. Bytes; `hlo` is the optimized module's text."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    flops: float
    bytes_accessed: float
    hlo: str


def versions() -> dict[str, str]:
    """The installed releases; UsageError where one is missing or not what this file was written for."""
    found = {}
    for name, prefix in WRITTEN_FOR.items():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"compile-check needs {name} {prefix}, which is not installed; {_REMEDY}"
            ) from None
        if not f"{found[name]}.".startswith(f"{prefix}."):
            raise UsageError(
                f"compile-check uses private interfaces of {name} {prefix}; {found[name]} is installed; {_REMEDY}"
            )
    return found


def all_reduce(values: Any, replicas: int) -> Any:
    """The sum of a nest of tensors over all replicas, as an operation that the TPU compiler plans itself.

    tf.distribute's own sum has no kernel where no TPU is; this is what it becomes on one.
    """
    if replicas == 1:
        return values
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    group = tf.constant([list(range(replicas))])
    return tf.nest.map_structure(
        lambda value: gen_xla_ops.xla_all_reduce(value, group, reduce_op="Add", mode="CrossReplica"), values
    )


def called_graphs(operation: tf.Operation) -> list[tf.Graph]:
    """The graphs of the functions that an operation calls: a call's body, a condition's branches, a loop's two."""
    graphs = []
    for name in operation.node_def.attr:
        value = operation.get_attr(name)
        for item in value if isinstance(value, list | tuple) else [value]:
            # A function attribute comes back as a NameAttrList.
            function_name = getattr(item, "name", None)
            if isinstance(function_name, str) and operation.graph._is_function(function_name):
                graphs.append(operation.graph._get_function(function_name).graph)
    return graphs


class Program:
    """A function of one batch, for XLA to compile as a whole."""

    def __init__(
        self, function: Callable[[dict[str, tf.Tensor]], Any], specs: Mapping[str, tf.TensorSpec]
    ) -> None:
        """
        Args:
            function: Traced as `fit` traces a step.
            specs: The batch's shapes.
        """

        # XLA's interface takes no nests.
        def flat(*values: tf.Tensor) -> Any:
            return function(dict(zip(specs, values, strict=True)))

        self.specs = specs
        self._function = tf.function(flat, jit_compile=True, autograph=False)

    def trace(self) -> tf.Graph:
        """The graph; raises what tracing raises."""
        return self._function.get_concrete_function(*self.specs.values()).graph

    def lower(self) -> Module:
        """The StableHLO module, variables and their donation included. Raises DoesNotCompile."""
        return _lower(self._function, list(self.specs.values()))


def _lower(function: Any, specs: list[tf.TensorSpec]) -> Module:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    try:
        artifact = function.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized")
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise DoesNotCompile(str(error)) from error
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, artifact)
        copies = []

        def visit(operation: ir.Operation) -> ir.WalkResult:
            if operation.name == "mhlo.copy":
                copies.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for copy in copies:  # each is an identity, which XLA's importer does not take
            copy.results[0].replace_all_uses_with(copy.operands[0])
            copy.erase()
        text = module.operation.get_asm(enable_debug_info=True)
        bare = module.operation.get_asm()
    # TensorFlow numbers the functions of a process in the order of their making, and puts that into symbols.
    symbols: dict[str, str] = {}
    bare = re.sub(r"@[\w.$-]+", lambda match: symbols.setdefault(match[0], f"@{len(symbols)}"), bare)
    return Module(text=text, digest=hashlib.sha256(bare.encode()).hexdigest())


def compile_module(module: Module, topology: Topology) -> Executable | OutOfMemory:
    """Compiles a module for every device of `topology`, a replica on each.

    Raises DoesNotCompile, or UsageError for a topology that libtpu does not know.
    """
    os.environ.update(_NO_TPU_HERE)
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    try:
        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.name, **dict(topology.chip.options)
        ).devices
    except JaxRuntimeError as error:
        raise UsageError(f"--topology is {topology.name!r}: {error}") from error
    if len(devices) != topology.replicas:
        raise RuntimeError(f"{topology.name}: {len(devices)} devices, {topology.replicas} expected")
    options = xla_client.CompileOptions()
    options.num_replicas = len(devices)
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    with mlir.make_ir_context(), tempfile.TemporaryDirectory(prefix="tpu_trainer-") as dump:
        parsed = ir.Module.parse(module.text)
        debug_options = options.executable_build_options.debug_options
        debug_options.xla_dump_to = dump
        debug_options.xla_dump_hlo_as_long_text = True
        try:
            executable = devices[0].client.compile(parsed, _jax.DeviceList(tuple(devices)), options)
        except JaxRuntimeError as error:
            too_large = _out_of_memory(str(error))
            if too_large is None:
                raise DoesNotCompile(str(error)) from error
            return too_large
        # The compiler's own text: jaxlib cannot read back what libtpu has made for v6e (its asynchronous operations).
        # Modules are numbered in a process; those after the first are parts of it.
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


def mosaic_bytecode(function: Callable[..., Any], arguments: list[Any], *, version: int) -> bytes:
    """The one Pallas kernel in a JAX function, as Mosaic's bytecode of format `version`, without source lines.

    Args:
        function: What calls the kernel.
        arguments: Its arguments' jax.ShapeDtypeStruct.
        version: As old a one as the compilers that are to read it.
    """
    import base64
    import io
    import json

    import jax
    from jax._src import tpu_custom_call
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

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
    """What the compiler's refusal says of memory; None where it is about something else."""
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    sizes = re.findall(r"\(([\d.]+)([KMG]?)\)", message)
    if "RESOURCE_EXHAUSTED" not in message or len(sizes) < 2:
        return None
    needed, available = (float(size) * units[unit] for size, unit in sizes[:2])
    return OutOfMemory(needed=needed, available=available)
