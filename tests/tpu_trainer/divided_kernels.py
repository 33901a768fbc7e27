"""Trains with the attention kernel on a mesh of 8 CPU devices that pass for a TPU, for training/test_partitioning.py.

A process of its own: the number of CPU devices is fixed when a process starts. CPUs have no such kernels: after they
are divided, each becomes a call of kernel_reference.run for a device's shapes. The first argument is `right`, or
`wrong`: then each device exchanges the dropout of its rows. The others are those of `fit`, with a causal model.
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tests.tpu_trainer import kernel_reference
from tpu_trainer.__main__ import main
from tpu_trainer.training import partitioning, pjrt
from tpu_trainer.training.stablehlo import Program, main_function


def with_references(artifact: bytes, wrong: bool) -> bytes:
    """Replaces the kernels in a program by functions that compute the same."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, stablehlo

    def edit(module: ir.Module) -> None:
        kernels, functions = [], set()

        def visit(operation: ir.Operation) -> ir.WalkResult:
            if operation.name == "stablehlo.custom_call" and "tpu_custom_call" in str(
                operation.attributes["call_target_name"]
            ):
                kernels.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        for kernel in kernels:
            arrays = list(kernel.operands)[2:]
            shapes = [tuple(ir.RankedTensorType(array.type).shape) for array in arrays]
            numbers = [
                int(ir.DenseIntElementsAttr(each.owner.attributes["value"])[0])
                for each in list(kernel.operands)[:2]
            ]
            # The numbers of rows and of pairs of heads that a kernel processes are those of its arrays.
            assert numbers == [shapes[-1][0], shapes[-1][2] // 128], (numbers, shapes)
            name = "forward" if len(arrays) == 7 else "backward"
            if name not in functions:
                reference = stablehlo.deserialize_portable_artifact(
                    module.context, reference_artifact(name, shapes, dtype_of(arrays[-1]), wrong)
                )
                main = main_function(reference)
                main.attributes["sym_name"] = ir.StringAttr.get(name)
                main.attributes["sym_visibility"] = ir.StringAttr.get("private")
                for operation in reference.body.operations:
                    module.body.append(operation.operation.clone())
                functions.add(name)
            with ir.InsertionPoint(kernel):
                call = func.CallOp([result.type for result in kernel.results], name, arrays)
            for old, new in zip(kernel.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            kernel.erase()

    return partitioning._edited(artifact, edit)


def dtype_of(array: Any) -> tf.DType:
    """Returns the dtype of a value in a program."""
    return {"f32": tf.float32, "bf16": tf.bfloat16}[str(array.type).rpartition("x")[2].rstrip(">")]


def reference_artifact(name: str, shapes: list[tuple[int, ...]], dtype: tf.DType, wrong: bool) -> bytes:
    """Returns kernel_reference.run as a program of arrays of these shapes."""
    dtypes = [tf.int32, tf.float32, tf.int32, tf.float32, *[dtype] * (len(shapes) - 4)]
    specs = {str(i): tf.TensorSpec(shape, dtypes[i]) for i, shape in enumerate(shapes)}

    def function(batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        threshold, scale, lines, *rest = batch.values()
        lines = tf.reverse(lines, [0]) if wrong else lines
        return kernel_reference.run(name, True, threshold, scale, lines, *rest)

    return Program(function, specs).lower().artifact


def train(kind: str, arguments: list[str]) -> None:
    """Runs `fit` with these arguments."""
    divide, create = partitioning.divide_kernels, pjrt.DeviceMesh.__init__
    partitioning.divide_kernels = lambda artifact, axes: with_references(
        divide(artifact, axes), kind == "wrong"
    )

    def init(self: pjrt.DeviceMesh, *arguments: Any) -> None:
        create(self, *arguments)
        self.platform, self.kind = "tpu", "TPU v5 lite"

    pjrt.DeviceMesh.__init__ = init
    sys.argv = ["tpu_trainer", *arguments]
    sys.exit(main())


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2:])
