"""Stages of the training data: other weights, also of other folders, from a step on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill_reader.files import normal_folder
from tpu_trainer.config.ranges import require
from tpu_trainer.config.training import TrainConfig

Weights = str | dict[str, float] | list[str]
"""A folder, folders that are read equally often, or folder → weight."""
_SHARE = re.compile(r"(\d+(?:\.\d+)?) ?%")
_TOKENS = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?) ?([KMBT]?) tokens")
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The weights of the training data from a step on."""

    start: int | str
    """The number of steps before it; or `90%` of the run's; or after how many tokens, `2B tokens`."""
    weights: dict[str, float | None]
    """Folder → weight; None: the weight is the folder's number of rows."""

    @classmethod
    def parse(cls, value: Any) -> Stage:
        """Returns the stage of an element of --data.stages.

        Raises:
            UsageError: If it is none.
        """
        require(
            isinstance(value, Mapping) and set(value) == {"from", "weights"},
            "data.stages",
            value,
            "a stage has `from` and `weights`, such as {from: 90%, weights: {A/train: 1, C/train: 3}}",
        )
        start = value["from"]
        valid = type(start) is int and start > 0
        if isinstance(start, str):
            share = _SHARE.fullmatch(start)
            valid = 0 < float(share[1]) < 100 if share else _TOKENS.fullmatch(start) is not None
        rule = (
            "a later stage is from a step above 0, such as 9000, a share such as 90%, or such as '2B tokens'"
        )
        require(valid, "data.stages", start, rule)
        check_weights("data.stages", value["weights"])
        return cls(start=start, weights=parse_weights(value["weights"]))

    def first_step(self, train: TrainConfig, max_length: int) -> int:
        """Returns the number of steps before the stage. Rows count as full, of `max_length` tokens."""
        if isinstance(self.start, int):
            return self.start
        if share := _SHARE.fullmatch(self.start):
            return round(float(share[1]) / 100 * train.steps)
        number, unit = _TOKENS.fullmatch(self.start).groups()
        return train.steps_for(math.ceil(float(number) * _FACTORS[unit] / max_length))


def check_weights(option: str, value: Any) -> None:
    """Raises UsageError unless `value` has at least one folder, none twice, and positive weights."""
    names = isinstance(value, str | list | dict) and all(isinstance(name, str) for name in value)
    require(names and bool(value), option, value, "name at least one folder")
    require(
        isinstance(value, str) or len(set(map(normal_folder, value))) == len(value),
        option,
        value,
        "a folder is repeated",
    )
    if isinstance(value, dict):
        weights = value.values()
        are_numbers = all(isinstance(weight, int | float) and type(weight) is not bool for weight in weights)
        rule = "weights must be positive numbers"
        require(are_numbers and all(0 < weight < math.inf for weight in weights), option, value, rule)


def parse_weights(value: Weights) -> dict[str, float | None]:
    """Returns folder → weight; None: the weight is the folder's number of rows."""
    weights = (
        value if isinstance(value, dict) else dict.fromkeys([value] if isinstance(value, str) else value)
    )
    return {normal_folder(name): weight for name, weight in weights.items()}
