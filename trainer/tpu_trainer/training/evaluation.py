"""Loss and accuracy on a whole split."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from tqdm import tqdm

from tokenmill_reader import Dataset
from tokenmill_reader.console.elapsed import MOMENT, ticking
from tokenmill_reader.console.terminal import shows_bars
from tpu_trainer.config import TrainConfig
from tpu_trainer.config.data import PLAIN_SPLIT
from tpu_trainer.data.batches import EvaluationRows
from tpu_trainer.data.choices import ChoiceRows
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.executor import StepExecutor, check_batch_size
from tpu_trainer.network.objectives import BatchSums
from tpu_trainer.runs.loss_picture import LossPicture
from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.runs.time_spent import EVALUATION, TimeSpent
from tpu_trainer.training.progress import passes
from tpu_trainer.training.saving import Saver

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Figures over all targets of a split. They do not depend on batch size or number of replicas."""

    loss: float
    """Mean cross-entropy, nats per target."""
    perplexity: float
    accuracy: float
    targets: int
    rows: int
    bits_per_byte: float | None = None
    """The loss spread over the UTF-8 bytes of the split's text, to compare models with different tokenizers. None if
    the number of bytes is unknown."""

    def to_json(self) -> dict[str, float]:
        """Returns a JSON object of the known figures."""
        return {name: figure for name, figure in asdict(self).items() if figure is not None}


class Evaluations(dict[str, Evaluation]):
    """The figures of each validation split, by its name. The first split decides which checkpoint is the best."""

    choices: dict[str, dict[str, float]]
    """The figures of each file of multiple-choice items, by its name."""

    @property
    def loss(self) -> float:
        """The loss of the first split."""
        return next(iter(self.values())).loss

    def to_json(self) -> dict[str, Any]:
        """Returns the figures of the first split and, if splits have names, its name and the figures of all."""
        splits = {name: figures.to_json() for name, figures in self.items()}
        first = next(iter(splits))
        figures = (
            splits[first] if first == PLAIN_SPLIT else {"split": first, **splits[first], "splits": splits}
        )
        return figures | ({"choices": self.choices} if self.choices else {})

    def __str__(self) -> str:
        """The loss and accuracy of each split, and the accuracy of choices."""
        parts = [
            f"{name}{name and ' '}validation loss {figures.loss:.3f} accuracy {figures.accuracy:.3f}"
            for name, figures in self.items()
        ]
        return ", ".join(
            parts + [f"{name} accuracy {each['accuracy']:.3f}" for name, each in self.choices.items()]
        )


def evaluate_all(
    evaluators: Mapping[str, Evaluator],
    choices: Mapping[str, ChoiceEvaluator] = MappingProxyType({}),
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluations | None:
    """Evaluates the current weights on each split and on choices; returns None if `stop` returned True."""
    figures = Evaluations()
    figures.choices = {}
    for name, each in choices.items():
        answers = each.run(stop=stop)
        if answers is None:
            return None
        figures.choices[name] = answers
    for name, evaluator in evaluators.items():
        evaluation = evaluator.run(stop=stop)
        if evaluation is None:
            return None
        figures[name] = evaluation
    return figures


def bits_per_byte(loss: float, split: Dataset) -> float | None:
    """Converts nats per token to bits per byte of the split's text; None if its manifest does not count bytes."""
    totals = (split.manifest or {}).get("totals", {})
    if not totals.get("bytes") or "tokens" not in totals:
        return None
    return loss / math.log(2) * totals["tokens"] / totals["bytes"]


class Evaluator:
    """Evaluates a split repeatedly, compiling once."""

    def __init__(
        self,
        executor: StepExecutor,
        *,
        split: Dataset,
        vocabulary: Vocabulary,
        batch_size: int,
        batch_size_option: str,
    ) -> None:
        """
        Args:
            executor: Computes the sums over a batch.
            split: The split.
            vocabulary: The tokenizer's.
            batch_size: Rows in a step, over all replicas.
            batch_size_option: The option that sets it, for error messages.

        Raises:
            UsageError: If the replicas cannot divide a batch evenly.
        """
        check_batch_size(batch_size, executor.replicas, batch_size_option)
        self.split = split
        self._executor = executor
        self._rows = EvaluationRows(split, batch_size=batch_size, vocabulary=vocabulary)
        self._batches = executor.distribute(self._rows.batches())

    def run(self, *, stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Evaluates the current weights; returns None if `stop`, called before each batch, returned True."""
        # A float32 sum over millions of targets would depend on the batch size.
        total = np.zeros(len(BatchSums._fields), np.float64)
        batches = tqdm(
            itertools.islice(self._batches, self._rows.steps),
            desc="evaluate",
            total=self._rows.steps,
            unit=" steps",
            leave=False,
            delay=MOMENT,
            disable=not shows_bars(),
        )
        with (
            self._rows.errors_of_reading(),
            self._executor.evaluated_weights(),
            ticking(batches),
        ):
            for batch in batches:
                if stop():
                    return None
                total += np.array(self._executor.evaluate(batch), np.float64)
        sums = BatchSums(*total)
        targets = max(float(sums.targets), 1.0)
        loss = float(sums.loss) / targets
        return Evaluation(
            loss=loss,
            perplexity=math.exp(min(loss, 700.0)),  # more overflows a float64
            accuracy=float(sums.correct) / targets,
            targets=int(sums.targets),
            rows=len(self.split),
            bits_per_byte=bits_per_byte(loss, self.split),
        )


class ChoiceEvaluator:
    """Answers multiple-choice items repeatedly, compiling once."""

    def __init__(
        self, executor: StepExecutor, *, rows: ChoiceRows, vocabulary: Vocabulary, batch_size: int
    ) -> None:
        self._executor = executor
        self._choices = rows
        self._rows = EvaluationRows(rows, batch_size=batch_size, vocabulary=vocabulary)
        self._batches = executor.distribute(self._rows.batches())

    def run(self, *, stop: Callable[[], bool]) -> dict[str, float] | None:
        """Returns the shares of right answers of the current weights; None if `stop` returned True."""
        losses = []
        with self._executor.evaluated_weights():
            for batch in itertools.islice(self._batches, self._rows.steps):
                if stop():
                    return None
                losses.append(self._executor.row_sums(batch, self._rows.batch_size)[:, 0])
        accuracy, by_byte = self._choices.accuracy(np.concatenate(losses)[: len(self._choices)].astype(float))
        return {"accuracy": accuracy, "accuracy_per_byte": by_byte, "items": len(self._choices.items)}


class Validation:
    """Evaluates a run's validation splits during training, logs and draws the figures, and saves the best weights."""

    def __init__(
        self,
        evaluators: Mapping[str, Evaluator],
        *,
        choices: Mapping[str, ChoiceEvaluator] = MappingProxyType({}),
        config: TrainConfig,
        log: MetricsLog,
        picture: LossPicture,
        saver: Saver,
        time_spent: TimeSpent,
    ) -> None:
        self._evaluators = evaluators
        self._choices = choices
        self._config = config
        self._log = log
        self._picture = picture
        self._saver = saver
        self._time_spent = time_spent

    def resume(self, first_step: int, *, stop: Callable[[], bool]) -> None:
        """Evaluates the weights after `first_step` updates if an earlier process was to, but was interrupted in it."""
        every = self._config.evaluate_every
        if every is None or first_step == 0 or first_step % every:
            return
        losses = [
            record["eval"]["loss"]
            for record in self._log.records
            if "eval" in record and record["step"] == first_step
        ]
        if losses:
            self._saver.save_if_best(first_step, losses[-1])  # that process may have ended before it did
        else:
            self.run(first_step, stop=stop)

    def due(self, steps: range) -> bool:
        """Whether to evaluate after `steps`. The weights of the last step are evaluated after they are saved."""
        every = self._config.evaluate_every
        return every is not None and passes(steps, every) and steps.stop != self._config.steps

    def run(self, step: int, *, stop: Callable[[], bool]) -> Evaluations | None:
        """Evaluates the weights after `step` updates; returns None if `stop` returned True."""
        with self._time_spent.on(EVALUATION):
            figures = evaluate_all(self._evaluators, self._choices, stop=stop)
            if figures is None:
                return None
            self._log.append({"step": step, "eval": figures.to_json()})
            if step < self._config.steps:
                _log.info(f"step {step}: {figures}")
            self._picture.draw(self._log.records)
        self._saver.save_if_best(step, figures.loss)
        return figures
