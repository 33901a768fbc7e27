"""Transforms for Beam pipelines of your own, whose documents come from any source.

`WriteDataset` is one transform, not a chain of a packing and a writing one: the rows of a dataset are shuffled as a
whole, and the last tokens of all work units are packed together, so a row's place is known only when all documents are
packed. Nothing that passes between these steps would keep the guarantees by itself. `Tokenize` does, and is useful
alone.
"""

from __future__ import annotations

from beam_pipeline.steps.tokens import Tokenize
from beam_pipeline.verbs.write_dataset import WriteDataset

__all__ = ["Tokenize", "WriteDataset"]
