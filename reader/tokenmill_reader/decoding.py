"""Decodes records where they are in the files of their shards, or next to each other."""

from __future__ import annotations

import numpy as np

from tokenmill_reader.errors import RecordFault
from tokenmill_reader.examples import ExampleDecoder
from tokenmill_reader.framing import HEAD_BYTES, TAIL_BYTES, Frames, windows


def decode_in_place(
    decoder: ExampleDecoder,
    groups: list[tuple[np.ndarray, np.ndarray]],
    starts: np.ndarray,
    ends: np.ndarray,
    checked: np.ndarray,
    out: dict[str, np.ndarray],
) -> bool:
    """Decodes records by compiled code. Returns False, with undefined values, if one is unusual or damaged.

    Args:
        decoder: The decoder.
        groups: Files, uint8[bytes], with the numbers of the records in them, int64[n].
        starts: The first byte of each record's frame, int64[records].
        ends: The end of each record's frame, int64[records].
        checked: Whether to compare its checksum, bool[records].
        out: int32[records, max_length] by feature.
    """
    for data, group in groups:
        frames = Frames(data, starts[group], ends[group])
        if frames.find_wrong_length() is not None:
            return False
        checked_frames = checked[group].nonzero()[0]
        if checked_frames.size and frames.find_wrong_checksum(checked_frames) is not None:
            return False
        record_starts, record_ends = frames.starts + HEAD_BYTES, frames.ends - TAIL_BYTES
        if not decoder.decode_in_place(data, record_starts, record_ends, group, out):
            return False
    return True


def check_frames(frames: Frames, checked: np.ndarray, row: int = 0) -> None:
    """Checks the lengths of frames, and the checksums of those that are `checked`, bool[frames].

    Raises:
        RecordFault: At the first fault, with its index plus `row`.
    """
    wrong_frame = frames.find_wrong_length()
    if wrong_frame is not None:
        raise RecordFault(row + wrong_frame, "its length differs from the one that follows from the offsets")
    wrong_frame = frames.find_wrong_checksum(checked.nonzero()[0])
    if wrong_frame is not None:
        raise RecordFault(row + wrong_frame, "the checksum of its data is wrong")


def gather(
    groups: list[tuple[np.ndarray, np.ndarray]], starts: np.ndarray, sizes: np.ndarray, stride: int
) -> np.ndarray:
    """Copies records from several files next to each other.

    Args:
        groups: Files, uint8[bytes], with the numbers of the records in them, int64[n].
        starts: The places of all records in their files, int64[records].
        sizes: Their bytes, int64[records].
        stride: The place of record r is r · stride.

    Returns:
        uint8[(records + 2) · stride]. The bytes after a record are undefined.
    """
    gathered = np.empty((sizes.size + 2, stride), np.uint8)
    for data, group in groups:
        group_starts = starts[group]
        if group_starts.max() + stride <= data.size:
            gathered[group] = windows(data, stride)[group_starts]
            continue
        for row in group.tolist():
            gathered[row, : sizes[row]] = data[starts[row] : starts[row] + sizes[row]]
    return gathered.reshape(-1)
