"""Names of the variables that a program captures."""

from __future__ import annotations

import tensorflow as tf

from tpu_trainer.runs.checkpoint import State, named_variables


class VariableNames:
    """Maps variables to their names in checkpoints, and those outside of the state to their own names."""

    def __init__(self, state: State) -> None:
        """Raises ValueError if two variables of the state have the same name."""
        self.variables = named_variables(state)
        """Name in checkpoints → variable."""
        self._named: dict[str, tuple[str, tf.Variable]] = {}
        for name, variable in self.variables.items():
            self._add(name, variable)

    def name(self, variable: tf.Variable) -> str:
        """Returns the name of a variable; raises ValueError if another one has the same."""
        return self._add(variable.name, variable)

    def _add(self, name: str, variable: tf.Variable) -> str:
        known_name, known_variable = self._named.setdefault(variable.name, (name, variable))
        if known_variable is not variable:
            raise ValueError(f"two variables are named {variable.name!r}")
        return known_name

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns name → shape of the state."""
        return {name: tuple(variable.shape.as_list()) for name, variable in self.variables.items()}
