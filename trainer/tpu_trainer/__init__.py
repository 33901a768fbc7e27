"""Trains language models from dataset folders of fixed-length token rows, on CPU, GPU and TPU."""

__version__ = "0.1.0"
