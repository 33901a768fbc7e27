"""The training loop's options."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

from tpu_trainer.config.ranges import AT_LEAST_1, NOT_NEGATIVE, POSITIVE, check_ranges, require

Precision = Literal["float32", "mixed_bfloat16"]
Recompute = Literal["nothing", "attention", "all"]


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int = 10_000
    """Optimizer steps. If a run continues with another number, so does its schedule (docs/training.md)."""
    batch_size: int = 128
    """Rows in a step, over all replicas and micro-batches."""
    accumulation: int = 1
    """Micro-batches that a replica processes one after the other in a step, if its rows do not fit into memory at once.
    The number does not affect the step, except for rounding."""
    batch_ramp: int = 0
    """Steps at the start in which the batch grows evenly, from batch_size ÷ accumulation rows, one micro-batch per
    replica, to batch_size. 0: all steps have batch_size rows."""
    precision: Precision = "float32"
    """mixed_bfloat16: bfloat16 for products and, in training, logits; float32 for weights, sums, softmax and loss."""
    recompute: Recompute = "nothing"
    """What the backward pass computes again instead of keeping it in memory. nothing: only what costs little (norms,
    activations, rotations, dropout). attention: also attention's scores and probabilities, which grow with the square
    of the rows' length. all: everything but the layers' inputs: least memory, about a third more operations."""
    steps_per_execution: int = 1
    """Steps in one call of the device; more save time if steps are short. Logging, evaluation and checkpoints happen
    at the end of a call."""
    evaluation_batch_size: int | None = None
    """Rows in an evaluation step, over all replicas; default: batch_size. The figures do not depend on it."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    evaluate_every: int | None = None
    """Steps between evaluations of the validation split; the last step is always evaluated."""
    checkpoint_every: int = 1_000
    """Steps between checkpoints; the last step always has one."""
    checkpoint_minutes: float | None = None
    """Minutes after which a checkpoint is written even before `checkpoint_every` steps; null: never."""
    keep_checkpoints: int = 3
    """Newest checkpoints to keep. The one with the lowest validation loss is always kept."""
    attention_kernel: bool = False
    """On a TPU: compute attention with a kernel that keeps all scores on the chip: much less memory traffic, the same
    loss. Before the first step, its results on the device are compared with plain attention. With strategy pjrt, for
    heads of 64, 128, 192 or 256 dimensions and rows of up to 131,072 tokens, a multiple of 128, without dropout of
    probabilities. With it, or with strategy tpu, for models with as many key heads as query heads, an even number on
    each device, of 64 dimensions, without windows and soft caps; and rows of 128, 256, 512, 1024 or 2048 tokens. On a
    GPU, with strategy pjrt and mixed_bfloat16: cuDNN's kernel, compared in the same way. On other devices, it means
    recompute attention."""
    z_loss: float = 0.0
    """Factor of the mean of log² Z, Z the sum of the exponentials of a target's logits, that is added to the loss, as
    in PaLM (1e-4): it keeps logits near 0. The reported losses are without it."""
    skip_spikes: float | None = None
    """Skip an update whose loss is more than this many standard deviations (6 is common) above the mean of about the
    last 64 steps, and count it in the log; null: skip none. The step then holds a second copy of model and
    optimizer."""
    deterministic: bool = False
    """Use only operations that give the same bits in every run: a run that was killed and continued ends with the same
    weights as an uninterrupted one. Slower on GPUs."""
    tensorboard: bool = True
    """Also write the figures for TensorBoard, to the run's tensorboard/."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            "train",
            steps=AT_LEAST_1,
            batch_size=AT_LEAST_1,
            accumulation=AT_LEAST_1,
            batch_ramp=NOT_NEGATIVE,
            steps_per_execution=AT_LEAST_1,
            evaluation_batch_size=AT_LEAST_1,
            log_every=AT_LEAST_1,
            evaluate_every=AT_LEAST_1,
            checkpoint_every=AT_LEAST_1,
            checkpoint_minutes=POSITIVE,
            keep_checkpoints=AT_LEAST_1,
            z_loss=NOT_NEGATIVE,
            skip_spikes=POSITIVE,
        )
        require(
            not self.batch_ramp or self.accumulation > 1,
            "train.batch_ramp",
            self.batch_ramp,
            "the batch grows by micro-batches, but there is only one; set --train.accumulation, too",
        )

    @property
    def micro_batch_starts(self) -> list[int]:
        """The step, counted from 0, from which each of a replica's micro-batches has rows.

        Example, accumulation 4 and batch_ramp 6:
            0 2 3 5: the first steps have 1, 1, 2, 3, 3 and 4 micro-batches, later ones 4
        """
        return [-(-number * self.batch_ramp // self.accumulation) for number in range(self.accumulation)]

    def rows_before(self, step: int) -> int:
        """Returns the rows of all steps before `step`, counted from 0."""
        micro_batches = sum(max(0, step - start) for start in self.micro_batch_starts)
        return micro_batches * self.batch_size // self.accumulation

    def steps_for(self, rows: int) -> int:
        """Returns the fewest steps that have `rows` rows."""
        return bisect_left(range(2**62), rows, key=self.rows_before)


@dataclass(frozen=True)
class ProfileConfig:
    """A profile of some steps, for TensorBoard's profile plugin."""

    steps: str | None = None
    """Steps to profile as FIRST:LAST, such as 10:15, counted from 1, both included; null: none."""

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
