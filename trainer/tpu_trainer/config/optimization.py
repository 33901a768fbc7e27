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
from tpu_trainer.support.errors import UsageError


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, as in PyTorch."""

    learning_rate: float = 1e-4
    """The peak of the schedule."""
    weight_decay: float = 0.01
    """Decoupled weight decay, of matrices only: biases and norms, recognized by their shape, do not decay."""
    no_decay: list[str] = field(default_factory=list)
    """Regular expressions: weights whose name contains a match do not decay, either. A name is, for example,
    network/roberta/embeddings/word_embeddings/weight."""
    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.999
    """Decay of the running mean of squared gradients."""
    epsilon: float = 1e-6
    """Added to the root of the mean square after its bias correction, as in PyTorch."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradient, which is scaled down to it; null: no limit."""
    ema: float | None = None
    """Decay, such as 0.999, of a running mean of the weights, which is evaluated and exported instead of them. It is
    lower in the first steps, to forget the initial weights. null: no running mean."""

    @property
    def evaluated(self) -> Literal["network", "average"]:
        """The part of a checkpoint that is evaluated and exported."""
        return "network" if self.ema is None else "average"

    def __post_init__(self) -> None:
        for pattern in self.no_decay:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(
                    f"--optimizer.no_decay: {pattern!r} is not a regular expression: {error}"
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
    """The shape after the warm-up. linear, cosine: decay until the last step; wsd (warmup-stable-decay): the peak, then
    a linear decay in the last `decay_share` of the steps; constant: the peak; inverse_sqrt: the peak times
    √(warm-up ÷ step)."""
    warmup_steps: int = 0
    """Steps of linear increase to the peak. Update n has n ÷ warmup_steps of it; in Hugging Face's schedules, n − 1."""
    warmup_share: float = 0.0
    """The warm-up as a share of --train.steps, instead of warmup_steps."""
    decay_share: float = 0.1
    """wsd: the share of --train.steps in which the learning rate decays."""
    final_ratio: float = 0.0
    """linear, cosine, wsd: the final learning rate, as a share of the peak."""

    @property
    def depends_on_steps(self) -> bool:
        """Whether the learning rate of a step depends on the run's number of steps."""
        return self.name in ("linear", "cosine", "wsd") or self.warmup_share > 0

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
            f"--schedule.warmup_steps is also set, to {self.warmup_steps}; set one of the two",
        )
