"""Inputs shared by the tests of gs:// on any server: the objects of gs://data, and the arguments of `prepare`."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet as pq

from tests.beam_pipeline.runs import arguments as arguments_of

OUT = "gs://data/a/dataset"
OPTIONS = ["--splits", "train=0.8,validation=0.2", "--max_length", "64", "--unit_bytes", "20000"]
TRAINING = [
    "--input",
    "gs://data/mixed/*",
    "--model",
    "bpe",
    "--vocab_size",
    "400",
    "--output",
    "gs://data/trained",
]
MIXED = arguments_of("gs://data/mixed/*", "gs://data/trained", OUT)


def arguments(output: Path | str, *options: str) -> list[str]:
    size = ["--shard_size", "150"]
    return arguments_of("gs://data/corpus/*.txt", "gs://data/tokenizer", output, *OPTIONS, *size, *options)


def objects(corpus: Path, tokenizer: Path, documents: list[str]) -> dict[str, bytes]:
    """Returns the objects of the bucket: a corpus of two files, one of mixed formats, and a tokenizer."""
    lines = corpus.read_bytes().splitlines(keepends=True)
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": documents[:400]}), table, row_group_size=100)
    return {
        "corpus/a.txt": b"".join(lines[:600]),
        "corpus/b.txt": b"".join(lines[600:]),
        "mixed/a.parquet": table.getvalue().to_pybytes(),
        "mixed/b.txt.gz": gzip.compress("\n".join(documents[400:700]).encode()),
        "mixed/c.txt.bz2": bz2.compress("\n".join(documents[700:]).encode()),
        **{f"tokenizer/{file.name}": file.read_bytes() for file in tokenizer.iterdir()},
    }
