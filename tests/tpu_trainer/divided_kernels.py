"""Trains with the attention kernel on a mesh of 8 CPU devices that imitate a TPU, for training/test_partitioning.py.

A process of its own: the number of CPU devices is fixed when a process starts. CPUs have no such kernels: after they
are divided, each becomes a call of kernel_reference.run for a device's shapes. JAX interprets its splash attention
kernels. The first argument is `right`, or
`wrong`: then each device exchanges the dropout of its rows. The others are those of `fit`, with a causal model.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import tensorflow as tf

from tests.tpu_trainer import kernel_reference
from tpu_trainer.__main__ import main
from tpu_trainer.devices.pjrt import mesh as pjrt
from tpu_trainer.devices.pjrt import partitioning, stablehlo


def use_references(module: Any, is_wrong: bool) -> None:
    """Replaces the kernels in a program by functions that compute the same."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func
    from jaxlib.mlir.dialects.stablehlo import deserialize_portable_artifact

    functions = set()
    for kernel in stablehlo.custom_calls(module, "tpu_custom_call"):
        rows, pairs, *arrays = kernel.operands
        shape, _ = stablehlo._array(str(arrays[-1].type))
        numbers = [int(ir.DenseIntElementsAttr(size.owner.attributes["value"])[0]) for size in (rows, pairs)]
        # The numbers of rows and of pairs of heads that a kernel processes are those of its arrays.
        assert numbers == [shape[0], shape[2] // 128], (numbers, shape)
        name = "forward" if len(arrays) == 7 else "backward"
        if name not in functions:
            reference = deserialize_portable_artifact(
                module.context, reference_artifact(name, arrays, is_wrong)
            )
            function = stablehlo.main_function(reference)
            function.attributes["sym_name"] = ir.StringAttr.get(name)
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
            for operation in reference.body.operations:
                module.body.append(operation.operation.clone())
            functions.add(name)
        with ir.InsertionPoint(kernel):
            call = func.CallOp([result.type for result in kernel.results], name, arrays)
        for kernel_value, reference_value in zip(kernel.results, call.results, strict=True):
            kernel_value.replace_all_uses_with(reference_value)
        kernel.erase()


def reference_artifact(name: str, arrays: list[Any], is_wrong: bool) -> bytes:
    """Returns kernel_reference.run as a program of values like these."""
    specs = {str(i): tf.TensorSpec(*stablehlo._array(str(array.type))) for i, array in enumerate(arrays)}

    def function(batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        threshold, scale, lines, *inputs = batch.values()
        lines = tf.reverse(lines, [0]) if is_wrong else lines
        return kernel_reference.run(name, True, threshold, scale, lines, *inputs)

    return stablehlo.Program(function, specs).lower().artifact


def train(kind: str, arguments: list[str]) -> None:
    """Runs `fit` with these arguments."""
    divide, create = partitioning.divide_kernels, pjrt.DeviceMesh.__init__

    def divide_and_replace(module: Any, axes: dict[str, int]) -> None:
        divide(module, axes)
        use_references(module, is_wrong=kind == "wrong")

    partitioning.divide_kernels = divide_and_replace
    partitioning.insert_splash_kernels = functools.partial(partitioning.insert_splash_kernels, interpret=True)

    def init(self: pjrt.DeviceMesh, *arguments: Any) -> None:
        create(self, *arguments)
        self.platform, self.kind = "tpu", "TPU v5 lite"

    pjrt.DeviceMesh.__init__ = init
    sys.argv = ["tpu_trainer", *arguments]
    sys.exit(main())


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2:])
