"""Parses option values with a special syntax."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from itertools import accumulate

from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.names import (
    IDS_COLUMN,
    INDEX,
    INPUTS,
    MANIFEST,
    OFFSETS,
    OPTIONAL_FEATURES,
    REPORT,
    SCHEMA,
    SPLIT_NAME,
    SPLIT_NAME_LENGTH,
    STATISTICS,
    TOKENIZER,
    TRANSFORM_FN,
    UNITS,
)

# The files and folders of a dataset and of its splits. No split can have their names, so that paths are unambiguous.
_RESERVED = (
    *(TOKENIZER, MANIFEST, INPUTS, UNITS, STATISTICS, INDEX, OFFSETS, TRANSFORM_FN, SCHEMA.partition("/")[0]),
    *("bad_records", "removed", REPORT, f"{REPORT}.tmp"),
)
MOST_MINHASHES = 1024  # MOST_HASHES in shingles.c
_WINDOWS_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")

FORMAT_DEFAULTS = {"output_format": "tfrecord", "ids_column": "input_ids"}
"""The options of the format of shards. Manifests contain them if they are not the default, also outside of `config`."""

PRICES = {"vcpu_hour": 0.056, "gb_hour": 0.003557, "shuffle_gb": 0.011}
"""Dataflow's list prices in US dollars for batch jobs in us-central1: a vCPU for an hour, a GB of memory for an hour,
a GB through the shuffle. From cloud.google.com/dataflow/pricing on 2026-11-21.
"""


def parse_splits(text: str) -> tuple[tuple[str, float], ...]:
    """Returns the (name, share) pairs of `--splits`, or none if the text is empty.

    Raises:
        UsageError: If an item is not NAME=SHARE, or the shares do not add up to 1.
    """
    splits: dict[str, float] = {}
    for item in text.split(",") if text else ():
        name, separator, share = item.partition("=")
        try:
            value = float(share) if separator else -1.0
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise UsageError(f"--splits {text}: {item!r} is not NAME=SHARE with a share above 0 and up to 1")
        check_split_name(name)
        for earlier in splits:
            if earlier.lower() == name.lower():
                reason = "occurs twice" if earlier == name else f"and {earlier!r} are the same on some disks"
                raise UsageError(f"--splits {text}: {name!r} {reason}; name each split once")
        splits[name] = value
    bounds = list(accumulate(splits.values(), initial=0.0))
    if any(bound >= 1 for bound in bounds[:-1]):
        raise UsageError(
            f"--splits {text}: the shares of the other splits leave nothing for {name!r}, the last split"
        )
    if splits and abs(bounds[-1] - 1) > 1e-9:
        raise UsageError(f"--splits {text}: the shares add up to {bounds[-1]:g}; they must add up to 1")
    return tuple(splits.items())


def parse_date(text: str) -> str:
    """Returns a date of the form YYYY-MM-DD. Raises UsageError if it is none."""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(f"--chat_date {text}: is not a date; use the form 2026-07-01") from error


def parse_sentinels(text: str) -> tuple[str, str, str]:
    """Returns the three tokens of `--fim_tokens`. Raises UsageError if there are not three different ones."""
    names = tuple(text.split(","))
    if len(names) != 3 or len({*names, ""}) < 4:
        raise UsageError(f"--fim_tokens {text}: is not PREFIX,MIDDLE,SUFFIX, three different tokens")
    return names


def parse_shingle(text: str) -> str:
    """Returns the number of words or characters of `--near_shingle`, as it is. Raises UsageError if it is none."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}c?", text):
        raise UsageError(
            f"--near_shingle {text}: is not a number of words such as 5, or of characters such as 24c, up to 999"
        )
    return text


def parse_bands(text: str) -> str:
    """Returns the bands and rows of `--near_bands`, as they are. Raises UsageError if they are wrong."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", text)
    if not match or int(match[1]) * int(match[2]) > MOST_MINHASHES:
        raise UsageError(
            f"--near_bands {text}: is not of the form 14x8, bands of MinHashes, with at most {MOST_MINHASHES} in all"
        )
    return text


def parse_prices(text: str) -> tuple[tuple[str, float], ...]:
    """Returns the (name, price) pairs of `--prices`, for some of the names in `PRICES`.

    Raises:
        UsageError: If an item is not NAME=DOLLARS.
    """
    prices: dict[str, float] = {}
    for item in text.split(",") if text else ():
        name, _, price = item.partition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            prices[name] = -1.0
        if name not in PRICES or not 0 <= prices[name] < math.inf:
            raise UsageError(
                f"--prices {text}: {item!r} is not NAME=DOLLARS with one of the names {', '.join(PRICES)}"
            )
    return tuple(prices.items())


def parse_record(text: str) -> tuple[str, int, int]:
    """Returns the (split, shard, record) of `--record`. Raises UsageError if the syntax is wrong."""
    match = re.fullmatch(r"([^:]+):(\d+):(\d+)", text)
    if not match:
        raise UsageError(f"--record {text}: is not SPLIT:SHARD:RECORD, e.g. train:17:42")
    return match[1], int(match[2]), int(match[3])


def check_ids_column(name: str, output_format: str) -> None:
    """Raises UsageError if shards of this format cannot have a column of ids with this name."""
    if not IDS_COLUMN.fullmatch(name):
        raise UsageError(
            f"--ids_column {name!r}: is not a valid name. Use at most 100 letters, digits and '_', not beginning with "
            "a digit, and not the name of another column"
        )
    if name != FORMAT_DEFAULTS["ids_column"] and output_format != "mds":
        raise UsageError(
            f"--ids_column {name}: does not apply to --output_format {output_format}, which always has input_ids; "
            "omit it, or use --output_format mds"
        )


def check_record_columns(
    columns: Sequence[str], label: str, *, output_format: str, has_documents: bool, ids_column: str
) -> None:
    """Checks the columns of records that a dataset is to have. Messages begin with `label`.

    Raises:
        UsageError: If files of this format have no place for them, or a feature has the name of one.
    """
    allowed = ("parquet",) if has_documents else ("parquet", "mds")
    if output_format not in allowed:
        raise UsageError(
            f"{label}: --output_format {output_format} has no place for columns of records; use {' or '.join(allowed)}"
        )
    for name in columns:
        if name in ("input_ids", *OPTIONAL_FEATURES, ids_column):
            raise UsageError(f"{label}: {name} is a feature of the rows; rename the key of the records")


def check_split_name(name: str) -> str:
    """Returns the name. Raises UsageError if it is not a valid name of a split."""
    if not SPLIT_NAME.fullmatch(name):
        raise UsageError(
            f"split {name!r}: is not a valid name. Use at most {SPLIT_NAME_LENGTH} letters, digits, '_' and '.', "
            "beginning with a letter or digit, and not ending with '.'"
        )
    if name.lower() in _RESERVED:
        raise UsageError(f"split {name!r}: a dataset has a file or folder of this name; choose another name")
    if _WINDOWS_DEVICES.fullmatch(name.lower()):
        raise UsageError(f"split {name!r}: Windows cannot have a folder of this name; choose another name")
    return name


def refuse_overwrite_and_resume(*, overwrite: bool, resume: bool) -> None:
    """Raises UsageError if both are given."""
    if overwrite and resume:
        raise UsageError("--overwrite and --resume contradict each other; use only one of them")
