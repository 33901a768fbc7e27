"""Grain: a random-access source, for Grain's own shuffling, batching and checkpoints."""

from __future__ import annotations

import operator

import grain.python as grain

from tokenmill_reader.dataset import Dataset, Rows
from tokenmill_reader.mixture import Mixture
from tokenmill_reader.order import Order


class RowSource(grain.RandomAccessDataSource):
    """Rows by their numbers: int32[max_length] by feature.

    grain.MapDataset.source(RowSource(dataset)).seed(0).shuffle().batch(256).to_iter_dataset()
    """

    def __init__(self, data: Dataset | Mixture) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> Rows:
        rows = self._data[[operator.index(row)]]
        return {name: values[0] for name, values in rows.items()}


class BatchSource(grain.RandomAccessDataSource):
    """The batches of an `Order` by their steps: decoding rows together is faster than one by one.

    grain.MapDataset.source(BatchSource(dataset, order, steps=10_000)).to_iter_dataset()
    """

    def __init__(self, data: Dataset | Mixture, order: Order, *, steps: int) -> None:
        self._data, self._order, self._steps = data, order, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Rows:
        rows = self._order.rows(operator.index(step))
        return self._data[rows] | {"row": rows}
