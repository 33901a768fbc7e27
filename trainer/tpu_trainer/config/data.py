"""The training data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpu_trainer.config.ranges import AT_LEAST_1, check_ranges, require


@dataclass(frozen=True)
class DataConfig:
    """The training data."""

    train: str | dict[str, float] | list[str]
    """Folder of the training split: `<split>-<shard>-<count>.tfrecord` files, with or without manifest.json. A local
    path or a URL such as gs://bucket/dataset/train. Several folders: a list, to read all rows equally often, or a
    mapping to weights, {"A/train": 3, "B/train": 1}: three rows of A for each row of B."""
    validation: str | None = None
    """Folder of the split to evaluate during and after training; default: no evaluation."""
    tokenizer: str | None = None
    """Folder of the tokenizer. Default: the one in the manifest, else ../tokenizer relative to the split."""
    fingerprint: str | None = None
    """Require this fingerprint in the manifest.json of data.train, which must be a single folder."""
    window_shards: int = 16
    """Shards to read and shuffle together. More shuffle better and take more memory on the host."""

    def __post_init__(self) -> None:
        check_ranges(self, "data", window_shards=AT_LEAST_1)
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
    def train_weights(self) -> dict[str, float | None]:
        """Folder → weight; None: the weight is the folder's number of rows."""
        if isinstance(self.train, dict):
            return dict(self.train)
        return dict.fromkeys([self.train] if isinstance(self.train, str) else self.train)
