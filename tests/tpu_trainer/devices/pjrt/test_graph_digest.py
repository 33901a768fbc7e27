"""The hash of a graph changes with what is lowered, and only with that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tests.tpu_trainer.step.test_task import config_of
from tests.tpu_trainer.step_digests import step_digest
from tpu_trainer.config import OptimizerConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.pjrt.stablehlo import Program

SPECS = {"x": tf.TensorSpec([4], tf.float32), "y": tf.TensorSpec([4], tf.float32)}
Function = Callable[[dict[str, tf.Tensor]], Any]


def digest(function: Function, specs: dict[str, tf.TensorSpec] = SPECS) -> str:
    return Program(function, specs).digest()


def functions() -> dict[str, Function]:
    """Programs that differ in one thing each. New variables and functions at each call."""
    first, second = tf.Variable([1.0] * 4, name="first"), tf.Variable([2.0] * 4, name="second")
    halves = [tf.Variable([1.0] * 4), tf.Variable([1.0] * 2)]

    def inner(constant: float) -> Callable[[tf.Tensor], tf.Tensor]:
        return tf.function(lambda value: value * constant, autograph=False)

    def loop(constant: float) -> Function:
        return lambda b: tf.while_loop(lambda v: v[0] < 9.0, lambda v: (v + constant,), (b["x"],))[0]

    @tf.custom_gradient
    def identity(value: tf.Tensor) -> Any:
        return tf.identity(value), lambda gradient: gradient

    return {
        "plain": lambda b: b["x"] - b["y"] * 2.0,
        "another constant": lambda b: b["x"] - b["y"] * 3.0,
        "another operation": lambda b: b["x"] + b["y"] * 2.0,
        "edges swapped": lambda b: b["y"] - b["x"] * 2.0,
        "a further result": lambda b: (b["x"] - b["y"] * 2.0, b["x"]),
        "results swapped": lambda b: (b["x"], b["x"] - b["y"] * 2.0),
        "another further result": lambda b: (b["x"] - b["y"] * 2.0, b["y"]),
        "an attribute": lambda b: tf.reduce_sum(b["x"], 0),
        "another attribute": lambda b: tf.reduce_sum(b["x"], 0, keepdims=True),
        "a function": lambda b: inner(2.0)(b["x"]),
        "a function with another constant": lambda b: inner(3.0)(b["x"]),
        "a loop": loop(2.0),
        "a loop with another constant": loop(3.0),
        "variables": lambda b: first * second.assign_add(b["x"]),
        "the new value first": lambda b: second.assign_add(b["x"]) * first,
        "the other variable first": lambda b: first * tf.identity(second) * first.assign_add(b["x"]),
        "a variable of another shape": lambda b: tf.reduce_sum(halves[1]) * second.assign_add(b["x"]),
        "the same of the first shape": lambda b: tf.reduce_sum(halves[0]) * second.assign_add(b["x"]),
        "a gradient": lambda b: identity(tf.gather(first, [1, 2])) * 2.0,
    }


def test_a_hash_depends_only_on_what_is_lowered() -> None:
    digests = {name: digest(function) for name, function in functions().items()}
    # The process's counters so far must not matter.
    assert {name: digest(function) for name, function in functions().items()} == digests
    digests["another shape"] = digest(functions()["plain"], SPECS | {"x": tf.TensorSpec([1], tf.float32)})
    assert len(set(digests.values())) == len(digests), digests


def test_the_hash_of_a_step_depends_on_every_option_that_it_uses(vocabulary: Vocabulary) -> None:
    base = config_of()
    configs = {
        "base": base,
        "learning rate": replace(base, optimizer=OptimizerConfig(learning_rate=0.01001)),
        "dropout": config_of(hidden_dropout_prob=0.1),
        "size": config_of(intermediate_size=25),
    }
    digests = {name: step_digest(config, vocabulary) for name, config in configs.items()}
    assert len(set(digests.values())) == len(digests), digests


def test_tensors_that_a_function_uses_are_constants_of_the_program() -> None:
    def table(last_element: float) -> Function:
        values = tf.constant([[1.0] * 40, [2.0] * 39 + [last_element]])

        def add(body: tf.Tensor) -> tf.Tensor:
            return body + tf.reduce_sum(values[1]) * values[0, 0]

        return lambda b: tf.while_loop(lambda v: v[0] < 9.0, add, [b["x"] + values[0, :4]])[0]

    programs = [Program(table(last_element), SPECS) for last_element in (2.0, 3.0)]
    assert programs[0].captured == []
    assert len(programs[0].lower().arguments) == len(SPECS)
    assert programs[0].digest() != programs[1].digest()
