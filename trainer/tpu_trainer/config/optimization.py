"""The optimizer and its learning rate."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tpu_trainer.config.ranges import (
    ABOVE_0_TO_1,
    BETWEEN_0_AND_1,
    FROM_0_BELOW_1,
    FROM_0_TO_1,
    NOT_NEGATIVE,
    POSITIVE,
    check_ranges,
    require,
)
from tpu_trainer.errors import UsageError


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW."""

    learning_rate: float = 1e-4
    """The schedule's peak."""
    weight_decay: float = 0.01
    """Decoupled decay, not applied to biases and norms, which are told by their shape."""
    no_decay: list[str] = field(default_factory=list)
    """Regular expressions: weights with names that one of them is found in are not decayed, either. Names are such as
    network/roberta/embeddings/word_embeddings/weight."""
    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.999
    """Decay of the running mean of squared gradients."""
    epsilon: float = 1e-6
    """Added to the root of the mean square."""
    clip_norm: float | None = 1.0
    """The gradient is scaled down to this global norm where it is larger; null: never."""
    ema: float | None = None
    """Decay of a running mean of the weights, which is evaluated and exported in their place, such as 0.999; in the
    first steps it is less, so that the initial weights are forgotten. null: none."""

    @property
    def evaluated(self) -> Literal["network", "average"]:
        """Which of a checkpoint's two sets of weights is evaluated and exported."""
        return "network" if self.ema is None else "average"

    def __post_init__(self) -> None:
        for pattern in self.no_decay:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(
                    f"--optimizer.no_decay: {pattern!r} is no regular expression: {error}"
                ) from None
        check_ranges(
            self,
            "optimizer",
            learning_rate=POSITIVE,
            weight_decay=NOT_NEGATIVE,
            beta1=FROM_0_BELOW_1,
            beta2=FROM_0_BELOW_1,
            epsilon=POSITIVE,
            clip_norm=POSITIVE,
            ema=BETWEEN_0_AND_1,
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"] = "linear"
    """What follows the warm-up. linear, cosine: a descent to the last step; wsd (warmup-stable-decay): the peak, and a
    linear descent in the last `decay_share` of the steps; constant: the peak; inverse_sqrt: the peak times the root of
    warm-up ÷ step."""
    warmup_steps: int = 0
    """Steps of linear rise from 0 to the peak."""
    warmup_share: float = 0.0
    """The same as a share of --train.steps; one of the two."""
    decay_share: float = 0.1
    """wsd: the share of --train.steps that the descent takes."""
    final_ratio: float = 0.0
    """linear, cosine, wsd: the learning rate that the descent ends at, as a share of the peak."""

    def warmup(self, steps: int) -> int:
        """Steps of warm-up in a run of `steps`."""
        return self.warmup_steps or round(self.warmup_share * steps)

    def __post_init__(self) -> None:
        check_ranges(
            self,
            "schedule",
            warmup_steps=NOT_NEGATIVE,
            warmup_share=FROM_0_BELOW_1,
            decay_share=ABOVE_0_TO_1,
            final_ratio=FROM_0_TO_1,
        )
        require(
            not (self.warmup_steps and self.warmup_share),
            "schedule.warmup_share",
            self.warmup_share,
            f"the warm-up is given in steps, too: {self.warmup_steps}; give one of the two",
        )
