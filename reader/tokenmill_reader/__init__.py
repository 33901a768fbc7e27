"""Reads Tokenmill's datasets of token rows into NumPy arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill_reader.dataset import Dataset
    from tokenmill_reader.errors import DatasetError
    from tokenmill_reader.host_batches import batches
    from tokenmill_reader.mixture import Mixture
    from tokenmill_reader.order import Order

__all__ = ["Dataset", "DatasetError", "Mixture", "Order", "batches"]

_MODULES = {
    "Dataset": "dataset",
    "DatasetError": "errors",
    "Mixture": "mixture",
    "Order": "order",
    "batches": "host_batches",
}


def __getattr__(name: str) -> Any:
    """Imports a class when it is used, so that importing `tokenmill_reader.console` does not import NumPy."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
