"""How devices divide the arrays of one program: rows, the tokens of a row, experts, and heads.

A program is written for all devices, and XLA divides it. Where XLA would divide badly, the program has calls of
`PLACE`, which devices/pjrt/partitioning.py replaces by Shardy's constraints.

Devices that divide the tokens of rows (context parallelism) gather keys and values, and sum their gradients. In causal
attention, the last tokens see the most keys: the columns of rows are then ordered so that all devices have equal
shares, as in Dubey et al., "The Llama 3 Herd of Models" (2024, 3.3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.config.mesh import EXPERT, MODEL, ROWS, SEQUENCE, SHARDS
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.custom_call import custom_call
from tpu_trainer.support.errors import UsageError

PLACE = "tokenmill.place"
"""Name of the calls. The configuration is a JSON list: for each dimension of the operand, the axes that divide it."""
Axes = tuple[str, ...]


class Division(NamedTuple):
    """The sizes of a mesh's axes; see config.MeshConfig."""

    data: int = 1
    expert: int = 1
    sequence: int = 1
    model: int = 1

    @property
    def row_groups(self) -> int:
        """Groups of devices that divide the rows."""
        return self.data * self.expert

    @property
    def groups(self) -> int:
        """Groups of devices that divide the tokens of all rows."""
        return self.row_groups * self.sequence

    def check(self, architecture: Architecture, length: int) -> None:
        """Checks that the devices can divide a model.

        Args:
            architecture: The model's.
            length: Tokens in a row.

        Raises:
            UsageError: If an axis does not divide what it has to.
        """
        attention, experts = architecture.attention, architecture.mlp.experts
        for name, heads in (("attention heads", attention.heads), ("key heads", attention.key_heads)):
            if heads % self.model:
                raise UsageError(
                    f"--mesh.model is {self.model}: it must divide the number of the model's {name}, {heads}"
                )
        if self.expert > 1 and (experts is None or experts % self.expert):
            raise UsageError(
                f"--mesh.expert is {self.expert}: "
                + (
                    "the model has no experts; remove the option"
                    if experts is None
                    else f"it must divide the number of the model's experts, {experts}"
                )
            )
        if length % self.sequence:
            raise UsageError(
                f"--mesh.sequence is {self.sequence}: it must divide the tokens of a row, {length}"
            )

    def by_group(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the tokens of each group, [G, B · L / G, …], of an array [B, L, …].

        Groups are in the order of (data, sequence, expert): groups that exchange tokens for experts are neighbours.
        """
        rows, length, *rest = x.shape
        if self.sequence > 1:
            sizes = [self.data, self.expert, rows // self.row_groups, self.sequence, length // self.sequence]
            x = tf.transpose(tf.reshape(x, sizes + rest), [0, 3, 1, 2, 4, *range(5, 5 + len(rest))])
        return tf.reshape(x, [self.groups, rows * length // self.groups, *rest])

    def by_row(self, x: tf.Tensor, length: int) -> tf.Tensor:
        """Inverts `by_group`, for rows of `length` tokens."""
        groups, tokens, *rest = x.shape
        rows = groups * tokens // length
        if self.sequence > 1:
            sizes = [self.data, self.sequence, self.expert, rows // self.row_groups, length // self.sequence]
            x = tf.transpose(tf.reshape(x, sizes + rest), [0, 2, 3, 1, 4, *range(5, 5 + len(rest))])
        return tf.reshape(x, [rows, length, *rest])

    def by_token(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x`, [B, L, …], of which devices have the tokens that they have of the rows."""
        return x if self.sequence == 1 else place(x, [ROWS, (SEQUENCE,), *[()] * (len(x.shape) - 2)])

    def by_row_group(self, x: tf.Tensor) -> tf.Tensor:
        """Returns numbers of tokens, [B, L], of which devices have those of whole rows: few bytes, and no exchange."""
        return x if self.sequence == 1 else place(x, [ROWS, ()])

    def by_query(self, x: tf.Tensor) -> tf.Tensor:
        """Returns queries or attention's results, [B, L, H, D], of which devices have those of their tokens."""
        return x if self.sequence == 1 else place(x, [ROWS, (SEQUENCE,), (MODEL,), ()])

    def whole_rows(self, x: tf.Tensor) -> tf.Tensor:
        """Returns keys or values, [B, L, K, D], of which devices have those of whole rows."""
        return x if self.sequence == 1 else place(self.by_query(x), [ROWS, (), (MODEL,), ()])

    def by_device(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x`, [G, …], of which devices have their groups."""
        return x if self.groups == 1 else place(x, [SHARDS, *[()] * (len(x.shape) - 1)])

    def by_expert(self, x: tf.Tensor, last: Axes = ()) -> tf.Tensor:
        """Returns `x`, [G, E, C, n], of which devices have their experts; these axes divide the last dimension."""
        if self.groups == 1:
            return x
        return place(x, [tuple(axis for axis in SHARDS if axis != EXPERT), (EXPERT,), (), last])

    def chunks(self, architecture: Architecture) -> int:
        """Returns the number of parts of a row that stay together: two for each device if they are balanced.

        Dropout depends on the number of a column: with dropout, columns stay in order.
        """
        balanced = self.sequence > 1 and architecture.causal and not any(astuple(architecture.dropout))
        return 2 * self.sequence if balanced else self.sequence

    def order(self, architecture: Architecture, length: int) -> np.ndarray | None:
        """Returns the order of the columns in which devices have equal shares of causal attention.

        Example: with 2 devices, rows of 8 tokens have the order 0 1 6 7 | 2 3 4 5.

        Returns:
            int32[L], the place of each column in its row; None: columns are in order.
        """
        chunks = self.chunks(architecture)
        if chunks == self.sequence or length % chunks:
            return None
        return balanced_order(length, self.sequence)


ONE_DEVICE = Division()


def balanced_order(length: int, sequence: int) -> np.ndarray:
    """Returns `Division.order` of rows of `length` tokens that `sequence` devices divide."""
    first = np.arange(sequence)
    order = np.stack([first, 2 * sequence - 1 - first], axis=1).reshape(-1)
    return np.arange(length, dtype=np.int32).reshape(2 * sequence, -1)[order].reshape(-1)


def place(x: tf.Tensor, axes: Sequence[Axes]) -> tf.Tensor:
    """Returns `x`, whose dimensions these axes divide, as those of its gradient."""

    @tf.custom_gradient
    def placed(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _call(x, axes), lambda d_x: _call(d_x, axes)

    return placed(x)


def _call(x: tf.Tensor, axes: Sequence[Axes]) -> tf.Tensor:
    (result,) = custom_call(PLACE, [x], list(axes), [(x.dtype, x.shape)])
    return result


def in_order(x: tf.Tensor, order: np.ndarray | None, parts: int) -> tf.Tensor:
    """Returns `x`, [B, L, …], with its columns in the order of their places.

    Args:
        x: The array.
        order: See Division.order.
        parts: The number of chunks that it moves.
    """
    return x if order is None else _moved(x, np.argsort(_chunks(order, parts)), axis=1)


def in_columns(x: tf.Tensor, order: np.ndarray | None, parts: int, *, axis: int) -> tf.Tensor:
    """Inverts `in_order`, for columns that are on this axis."""
    return x if order is None else _moved(x, _chunks(order, parts), axis=axis)


def _chunks(order: np.ndarray, parts: int) -> np.ndarray:
    """Returns the place of each chunk."""
    return order[:: len(order) // parts] * parts // len(order)


def _moved(x: tf.Tensor, chunks: np.ndarray, *, axis: int) -> tf.Tensor:
    pieces = tf.split(x, len(chunks), axis=axis)
    return tf.concat([pieces[number] for number in chunks.tolist()], axis=axis)
