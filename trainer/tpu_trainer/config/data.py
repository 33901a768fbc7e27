"""The training data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tpu_trainer.config.ranges import AT_LEAST_1, check_ranges, require
from tpu_trainer.config.stages import Stage, Weights, check_weights, parse_weights

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

    train: Weights
    """Folder of the training split: `<split>-<shard>-<count>.tfrecord` files, with or without manifest.json. A local
    path or a URL such as gs://bucket/dataset/train. Several folders: a list, to read all rows equally often, or a
    mapping to weights, {"A/train": 3, "B/train": 1}: three rows of A for each row of B."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """Later stages with other weights, also of other folders: [{from: 90%, weights: {A/train: 1, C/train: 3}}]. `from`
    is a number of steps, a share of train.steps, or a number of tokens, such as '2B tokens'; `weights` are given as for
    data.train. When a run continues, stages that have not begun can change."""
    validation: str | dict[str, str] | None = None
    """Folder of the split to evaluate during and after training; default: no evaluation. Several splits: a mapping of
    names to folders, {wiki: A/validation, code: B/validation}; the loss of the first decides which checkpoint is the
    best."""
    choices: str | dict[str, str] | None = None
    """File of multiple-choice items to answer whenever the validation splits are evaluated, by the likelihood of each
    choice: JSON lines such as {"context": "The sky is", "choices": [" blue", " soft"], "answer": 0}. Several files: a
    mapping of names to files, as for data.validation. Only for objective clm."""
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
            not self.choices or bool(self.validation),
            "data.choices",
            self.choices,
            "the items are answered when validation splits are evaluated; set --data.validation, too",
        )
        require(
            self.validation != {}, "data.validation", self.validation, "name at least one split, or omit it"
        )
        if not isinstance(self.train, str):
            check_weights("data.train", self.train)
        self.later_stages()

    @property
    def validation_folders(self) -> dict[str, str]:
        """Name → folder of each validation split."""
        return named_folders(self.validation)

    @property
    def choices_files(self) -> dict[str, str]:
        """Name → file of multiple-choice items."""
        if isinstance(self.choices, str):
            return {self.choices.rsplit("/", 1)[-1].partition(".")[0]: self.choices}
        return dict(self.choices or {})

    @property
    def train_weights(self) -> dict[str, float | None]:
        """Folder → weight of the first stage; None: the weight is the folder's number of rows."""
        return parse_weights(self.train)

    @property
    def train_folders(self) -> list[str]:
        """The folders of all stages."""
        stages = self.later_stages()
        return list(
            dict.fromkeys([*self.train_weights, *(path for stage in stages for path in stage.weights)])
        )

    def later_stages(self) -> list[Stage]:
        """Returns the stages after the first, which has `train_weights`."""
        return [Stage.parse(value) for value in self.stages]
