"""Trains with the attention kernel on a mesh of 8 CPU devices that imitate others, for pjrt/test_partitioning.py.

A process of its own: the number of CPU devices is fixed when a process starts. CPUs have no such kernels: after they
are divided, each becomes a call of kernel_reference.run for a device's shapes. JAX interprets its splash attention
kernels. The first argument is `right`, `wrong`: then each device exchanges the dropout of its rows; or `cudnn`: then
the devices imitate GPUs. The others are those of `fit`, with a causal model.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import tensorflow as tf

from tests.tpu_trainer import kernel_reference
from tpu_trainer.__main__ import main
from tpu_trainer.devices.pjrt import mesh as pjrt
from tpu_trainer.devices.pjrt import operations, partitioning, stablehlo
from tpu_trainer.network.cudnn_attention import Mask


def use_references(module: Any, is_wrong: bool) -> None:
    """Replaces the kernels in a program by functions that compute the same."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func
    from jaxlib.mlir.dialects.stablehlo import deserialize_portable_artifact

    functions = set()
    for kernel in operations.custom_calls(module, "tpu_custom_call"):
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
            function = operations.main_function(reference)
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


def use_cudnn_references(module: Any) -> None:
    """Replaces the calls of cuDNN in a program by functions that compute the same."""
    from jax._src.interpreters.mlir import merge_mlir_modules
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func
    from jaxlib.mlir.dialects.stablehlo import deserialize_portable_artifact

    for call in operations.custom_calls(module, "__cudnn"):
        config = json.loads(ir.StringAttr(call.attributes["backend_config"]).value)[
            "cudnn_fmha_backend_config"
        ]
        rows, length, heads, _ = ir.RankedTensorType(call.operands[0].type).shape
        # The scores are those of the device.
        assert config["intermediate_tensor_shape"]["dimensions"] == [*map(str, [rows, heads, length, length])]
        artifact = cudnn_reference_artifact(config, list(call.operands))
        name = merge_mlir_modules(module, "cudnn", deserialize_portable_artifact(module.context, artifact))
        used = [result for result in call.results if list(result.uses)]
        with ir.InsertionPoint(call):
            reference = func.CallOp([result.type for result in used], name, list(call.operands))
        for result, value in zip(used, reference.results, strict=True):
            result.replace_all_uses_with(value)
        call.erase()


def cudnn_reference_artifact(config: dict[str, Any], operands: list[Any]) -> bytes:
    """Returns kernel_reference.run_cudnn as a program of values like these."""
    specs = {str(i): tf.TensorSpec(*stablehlo._array(str(value.type))) for i, value in enumerate(operands)}
    is_forward = len(specs) < 5

    def function(batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        values = list(batch.values())
        bias = None
        if len(values) in (4, 7):
            bias = values.pop(3 if is_forward else 5)
        mask = Mask(config["mask_type"] == "CAUSAL", config["sliding_window_length"] or None, bias)
        wide = [tf.cast(value, tf.float32) for value in values]
        results = kernel_reference.run_cudnn(wide, mask=mask, scale=config["fmha_scale"])
        arrays = results[: 1 if is_forward else 3]
        arrays = [tf.cast(tf.transpose(array, [0, 2, 1, 3]), tf.bfloat16) for array in arrays]
        return [*arrays, results[1]] if is_forward else arrays

    return stablehlo.Program(function, specs).lower().artifact


def train(kind: str, arguments: list[str]) -> None:
    """Runs `fit` with these arguments."""
    divide, create = partitioning.divide_kernels, pjrt.DeviceMesh.__init__

    def divide_and_replace(module: Any, axes: dict[str, int]) -> None:
        divide(module, axes)
        use_references(module, is_wrong=kind == "wrong")

    partitioning.divide_kernels = divide_and_replace
    partitioning.insert_splash_kernels = functools.partial(partitioning.insert_splash_kernels, interpret=True)

    divide_calls = partitioning.divide_cudnn_calls

    def divide_and_replace_calls(module: Any, axes: dict[str, int]) -> None:
        divide_calls(module, axes)
        use_cudnn_references(module)

    partitioning.divide_cudnn_calls = divide_and_replace_calls

    def init(self: pjrt.DeviceMesh, *arguments: Any) -> None:
        create(self, *arguments)
        self.platform, self.kind = ("gpu", "NVIDIA H100") if kind == "cudnn" else ("tpu", "TPU v5 lite")

    pjrt.DeviceMesh.__init__ = init
    sys.argv = ["tpu_trainer", *arguments]
    sys.exit(main())


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2:])
