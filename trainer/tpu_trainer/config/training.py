"""How long to train, and what to write on the way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tpu_trainer.config.ranges import AT_LEAST_1, POSITIVE, check_ranges, require

Precision = Literal["float32", "mixed_bfloat16"]


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and what to write on the way."""

    steps: int = 10_000
    """Optimizer steps."""
    batch_size: int = 128
    """Rows in a step, over all replicas and all its micro-batches."""
    accumulation: int = 1
    """Micro-batches that a replica takes one after the other in a step, where its rows do not fit into its memory at
    once. The step is the same whatever their number, to the precision of sums."""
    precision: Precision = "float32"
    """mixed_bfloat16: products, and the logits in training, in bfloat16; weights, sums, softmax and loss in float32."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of the model's blocks for the backward pass and compute the rest anew: less memory, about a
    third more operations."""
    steps_per_execution: int = 1
    """Steps taken in one call of the device, which saves time where steps are short. Whatever happens every so many
    steps happens at the next call's end."""
    evaluation_batch_size: int | None = None
    """Rows in a step of evaluation, over all replicas; default: batch_size. The figures do not depend on it."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    evaluate_every: int | None = None
    """Steps between evaluations of the validation split; there is always one at the end."""
    checkpoint_every: int = 1_000
    """Steps between checkpoints; there is always one at the end."""
    checkpoint_minutes: float | None = None
    """Minutes after which a checkpoint is written though `checkpoint_every` steps have not passed; null: never."""
    keep_checkpoints: int = 3
    """Checkpoints kept: the newest. The one with the lowest validation loss is kept besides."""
    recompute_attention: bool = False
    """Compute attention probabilities anew in the backward pass instead of keeping them: less memory, the same loss.
    Known for the types bert, roberta, camembert, electra and gpt2."""
    attention_kernel: bool = False
    """On a TPU: attention as a kernel that keeps every score on the chip, with much less traffic to memory and the
    same loss. Before the first step the device is to show that it gives what plain attention gives. For the
    types of recompute_attention, an even number of heads of 64 dimensions, and rows of 128, 256, 512, 1024 or 2048
    tokens. On other devices: recompute_attention."""
    skip_spikes: float | None = None
    """Leave out an update whose loss lies more than so many standard deviations above the mean of the last 64 or so
    steps, and count it in the log (6 is a usual value); null: leave out none. The step holds a second copy of model and
    optimizer then."""
    deterministic: bool = False
    """Only operations that give the same bits in every run, so that a run that was killed and continued ends with the
    very weights of one that was not. Costs time on GPUs."""
    tensorboard: bool = True
    """Write the figures for TensorBoard, too, into the run's tensorboard/."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            "train",
            steps=AT_LEAST_1,
            batch_size=AT_LEAST_1,
            accumulation=AT_LEAST_1,
            steps_per_execution=AT_LEAST_1,
            evaluation_batch_size=AT_LEAST_1,
            log_every=AT_LEAST_1,
            evaluate_every=AT_LEAST_1,
            checkpoint_every=AT_LEAST_1,
            checkpoint_minutes=POSITIVE,
            keep_checkpoints=AT_LEAST_1,
            skip_spikes=POSITIVE,
        )


@dataclass(frozen=True)
class ProfileConfig:
    """A profile of some steps, for TensorBoard's profile plugin."""

    steps: str | None = None
    """FIRST:LAST, such as 10:15: the steps to profile, both included, counted from 1; null: none."""

    def __post_init__(self) -> None:
        rule = "must be FIRST:LAST with 1 <= FIRST <= LAST, such as 10:15"
        require(
            self.steps is None or re.fullmatch(r"\d+:\d+", self.steps) is not None,
            "profile.steps",
            self.steps,
            rule,
        )
        if (limits := self.range()) is not None:
            require(1 <= limits[0] <= limits[1], "profile.steps", self.steps, rule)

    def range(self) -> tuple[int, int] | None:
        """The first and the last step."""
        if self.steps is None:
            return None
        first, last = self.steps.split(":")
        return int(first), int(last)
