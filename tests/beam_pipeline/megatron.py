"""Megatron-LM's indexed dataset, written from its specification in docs/dataset-format.md, as the tests' reference."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np


def build(documents: Sequence[Sequence[int]], vocab_size: int) -> tuple[bytes, bytes]:
    """Returns the bytes of the .bin and the .idx file of documents."""
    kind, code = (np.uint16, 8) if vocab_size < 65_500 else (np.int32, 4)
    lengths = [len(document) for document in documents]
    pointers = [sum(lengths[:number]) * np.dtype(kind).itemsize for number in range(len(documents))]
    index = [
        b"MMIDIDX\x00\x00",
        struct.pack("<Q", 1),
        struct.pack("<B", code),
        struct.pack("<Q", len(documents)),
        struct.pack("<Q", len(documents) + 1),
        np.array(lengths, np.int32).tobytes(),
        np.array(pointers, np.int64).tobytes(),
        np.arange(len(documents) + 1, dtype=np.int64).tobytes(),
    ]
    return b"".join(np.array(document, kind).tobytes() for document in documents), b"".join(index)


def read(prefix: Path) -> list[list[int]]:
    """Reads the documents of a pair of files."""
    index = prefix.with_suffix(".idx").read_bytes()
    code, sequences, documents = struct.unpack_from("<BQQ", index, 17)
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + lengths.nbytes)
    document_ends = np.frombuffer(index, np.int64, documents, 34 + lengths.nbytes + pointers.nbytes)
    data, kind = prefix.with_suffix(".bin").read_bytes(), np.dtype({8: np.uint16, 4: np.int32}[code])
    documents_of_pair = []
    for first, end in pairwise(document_ends):
        documents_of_pair.append([])
        for length, pointer in zip(lengths[first:end], pointers[first:end], strict=True):
            documents_of_pair[-1] += np.frombuffer(data, kind, length, pointer).tolist()
    return documents_of_pair
