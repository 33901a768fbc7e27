"""Reads Tokenmill's datasets of token rows into NumPy arrays."""

from tokenmill_reader.batches import batches
from tokenmill_reader.dataset import Dataset
from tokenmill_reader.errors import DatasetError
from tokenmill_reader.mixture import Mixture
from tokenmill_reader.order import Order

__all__ = ["Dataset", "DatasetError", "Mixture", "Order", "batches"]
