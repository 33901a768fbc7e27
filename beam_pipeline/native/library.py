"""The compiled inner loops of writing records (rows.c), of finding near-duplicates (shingles.c), of tokenizing words
(words.c) between added tokens (literals.c), and of counting words and learning merges (word_counts.c, merges.c), called
by ctypes, which releases Python's lock.

Installing the package compiles them if there is a C compiler. Without it, `rows_library` returns None. Protobuf
then gives the same bytes in 25 times the CPU, NumPy the same shingles, and Hugging Face's library the same ids.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from beam_pipeline.support.errors import UsageError

_INTERFACE = 11  # INTERFACE in rows.c
_MOST_FEATURES = 8  # MOST_FEATURES in rows.c
_FRAME_BYTES = 16 + 11  # the framing, and the head of Example.features
_FEATURE_BYTES = 7 * 11  # the heads of a feature's entry, without its name: a tag and a varint each
_MIN_VALUE_BYTES = 3  # of a varint; the compiled functions are fastest with these
_UNUSED_BYTES = 3  # written after the last varint


class _Feature(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("values", ctypes.c_void_p), ("itemsize", ctypes.c_int32))


@lru_cache(maxsize=1)
def rows_library() -> ctypes.CDLL | None:
    """Loads the compiled functions. Returns None if the package was installed without a C compiler.

    Raises:
        UsageError: If the library is of another version of the package, or cannot be loaded.
    """
    spec = importlib.util.find_spec("beam_pipeline.native._rows")
    return None if spec is None or spec.origin is None else load(spec.origin)


def load(path: str) -> ctypes.CDLL:
    """Loads the compiled functions from a file. Raises what `rows_library` raises."""
    # Without a compiler, an installation does not replace an older file.
    remedy = "delete it, and install again: pip install -e ."
    try:
        library = ctypes.CDLL(path)
        interface = library.tokenmill_initialize()
    except (OSError, AttributeError) as error:  # the library is damaged, or built for another platform
        raise UsageError(f"{path} cannot be loaded; {remedy} ({error})") from error
    if interface != _INTERFACE:  # before the functions are looked up, since another version may lack some
        raise UsageError(f"{path} is of another version; {remedy}")
    library.tokenmill_encode.restype = ctypes.c_int64
    library.tokenmill_encode.argtypes = (
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.POINTER(_Feature),
        ctypes.c_int32,
        ctypes.c_void_p,
    )
    library.tokenmill_crc32c.restype = ctypes.c_uint32
    library.tokenmill_crc32c.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    library.tokenmill_record_ends.restype = ctypes.c_int64
    library.tokenmill_record_ends.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.tokenmill_shingles.restype = int64
    library.tokenmill_shingles.argtypes = (ctypes.c_char_p, int64, int64, int32, pointer, pointer)
    library.tokenmill_bands.restype = int64
    library.tokenmill_bands.argtypes = (pointer, pointer, int64, pointer, pointer, int32, int32, pointer)
    library.tokenmill_overlaps.restype = None
    library.tokenmill_overlaps.argtypes = (pointer, pointer, pointer, int64, pointer)
    uint32, double = ctypes.c_uint32, ctypes.c_double
    signatures = {
        "words_model": (pointer, (int32, int32, int32, int32, int64, double, int64, pointer)),
        "words_add_pieces": (int32, (pointer, ctypes.c_char_p, pointer, pointer, pointer, int64)),
        "words_add_merges": (int32, (pointer, pointer, pointer, int64, pointer, int64, pointer, int64)),
        "words_add_last_symbols": (int32, (pointer, pointer, pointer, int64)),
        "words_add_splitter": (int32, (pointer, pointer, int32, pointer, int64, pointer, int64, pointer)),
        "words_set_block": (int32, (pointer, int32, pointer)),
        "words_state": (pointer, (pointer,)),
        "words_encode": (int64, (pointer, pointer, pointer, pointer, int64, int64, pointer, pointer)),
        "words_copy_ids": (None, (pointer, pointer, int64)),
        "words_has_room": (int32, (pointer, int64)),
        "words_make_room": (None, (pointer, int64)),
        "words_free_state": (None, (pointer,)),
        "words_free_model": (None, (pointer,)),
        "strings_new": (pointer, (ctypes.c_char_p, pointer, pointer, pointer, pointer, int64)),
        "strings_find": (int64, (pointer, pointer, pointer, pointer, int64, pointer, int64)),
        "strings_free": (None, (pointer,)),
        "words_new": (pointer, (pointer, int32)),
        "words_count": (int32, (pointer, ctypes.c_char_p, pointer, int64)),
        "words_size": (None, (pointer, pointer)),
        "words_copy": (None, (pointer, pointer, pointer, pointer)),
        "words_free": (None, (pointer,)),
        "merges_new": (pointer, (pointer, int64, pointer, pointer, int64, uint32, uint32, int64)),
        "merges_train": (int64, (pointer, int64)),
        "merges_copy": (None, (pointer, pointer)),
        "merges_free": (None, (pointer,)),
        "copy_rows": (None, (pointer, pointer, pointer, pointer, int64, int64)),
        "line_feeds": (int64, (ctypes.c_char_p, int64, pointer)),
        "json_texts": (
            None,
            (ctypes.c_char_p, pointer, pointer, int64, ctypes.c_char_p, int64, pointer, pointer, pointer),
        ),
        "map_characters": (
            int64,
            (
                pointer,
                pointer,
                pointer,
                int64,
                ctypes.c_char_p,
                pointer,
                pointer,
                int64,
                *[pointer] * 4,
                int64,
            ),
        ),
        "count_ids": (int64, (pointer, int32, int64, pointer, int64)),
        "hash_rows": (None, (pointer, int32, int64, int64, pointer, pointer)),
        "is_utf8": (int32, (ctypes.c_char_p, int64)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"tokenmill_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def encode_rows(
    library: ctypes.CDLL,
    columns: Sequence[tuple[str, np.ndarray | None]],
    lengths: np.ndarray,
    max_length: int,
    max_value: int,
) -> np.ndarray:
    """Encodes rows as `tf.Example` records in TFRecord framing: uint8 [bytes].

    Args:
        columns: The features' names, sorted, and their values, [rows, max_length], from 0 to 2**32 - 1. uint16 and
            uint32 are not copied, other integers are converted to uint32. None for the attention mask.
        lengths: uint32 [rows]: the number of tokens in each row.
        max_length: The number of values in each row.
        max_value: The largest value that occurs, at most 2**32 - 1. It determines the memory that is allocated.

    Raises:
        ValueError: If a value needs more bytes than `max_value`, or a length is above `max_length`.
    """
    rows = len(lengths)
    features = (_Feature * len(columns))()
    arrays = [np.ascontiguousarray(lengths, np.uint32)]  # keeps the copies alive while the library reads them
    for feature, (name, values) in zip(features, columns, strict=True):
        feature.name = name.encode()
        if values is not None:
            values = np.ascontiguousarray(values, values.dtype if values.dtype == np.uint16 else np.uint32)
            if values.shape != (rows, max_length):
                raise ValueError(f"{name} has the shape {values.shape}, not {(rows, max_length)}")
            arrays.append(values)
            feature.values, feature.itemsize = values.ctypes.data, values.itemsize
    if len(columns) > _MOST_FEATURES:
        raise ValueError(f"{len(columns)} features are more than {_MOST_FEATURES}")
    value_bytes = max(_MIN_VALUE_BYTES, -(-max_value.bit_length() // 7))
    record = _FRAME_BYTES + sum(_FEATURE_BYTES + len(name) + value_bytes * max_length for name, _ in columns)
    buffer = np.empty(rows * record + _UNUSED_BYTES, np.uint8)
    size = library.tokenmill_encode(
        rows, max_length, arrays[0].ctypes.data, len(columns), features, value_bytes, buffer.ctypes.data
    )
    if size < 0:
        raise ValueError(
            f"row {-1 - size} has a value above {2 ** (7 * value_bytes) - 1}, or more than {max_length} tokens"
        )
    return buffer[:size]


def record_ends(library: ctypes.CDLL, data: np.ndarray, offset: int) -> np.ndarray:
    """Follows the lengths of framed records as far as `data` contain them.

    Args:
        data: uint8 [bytes]: the beginning of a file, or a part of it.
        offset: The offset of the first record in `data`, 0 or more.

    Returns:
        int64 [records]: the end of each record. The last end can be beyond the data.
    """
    if offset < 0:
        raise ValueError(f"a record cannot begin at {offset}")
    ends = np.empty(len(data) // 16 + 1, np.int64)
    return ends[
        : library.tokenmill_record_ends(data.ctypes.data, len(data), offset, len(ends), ends.ctypes.data)
    ]
