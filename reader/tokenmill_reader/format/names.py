"""The names of a dataset's files, and the words that occur in them and in the manifest."""

from __future__ import annotations

import re

# In the folder of a split.
MANIFEST = "manifest.json"
STATISTICS = "statistics.json"
UNITS = "units.jsonl"
SCHEMA = "transformed_metadata/schema.pbtxt"
INDEX = "index.json"  # with --output_format mds
OFFSETS = "offsets"  # a folder
TRANSFORM_FN = "transform_fn"  # a folder
# Beside the folders of the splits.
INPUTS = "inputs.jsonl"
TOKENIZER = "tokenizer"  # a folder
REPORT = "report.html"

EXTENSIONS = {
    "tfrecord": "tfrecord",
    "arrayrecord": "array_record",
    "parquet": "parquet",
    "mds": "mds",
    "megatron": "bin",
}
"""The extension of the files of each format in `--output_format`."""
_INDEX_EXTENSION = "idx"  # of the second file of a shard of documents

ROW_FORMATS = ("tfrecord", "arrayrecord", "parquet", "mds")
"""The values of `--output_format` for rows."""

DOCUMENT_FORMATS = ("parquet", "megatron")
"""The values of `--output_format` for whole documents, `--packing none`."""

OPTIONAL_FEATURES = ("attention_mask", "loss_mask", "position_ids", "segment_ids")
"""Features that a record may have besides `input_ids`."""

SPECIAL_NAMES = ("pad", "mask", "bos", "eos", "cls", "sep", "unk")
"""The roles of special tokens."""

SPLIT_NAME_LENGTH = 100  # names of files contain it, and have at most 255 bytes
SPLIT_NAME = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9_.]{{0,{SPLIT_NAME_LENGTH - 2}}}[A-Za-z0-9_])?")
"""The form of a split's name, which is a folder's name and a part of file names. Windows ignores a dot at the end."""

IDS_COLUMN = re.compile(
    r"(?!(attention_mask|loss_mask|segment_ids|position_ids)$)[A-Za-z_][A-Za-z0-9_]{0,99}"
)
"""The form of the name of the column of ids: an identifier other than the names of the other columns."""

SHARD_NAME = re.compile(
    rf"(?P<split>.+)-(?P<shard>\d{{5,}})-(?P<records>\d+)\.({'|'.join(EXTENSIONS.values())}|{_INDEX_EXTENSION})"
)
"""The form of the names of a shard's files, of any dataset."""


def shard_name(split: str, shard: int, records: int, output_format: str) -> str:
    """Returns the file name of a shard, e.g. `<split>-<shard>-<records>.tfrecord`."""
    return f"{split}-{shard:05d}-{records}.{EXTENSIONS[output_format]}"


def index_name(shard_name: str) -> str:
    """Returns the name of the index of a shard of documents."""
    return f"{shard_name.rpartition('.')[0]}.{_INDEX_EXTENSION}"


def offsets_name(shard_name: str) -> str:
    """Returns the file with a shard's offsets, by its path below the folder of the split."""
    return f"{OFFSETS}/{shard_name.removesuffix('.tfrecord')}.offsets"
