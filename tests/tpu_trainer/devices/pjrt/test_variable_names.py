"""Names of the variables that programs capture."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tpu_trainer.devices.pjrt.variable_names import VariableNames


def test_a_variable_outside_of_the_state_has_its_own_name() -> None:
    weight, note = tf.Variable([1.0, 2.0], name="weight"), tf.Variable(1.0, name="note")
    names = VariableNames({"running": weight})
    assert names.shapes() == {"running": (2,)}
    assert [names.name(variable) for variable in (weight, note, weight, note)] == [*("running", "note:0") * 2]


def test_two_variables_of_one_name_are_an_error() -> None:
    """They would share a value."""
    names = VariableNames({"running": tf.Variable(1.0, name="weight")})
    with pytest.raises(ValueError, match="two variables are named 'weight:0'"):
        names.name(tf.Variable(2.0, name="weight"))
    with pytest.raises(ValueError, match="two variables are named 'weight:0'"):
        VariableNames({name: tf.Variable(1.0, name="weight") for name in ("network", "average")})
