"""The log-likelihood of rows, computed by the devices of a model."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tokenmill_reader.console.elapsed import MOMENT, ticking
from tokenmill_reader.console.terminal import shows_bars
from tpu_trainer.data.target_rows import PaddedRows, TargetBatches, TargetRow
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.scoring.models import ScoredModel
from tpu_trainer.step.results import SourceSums


class Scores(NamedTuple):
    """The scores of n rows."""

    log_likelihood: np.ndarray
    """Log-probability of all targets, in nats, float64[n]."""
    is_greedy: np.ndarray
    """Whether each target is the likeliest token of its place, bool[n]."""


class Scorer:
    """Scores rows in batches of fixed shapes, of rows of similar length."""

    def __init__(self, model: ScoredModel, peers: Peers) -> None:
        self.model = model
        self._peers = peers

    def scores(self, rows: Sequence[TargetRow]) -> Scores:
        """Returns the scores in the order of the rows. All processes must call it with the same.

        Raises:
            UsageError: If the processes have other rows.
        """
        model = self.model
        self._peers.check_same({"the texts to score": _checksum(rows)}, remedy="give all the same task files")
        lengths = np.array(model.lengths)
        shape_numbers = np.searchsorted(lengths, [len(row.inputs) for row in rows])
        groups = [
            (length, np.flatnonzero(shape_numbers == number)) for number, length in enumerate(model.lengths)
        ]
        sums = np.zeros((len(rows), len(SourceSums._fields)))
        bar = tqdm(
            desc="evaluate",
            total=sum(-(-len(numbers) // model.batch_size) for _, numbers in groups),
            unit=" steps",
            leave=False,
            delay=MOMENT,
            disable=not shows_bars(),
        )
        with bar, ticking(bar):
            for length, numbers in groups:
                if len(numbers):
                    padded = PaddedRows(
                        [rows[number] for number in numbers],
                        length=length,
                        pad_id=model.vocabulary.pad_id or 0,
                    )
                    sums[numbers] = self._sums(padded, bar)
        columns = SourceSums(*sums.T)
        return Scores(-columns.loss, columns.correct == columns.targets)

    def _sums(self, padded: PaddedRows, bar: tqdm) -> np.ndarray:
        executor, count = self.model.executor, self.model.batch_size
        batches = TargetBatches(padded, batch_size=count, vocabulary=self.model.vocabulary)
        sums = []
        with batches.errors_of_reading(), executor.evaluated_weights():
            for batch in itertools.islice(executor.distribute(batches.batches()), batches.steps):
                sums.append(executor.row_sums(batch, count))
                bar.update()
        return np.concatenate(sums)[: len(padded)]


def _checksum(rows: Sequence[TargetRow]) -> int:
    value = 0
    for row in rows:
        value = zlib.crc32(row.targets, zlib.crc32(row.inputs, value))
    return value
