"""PyTorch: a map-style dataset, and an iterable one with state for torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, get_worker_info

from tokenmill_reader.dataset import Dataset, Rows
from tokenmill_reader.mixture import Mixture
from tokenmill_reader.order import Order


def _tensors(rows: Rows) -> dict[str, torch.Tensor]:
    """Returns the same values as int64 tensors, which embeddings and losses take."""
    return {name: torch.from_numpy(values).long() for name, values in rows.items()}


class MapDataset(TorchDataset):
    """Rows by their numbers, for PyTorch's own samplers: int64[max_length] by feature."""

    def __init__(self, data: Dataset | Mixture) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, torch.Tensor]]:
        """Reads a batch at once; PyTorch calls this method if it exists."""
        tensors = _tensors(self._data[rows])
        return [{name: values[row] for name, values in tensors.items()} for row in range(len(rows))]


class Batches(IterableDataset):
    """The endless batches of an `Order`, from a step on: int64[rows, max_length] by feature, and `row`, int64[rows].

    Use it with `batch_size=None`, in a DataLoader or, to continue where a run ended, a StatefulDataLoader. With several
    workers, each of N makes every N-th batch, and the loader returns them in the order's order.
    """

    def __init__(self, data: Dataset | Mixture, order: Order, *, step: int = 0) -> None:
        self._data, self._order, self._step = data, order, step
        self._next_step: int | None = None
        """The next step of this process; None before the first iteration."""
        self._restored = False

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        worker_index, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if not self._restored:
            self._next_step = self._step + worker_index
        self._restored = False
        return self._batches(workers)  # torchdata asks for the state before the first batch

    def _batches(self, workers: int) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            rows, self._next_step = self._order.rows(self._next_step), self._next_step + workers
            yield _tensors(self._data[rows] | {"row": rows})

    def state_dict(self) -> dict[str, Any]:
        """Returns the step after the last batch of this worker."""
        return {"next_step": self._next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state, which must be from the same number of workers."""
        self._next_step = state["next_step"]
        self._restored = self._next_step is not None
