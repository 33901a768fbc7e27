"""The batches of one host."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill_reader.dataset import Dataset, Rows
from tokenmill_reader.mixture import Mixture
from tokenmill_reader.order import Order

_AHEAD_STEPS = 16


def batches(data: Dataset | Mixture, order: Order, step: int = 0) -> Iterator[Rows]:
    """Yields the endless batches of this host, from a step on.

    Yields:
        int32[rows, max_length] by feature, and `row`, int64[rows]: the numbers of the rows.
    """
    data.keep_open(2 * order.window)  # the next window is read ahead
    while True:
        rows = order.rows(step)
        data.read_ahead(order.rows(step + _AHEAD_STEPS))
        yield data[rows] | {"row": rows}
        step += 1
