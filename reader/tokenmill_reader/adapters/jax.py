"""JAX: the batches of an `Order` as arrays that are sharded over the devices of all hosts."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from tokenmill_reader.dataset import Dataset
from tokenmill_reader.host_batches import batches
from tokenmill_reader.mixture import Mixture
from tokenmill_reader.order import Order


def global_batches(
    data: Dataset | Mixture, order: Order, sharding: jax.sharding.Sharding, *, step: int = 0
) -> Iterator[dict[str, jax.Array]]:
    """Yields the endless batches from a step on.

    Args:
        data: The rows.
        order: An order with `host=jax.process_index()` and `hosts=jax.process_count()`.
        sharding: A sharding over the first dimension, in the order of the processes.
        step: The first step.

    Yields:
        int32[batch_size, max_length] by feature; each host contributes its own rows.
    """
    for batch in batches(data, order, step):
        del batch["row"]  # int64, which JAX does not have by default
        yield {name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()}
