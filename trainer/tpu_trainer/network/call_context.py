"""What the layers inside a model need to know of the call under way, beyond what its own interface carries.

Hugging Face builds the layers of its models itself, deep inside them, and hands a fixed set of arguments from one to
the next. Patched layers (patches/) find the rest here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class CallValues:
    """The values of one call."""

    dropout_key: tuple[tf.Tensor, tf.Tensor] | None = None
    """Two uint32 scalars; None: dropout in training is an error."""
    row: tf.Tensor | None = None
    """int32[B]: the rows' ids."""
    segment_ids: tf.Tensor | None = None
    """int32[B, L]: the document of each token; None: a row is one text."""


class CallContext:
    """The values that all changed layers of one model read while it is called."""

    def __init__(self) -> None:
        self.values = CallValues()

    @contextmanager
    def using(self, values: CallValues) -> Iterator[None]:
        """Calls of the model in this context see `values`."""
        before, self.values = self.values, values
        try:
            yield
        finally:
            self.values = before

    def with_changes(self, **changes: Any) -> CallValues:
        """The present values, with some of them changed."""
        return replace(self.values, **changes)
