"""Imports PyTorch before TensorFlow: afterwards it cannot be imported."""

from __future__ import annotations

import contextlib
import importlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["HF_HUB_OFFLINE"] = "1"  # as `evaluate` sets it, which is too late for modules that are imported
with contextlib.suppress(ImportError):
    for name in ("torch", "torch._dynamo", "transformers.masking_utils", "transformers.generation.utils"):
        importlib.import_module(name)
