"""Hugging Face datasets: the rows as a memory-mapped Arrow dataset."""

from __future__ import annotations

import os

import datasets
import pyarrow as pa

from tokenmill_reader.dataset import Dataset

_ROWS = 1024


def to_hf(dataset: Dataset, cache: str | os.PathLike[str]) -> datasets.Dataset:
    """Writes the rows to an Arrow file, a few at a time, and returns the dataset that maps it into memory.

    This is the only copy of the rows.

    Args:
        dataset: The rows.
        cache: The file; it is written again if it exists.

    Returns:
        A dataset with a list of int32 of length max_length for each feature.
    """
    cache = os.fspath(cache)
    features = datasets.Features(
        {
            name: datasets.Sequence(datasets.Value("int32"), length=dataset.max_length)
            for name in dataset.features
        }
    )
    schema = features.arrow_schema
    temporary = f"{cache}.tmp"
    with pa.OSFile(temporary, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for start in range(0, len(dataset), _ROWS):
            rows = dataset[start : start + _ROWS]
            lists = [
                pa.FixedSizeListArray.from_arrays(pa.array(rows[name].reshape(-1)), dataset.max_length)
                for name in schema.names
            ]
            writer.write_batch(pa.record_batch(lists, schema=schema))
    os.replace(temporary, cache)  # noqa: PTH105
    return datasets.Dataset.from_file(cache)
