"""Values of a model call that Hugging Face's models do not pass to their layers.

Hugging Face's models build their layers and pass them a fixed set of arguments. Patched layers (patches/) read further
values here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class CallValues:
    """The values of one call."""

    dropout_key: tuple[tf.Tensor, tf.Tensor] | None = None
    """Two uint32 scalars; None: dropout in training is an error."""
    row: tf.Tensor | None = None
    """int32[B], the rows' ids."""
    segment_ids: tf.Tensor | None = None
    """int32[B, L], the document of each token; None: a row is one document."""


class CallContext:
    """The values that all patched layers of a model read during a call."""

    def __init__(self) -> None:
        self.values = CallValues()

    @contextmanager
    def using(self, values: CallValues) -> Iterator[None]:
        """A context in which calls of the model use `values`."""
        previous_values, self.values = self.values, values
        try:
            yield
        finally:
            self.values = previous_values
