"""Gradient checkpointing: the backward pass keeps only the inputs of a model's blocks and recomputes the rest.

Memory for activations falls from all of them to one array of hidden states for each block, and those of one block; a
step takes about a third more operations.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine import base_layer_utils

from tpu_trainer.errors import UsageError
from tpu_trainer.network.call_context import CallContext

# Names under which Hugging Face's models keep their list of blocks.
_LISTS = ("layer", "layers", "h", "_layers", "block")


def recompute_blocks(network: keras.Model, context: CallContext) -> int:
    """Recomputes the blocks of `network` in the backward pass; returns how many there are.

    Raises UsageError if it is not known where the model keeps its blocks.
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
            f"--train.gradient_checkpointing: not known where a model of type {network.config.model_type!r} keeps "
            "its blocks; leave it out"
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
        call_arguments = dict(
            call_context.call_context_args
        )  # `training`, for layers that are called without it
        structure: Any = None

        def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
            """The block as a function of its floating-point inputs alone."""
            nonlocal structure
            given = list(arguments)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            again_args, again_kwargs = tf.nest.pack_sequence_as((args, kwargs), given)
            # The second time is outside the call of the model, from which layers inside the block take both.
            entered = call_context.enter(
                block, inputs=None, build_graph=not tf.executing_eagerly(), call_context_args=call_arguments
            )
            with context.using(values), entered:
                result = original(*again_args, **again_kwargs)
            structure = result
            return tuple(value for value in tf.nest.flatten(result) if tf.is_tensor(value))

        results = iter(tf.recompute_grad(run)(*(arguments[place] for place in places)))
        flat = [next(results) if tf.is_tensor(value) else value for value in tf.nest.flatten(structure)]
        return tf.nest.pack_sequence_as(structure, flat)

    block.call = call
