"""The training data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tpu_trainer.config.ranges import AT_LEAST_1, check_ranges, require

PLAIN_SPLIT = ""
"""The name of a validation split that is given without one."""


def named_folders(splits: str | dict[str, str] | None) -> dict[str, str]:
    """Returns the name of each split → its folder."""
    if splits is None:
        return {}
    return {PLAIN_SPLIT: splits} if isinstance(splits, str) else dict(splits)


@dataclass(frozen=True)
class DataConfig:
    """The training data."""

    train: str | dict[str, float] | list[str]
    """Folder of the training split: `<split>-<shard>-<count>.tfrecord` files, with or without manifest.json. A local
    path or a URL such as gs://bucket/dataset/train. Several folders: a list, to read all rows equally often, or a
    mapping to weights, {"A/train": 3, "B/train": 1}: three rows of A for each row of B."""
    validation: str | dict[str, str] | None = None
    """Folder of the split to evaluate during and after training; default: no evaluation. Several splits: a mapping of
    names to folders, {wiki: A/validation, code: B/validation}; the loss of the first decides which checkpoint is the
    best."""
    tokenizer: str | None = None
    """Folder of the tokenizer. Default: the one in the manifest, else ../tokenizer relative to the split."""
    fingerprint: str | None = None
    """Require this fingerprint in the manifest.json of data.train, which must be a single folder."""
    window_shards: int = 16
    """Shards to read and shuffle together. More shuffle better and take more memory on the host."""

    def __post_init__(self) -> None:
        check_ranges(self, "data", window_shards=AT_LEAST_1)
        for name in self.validation_folders:
            require(
                name == PLAIN_SPLIT or re.fullmatch(r"[\w.-]{1,40}", name) is not None,
                "data.validation",
                self.validation,
                f"{name!r} is not the name of a split: use up to 40 letters, digits, '_', '-' and '.'",
            )
        require(
            self.validation != {}, "data.validation", self.validation, "name at least one split, or omit it"
        )
        if isinstance(self.train, str):
            return
        require(bool(self.train), "data.train", self.train, "name at least one folder")
        if isinstance(self.train, list):
            require(len(set(self.train)) == len(self.train), "data.train", self.train, "a folder is repeated")
        else:
            rule = "weights must be positive numbers"
            require(
                all(0 < weight < math.inf for weight in self.train.values()), "data.train", self.train, rule
            )

    @property
    def validation_folders(self) -> dict[str, str]:
        """Name → folder of each validation split."""
        return named_folders(self.validation)

    @property
    def train_weights(self) -> dict[str, float | None]:
        """Folder → weight; None: the weight is the folder's number of rows."""
        if isinstance(self.train, dict):
            return dict(self.train)
        return dict.fromkeys([self.train] if isinstance(self.train, str) else self.train)
