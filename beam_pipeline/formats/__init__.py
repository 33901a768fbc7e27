"""The formats of shards, `--output_format`: one module for each, imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from beam_pipeline.dataset.manifest import output_format_of
from beam_pipeline.formats.base import Format, RowForm


def format_class(name: str) -> type[Format]:
    """Returns the class of a format, given its name in `--output_format`."""
    return importlib.import_module(f"beam_pipeline.formats.{name}").FORMAT


def format_of(manifest: Mapping[str, Any]) -> Format:
    """Returns the format of a split's shards."""
    form = RowForm(
        max_length=manifest["max_length"],
        vocab_size=manifest["tokenizer"]["vocab_size"],
        features=tuple(manifest["features"]),
    )
    return format_class(output_format_of(manifest))(form)
