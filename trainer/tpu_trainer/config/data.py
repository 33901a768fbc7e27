"""What to learn from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpu_trainer.config.ranges import AT_LEAST_1, check_ranges, require


@dataclass(frozen=True)
class DataConfig:
    """The rows to learn from."""

    train: str | dict[str, float] | list[str]
    """Folder of the training split: `<split>-<shard>-<count>.tfrecord` files, with or without manifest.json. A local
    path or a URL such as gs://bucket/dataset/train. Several: a list of folders, whose rows come equally often, or a
    mapping of folders to weights, {"A/train": 3, "B/train": 1}: three rows of A for each of B."""
    validation: str | None = None
    """Folder of the split that is evaluated during and after training; none: no evaluation."""
    tokenizer: str | None = None
    """Folder of the tokenizer. Default: the one the manifest names, else ../tokenizer beside the split."""
    fingerprint: str | None = None
    """Train on no other data than that whose manifest.json has this fingerprint; for one folder in data.train."""
    window_shards: int = 16
    """Shards read and shuffled together. More mix better and take more memory on the host."""

    def __post_init__(self) -> None:
        check_ranges(self, "data", window_shards=AT_LEAST_1)
        if isinstance(self.train, str):
            return
        require(bool(self.train), "data.train", self.train, "name at least one folder")
        if isinstance(self.train, list):
            require(len(set(self.train)) == len(self.train), "data.train", self.train, "a folder comes twice")
        else:
            rule = "weights must be positive numbers"
            require(
                all(0 < weight < math.inf for weight in self.train.values()), "data.train", self.train, rule
            )

    @property
    def train_weights(self) -> dict[str, float | None]:
        """The folders of `train`; None: as much weight as the folder has rows."""
        if isinstance(self.train, dict):
            return dict(self.train)
        return dict.fromkeys([self.train] if isinstance(self.train, str) else self.train)
