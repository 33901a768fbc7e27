"""The compiled decoder of rows (records.c), called by ctypes, which releases Python's lock.

Installing the package compiles it if there is a C compiler. Without it, NumPy gives the same rows in two to three times
the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
from collections.abc import Mapping, Sequence

import numpy as np

_INTERFACE = 1  # INTERFACE in records.c
_MOST_FEATURES = 63
_INT32, _INT64, _UINT8 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8)

_log = logging.getLogger(__name__)


class _Feature(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("name_size", ctypes.c_int64), ("values", ctypes.c_void_p))


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Loads the compiled decoder. Returns None if the package was installed without a C compiler."""
    spec = importlib.util.find_spec("tokenmill_reader._records")
    return None if spec is None or spec.origin is None else load(spec.origin)


def load(path: str) -> ctypes.CDLL | None:
    """Loads the compiled decoder from a file. Returns None, with a warning, if that is impossible."""
    try:
        loaded = ctypes.CDLL(path)
        interface = loaded.tokenmill_reader_interface()
    except (OSError, AttributeError) as error:  # damaged, or built for another platform
        _log.warning("%s cannot be loaded, so rows are decoded more slowly; install again (%s)", path, error)
        return None
    if interface != _INTERFACE:
        _log.warning("%s is of another version, so rows are decoded more slowly; install again", path)
        return None
    int64, pointer = ctypes.c_int64, ctypes.c_void_p
    loaded.tokenmill_reader_decode.argtypes = (
        *(pointer, int64, int64, pointer, pointer, pointer, int64),
        *(pointer, int64, ctypes.c_int, int64),
    )
    return loaded


class CompiledDecoder:
    """Decodes records of the usual form. An instance must not be used by two threads at a time."""

    def __init__(
        self, library: ctypes.CDLL, *, max_length: int, features: Sequence[str], exclusive: bool
    ) -> None:
        """See `ExampleDecoder`."""
        if len(features) > _MOST_FEATURES:
            raise ValueError(f"{len(features)} features are more than {_MOST_FEATURES}")
        self._decode = library.tokenmill_reader_decode
        self._names = tuple(features)
        names = [name.encode() for name in features]
        self._features = (_Feature * len(names))(*((name, len(name), None) for name in names))
        self._form = (ctypes.addressof(self._features), len(names), exclusive, max_length)
        self._max_length = max_length

    def decode(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        rows: np.ndarray,
        out: Mapping[str, np.ndarray],
    ) -> bool:
        """Decodes records.

        Args:
            data: uint8[bytes], contiguous.
            starts: The first byte of each record, int64[records], contiguous.
            ends: The end of each record, int64[records], contiguous.
            rows: The row of each record in `out`, int64[records], contiguous.
            out: int32[rows, max_length] by feature, contiguous, which receive the values.

        Returns:
            Whether all records were decoded. If not, one is unusual or malformed, and the rows are undefined.
        """
        num_rows = len(out[self._names[0]])
        for feature, name in zip(self._features, self._names, strict=True):
            feature.values = _address(out[name], _INT32, (num_rows, self._max_length))
        places = (_address(numbers, _INT64, rows.shape) for numbers in (starts, ends, rows))
        return bool(
            self._decode(
                _address(data, _UINT8, data.shape), data.size, rows.size, *places, num_rows, *self._form
            )
        )


def _address(array: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Returns where an array is in memory. Raises ValueError if it has another form, which C would not notice."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype}{list(array.shape)}, not a contiguous {dtype}{list(shape)}")
    return array.__array_interface__["data"][0]
