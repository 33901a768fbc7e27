"""PyArrow, imported where it is used first: its imports take a tenth of a second, and most runs on text do without."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:

    class _Module:
        """A module that is imported when the first of its attributes is needed."""

        def __init__(self, name: str):
            self._name = name

        def __reduce__(self) -> tuple[type, tuple[str]]:
            return _Module, (self._name,)

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self._name), name)
            setattr(self, name, value)
            return value

    pa, pc, pq = map(_Module, ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))

__all__ = ["pa", "pc", "pq"]
