"""Production's own proof that an engine gives HF's ids: a few of a run's documents are encoded by both."""

from __future__ import annotations

import numpy as np

from beam_pipeline.errors import DataError
from beam_pipeline.hashing import place_hashes
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.tokenization.engine import Engine

# HF takes about as long for these many bytes as for 1% of what one process does in a unit of 32 MiB.
_BYTES_IN_A_UNIT = 16 << 10
_UNIT = 32 << 20

# Of a small input more, and all of a very small one: it takes HF a fraction of a second.
_LEAST_BYTES = 256 << 10

# Of a longer document this many characters are encoded, by both.
_LONGEST = 16 << 10


class EngineMismatch(DataError):
    """An engine's ids are not what they must be.

    Attributes:
      name, place: where the document stands: see `DocumentBatch`.
    """

    def __init__(self, name: str, place: int, message: str):
        super().__init__(message)
        self.name = name
        self.place = place


class SampleCheck:
    """Compares documents chosen by a seeded hash of their place: the same ones whatever the runner does.

    Args:
      engine: the engine to hold to its reference; HF's own is not compared with itself.
      input_bytes: the size of the run's whole input.
      seed: decides which documents.
    """

    def __init__(self, engine: Engine, *, input_bytes: int, seed: int):
        self._engine = engine
        self._seed = seed
        share = max(_BYTES_IN_A_UNIT / _UNIT, _LEAST_BYTES / max(1, input_bytes))
        self._bound = np.uint64(min(int(share * 2**64), 2**64 - 1))

    def __call__(self, batch: DocumentBatch, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Checks the ids (integers [tokens]) that the engine gave for the batch's documents.

        Raises:
          EngineMismatch: naming the document whose ids differ.
        """
        if self._engine.reference is None:
            return
        hashes = place_hashes("engine", self._seed, batch.name, batch.places)
        chosen = np.flatnonzero(hashes <= self._bound)
        ends = np.cumsum(lengths)
        for number in chosen.tolist():
            text = batch.texts[number]
            if len(text) > _LONGEST:
                text = text[:_LONGEST]
                found, _ = self._engine.encode_batch([text])
            else:
                found = ids[ends[number] - lengths[number] : ends[number]]
            wanted = self._engine.reference.encode(text, add_special_tokens=False).ids
            if not np.array_equal(found, wanted):
                raise EngineMismatch(
                    batch.name, int(batch.places[number]), _difference(self._engine.name, found, wanted)
                )


def _difference(name: str, found: np.ndarray, wanted: list[int]) -> str:
    same = 0
    while same < min(len(found), len(wanted)) and found[same] == wanted[same]:
        same += 1
    return (
        f"the engine {name} gives other ids than HF's tokenizer for this document: {found[same : same + 4].tolist()} "
        f"from token {same} on, where HF has {wanted[same : same + 4]}; use --engine hf"
    )
