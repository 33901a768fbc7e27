"""Turns raw text into fixed-length token rows in sharded TFRecord files, with Apache Beam."""

__version__ = "0.1.0"
