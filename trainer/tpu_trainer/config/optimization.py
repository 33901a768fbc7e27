"""The optimizer and its learning rate."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
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

OptimizerName = Literal["adamw", "muon", "adafactor", "lion"]
_ADAMW = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}
# What is used instead of null. An option that is missing here has no effect on the optimizer, and must be null.
_DEFAULTS: dict[str, dict[str, float | None]] = {
    "adamw": _ADAMW,
    "muon": _ADAMW | {"muon_learning_rate": None, "muon_momentum": 0.95},
    "adafactor": {"learning_rate": 1e-2},
    "lion": {"learning_rate": 3e-5, "beta1": 0.9, "beta2": 0.99},
}


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, with decoupled weight decay."""

    name: OptimizerName = "adamw"
    """adamw: as in PyTorch; muon: Muon as in PyTorch, scaled to AdamW's updates, for the matrices of layers, and adamw
    for embeddings, head, norms and biases; adafactor: as in PyTorch, in almost no memory; lion: as in optax, in half of
    AdamW's memory."""
    learning_rate: float | None = None
    """The peak of the schedule. null: 1e-4; adafactor, where it is relative to the root mean square of the weights:
    1e-2; lion, which needs a third to a tenth of AdamW's: 3e-5."""
    muon_learning_rate: float | None = None
    """muon: the peak for the matrices of layers; null: learning_rate."""
    weight_decay: float = 0.01
    """Decoupled weight decay, of matrices only: biases and norms, recognized by their shape, do not decay."""
    no_decay: list[str] = field(default_factory=list)
    """Regular expressions: weights whose name contains a match do not decay, either. A name is, for example,
    embeddings.tokens.weight."""
    beta1: float | None = None
    """adamw, muon: decay of the running mean of gradients; lion: its weight in the direction of the update. null: 0.9.
    """
    beta2: float | None = None
    """adamw, muon: decay of the running mean of squared gradients, null: 0.999; lion: decay of the running mean of
    gradients, null: 0.99."""
    epsilon: float | None = None
    """adamw, muon: added to the root of the mean square after its bias correction, as in PyTorch. null: 1e-6."""
    muon_momentum: float | None = None
    """muon: decay of the running mean of the gradients of layers' matrices. null: 0.95."""
    clip_norm: float | None = 1.0
    """Largest global norm of the gradient, which is scaled down to it; null: no limit."""
    ema: float | None = None
    """Decay, such as 0.999, of a running mean of the weights, which is evaluated and exported instead of them. It is
    lower in the first steps, to forget the initial weights. null: no running mean."""

    @property
    def evaluated(self) -> Literal["network", "average"]:
        """The part of a checkpoint that is evaluated and exported."""
        return "network" if self.ema is None else "average"

    def resolved(self) -> OptimizerConfig:
        """Returns the configuration with the optimizer's defaults instead of null."""
        values = {
            name: default if getattr(self, name) is None else getattr(self, name)
            for name, default in _DEFAULTS[self.name].items()
        }
        if self.name == "muon" and self.muon_learning_rate is None:
            values["muon_learning_rate"] = values["learning_rate"]
        return replace(self, **values)

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
            muon_learning_rate=POSITIVE,
            weight_decay=NOT_NEGATIVE,
            beta1=FROM_0_BELOW_1,
            beta2=FROM_0_BELOW_1,
            epsilon=POSITIVE,
            muon_momentum=FROM_0_BELOW_1,
            clip_norm=POSITIVE,
            ema=BETWEEN_0_AND_1,
        )
        for name in _DEFAULTS["muon"]:
            value = getattr(self, name)
            require(
                value is None or name in _DEFAULTS[self.name],
                f"optimizer.{name}",
                value,
                f"it has no effect with --optimizer.name {self.name}; omit it",
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
