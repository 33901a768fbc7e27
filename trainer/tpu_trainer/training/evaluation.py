"""The mean loss and accuracy over a whole split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import tensorflow as tf

from tpu_trainer.data.batches import evaluation_batches, evaluation_steps
from tpu_trainer.data.dataset import Split
from tpu_trainer.data.faults import diagnose_read_errors
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.objectives import Sums
from tpu_trainer.training.strategy import check_batch_size, is_tpu, num_hosts
from tpu_trainer.training.task import Task


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Figures over all targets of a split; they do not depend on batch size or number of replicas."""

    loss: float
    """Mean cross-entropy, nats per target."""
    perplexity: float
    accuracy: float
    targets: int
    rows: int
    bits_per_byte: float | None = None
    """The loss spread over the split's text: what each of its UTF-8 bytes costs. It compares models of different
    tokenizers. None where the split's bytes are not known."""

    def to_json(self) -> dict[str, float]:
        """A JSON object of the figures that are known."""
        return {name: figure for name, figure in asdict(self).items() if figure is not None}


def bits_per_byte(loss: float, split: Split) -> float | None:
    """`loss`, in nats per token, as bits per byte of the split's text; None where its manifest does not count them."""
    totals = (split.manifest or {}).get("totals", {})
    if not totals.get("bytes") or "tokens" not in totals:
        return None
    return loss / math.log(2) * totals["tokens"] / totals["bytes"]


class Evaluator:
    """Evaluates one split, as often as asked, with one compilation."""

    def __init__(
        self,
        *,
        task: Task,
        split: Split,
        vocabulary: Vocabulary,
        batch_size: int,
        batch_size_option: str,
        strategy: tf.distribute.Strategy,
    ) -> None:
        """
        Args:
            task: The model.
            split: The split; all its rows are read.
            vocabulary: The tokenizer's.
            batch_size: Rows in a step, over all replicas.
            batch_size_option: The option that sets it, for messages.
            strategy: Where to compute.
        """
        check_batch_size(batch_size, strategy, batch_size_option)
        self.split = split
        """What is evaluated."""
        self._steps = evaluation_steps(split, batch_size=batch_size, hosts=num_hosts(strategy))
        self._batches = strategy.distribute_datasets_from_function(
            evaluation_batches(split, batch_size=batch_size, vocabulary=vocabulary)
        )
        compiled = tf.function(
            task.evaluation_sums, jit_compile=None if is_tpu(strategy) else True, autograph=False
        )

        def one_replica(batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            # A function of Python's own: MirroredStrategy would compile a tf.function for all replicas in one piece.
            return list(compiled(batch))

        @tf.function(autograph=False)
        def step(batch: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            per_replica = strategy.run(one_replica, args=(batch,))
            return [strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in per_replica]

        self._step = step

    def run(self, *, stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """The figures for the model's present weights; None where `stop` said so before the end."""
        # float64 here: a float32 sum over millions of targets would depend on how they are batched.
        total = np.zeros(len(Sums._fields), np.float64)
        with diagnose_read_errors((self.split, shard) for shard in self.split.shards):
            for batch in itertools.islice(self._batches, self._steps):
                if stop():
                    return None
                total += np.array([value.numpy() for value in self._step(batch)], np.float64)
        sums = Sums(*total)
        targets = max(float(sums.targets), 1.0)
        loss = float(sums.loss) / targets
        return Evaluation(
            loss=loss,
            perplexity=math.exp(min(loss, 700.0)),  # past this a float64 overflows
            accuracy=float(sums.correct) / targets,
            targets=int(sums.targets),
            rows=self.split.num_rows,
            bits_per_byte=bits_per_byte(loss, self.split),
        )
