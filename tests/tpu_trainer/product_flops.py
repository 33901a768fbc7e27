"""Counts the matrix products of a graph."""

from __future__ import annotations

import math

import tensorflow as tf

from tpu_trainer.tpu_check.compiler import called_graphs


def product_flops(graph: tf.Graph) -> float:
    """Returns the FLOPs of the matrix products that a graph's outputs need, including called functions."""
    total = 0.0
    # Skip operations that no output needs: a loss with a custom gradient contains products of the backward pass.
    needed, queue = set(), [output.op for output in graph.outputs]
    while queue:
        operation = queue.pop()
        if operation not in needed:
            needed.add(operation)
            queue.extend(value.op for value in operation.inputs)
    for operation in needed:
        if operation.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
            turned = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
            summed = operation.inputs[0].shape[-2 if turned else -1]
            total += 2.0 * operation.outputs[0].shape.num_elements() * summed
        elif operation.type == "Einsum":
            sides: dict[str, int] = {}
            for labels, value in zip(
                operation.get_attr("equation").decode().split("->")[0].split(","),
                operation.inputs,
                strict=True,
            ):
                sides |= dict(zip(labels, value.shape, strict=True))
            total += 2.0 * math.prod(sides.values())
        times = 1
        if operation.type in ("While", "StatelessWhile"):
            # The second input of a While operation is its maximum number of iterations.
            times = max(1, int(tf.get_static_value(operation.inputs[1]) or 1))
        total += times * sum(map(product_flops, called_graphs(operation)))
    return total
