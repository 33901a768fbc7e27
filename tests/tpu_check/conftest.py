"""Tests that compile for TPUs. They need jax and libtpu: `make test-tpu-check`."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

pytest.importorskip("jax")
pytest.importorskip("libtpu")
