"""Gradient checkpointing: only the inputs of a model's blocks are kept; the backward pass recomputes the rest.

The activations in memory are reduced to one array of hidden states per block and all activations of one block. A step
needs about a third more operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine import base_layer_utils

from tpu_trainer.network.call_context import CallContext
from tpu_trainer.network.sequencing import schedule_after
from tpu_trainer.support.errors import UsageError

# Attributes of Hugging Face's models that contain their lists of blocks.
_LISTS = ("layer", "layers", "h", "_layers", "block")


def recompute_blocks(network: keras.Model, context: CallContext) -> int:
    """Recomputes the blocks of `network` in the backward pass; returns their number.

    Raises:
        UsageError: If the model's list of blocks is unknown.
    """
    blocks = [
        block
        for module in network.submodules
        for name in _LISTS
        for block in (vars(module).get(name) if isinstance(vars(module).get(name), list | tuple) else ())
        if isinstance(block, keras.layers.Layer)
    ]
    if not blocks:
        raise UsageError(
            f"--train.gradient_checkpointing: not supported for models of type {network.config.model_type!r}; omit the "
            "option"
        )
    for block in blocks:
        _recompute(block, context)
    return len(blocks)


def _recompute(block: keras.layers.Layer, context: CallContext) -> None:
    original = block.call

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = tf.nest.flatten((args, kwargs))
        places = [i for i, value in enumerate(arguments) if tf.is_tensor(value) and value.dtype.is_floating]
        values = context.values
        call_context = base_layer_utils.call_context()
        # `training`, for layers that are called without it.
        call_arguments = dict(call_context.call_context_args)
        structure: Any = None

        def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
            """Computes the block as a function of only its floating-point inputs."""
            nonlocal structure
            replaced = list(arguments)
            for place, tensor in zip(places, tensors, strict=True):
                replaced[place] = tensor
            again_args, again_kwargs = tf.nest.pack_sequence_as((args, kwargs), replaced)
            # The recomputation is outside the call of the model, so both contexts must be entered again.
            entered = call_context.enter(
                block, inputs=None, build_graph=not tf.executing_eagerly(), call_context_args=call_arguments
            )
            with context.using(values), entered:
                result = original(*again_args, **again_kwargs)
            structure = result
            return tuple(value for value in tf.nest.flatten(result) if tf.is_tensor(value))

        results = iter(_recomputed(run)(*(arguments[place] for place in places)))
        flat = [next(results) if tf.is_tensor(value) else value for value in tf.nest.flatten(structure)]
        return tf.nest.pack_sequence_as(structure, flat)

    block.call = call


def _recomputed(function: Callable[..., tuple[tf.Tensor, ...]]) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Returns the function, of which the backward pass keeps only the arguments. Of its results, the first has rows.

    As tf.recompute_grad, of which the TPU compiler merges both computations, so that the intermediate results stay in
    memory: see `schedule_after`.
    """

    @tf.custom_gradient
    def forward(*tensors: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., Any]]:
        results = function(*tensors)
        rows = results[0].shape[0]

        def backward(
            *gradients: tf.Tensor, variables: list[tf.Variable] | None = None
        ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            variables = list(variables or ())
            with tf.GradientTape() as tape:
                # Arguments without rows (relative positions) need no delay: a block only adds them to those with rows.
                delayed = [
                    schedule_after(tensor, gradients[0], shared=1)
                    if rows in tensor.shape[:1]
                    else tf.identity(tensor)
                    for tensor in tensors
                ]
                tape.watch(delayed)
                recomputed = function(*delayed)
            input_gradients = tape.gradient(
                recomputed, delayed + variables, gradients, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return input_gradients[: len(delayed)], input_gradients[len(delayed) :]

        return results, backward

    return forward
