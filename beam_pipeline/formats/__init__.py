"""The formats of shards, `--output_format`: one module for each, imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from beam_pipeline.dataset.manifest import output_format_of
from beam_pipeline.dataset.records import feature_names
from beam_pipeline.formats.base import Format, RowForm
from beam_pipeline.options import PrepareConfig


def format_class(name: str) -> type[Format]:
    """Returns the class of a format, given its name in `--output_format`."""
    return importlib.import_module(f"beam_pipeline.formats.{name}").FORMAT


def format_for(config: PrepareConfig, vocab_size: int) -> Format:
    """Returns the format of the shards that `prepare` writes with these options."""
    features = feature_names(
        attention_mask=config.attention_mask,
        segment_ids=config.segment_ids,
        position_ids=config.position_ids,
    )
    form = RowForm(max_length=config.max_length, vocab_size=vocab_size, features=features)
    return format_class(config.output_format)(form)


def format_of(manifest: Mapping[str, Any]) -> Format:
    """Returns the format of a split's shards."""
    form = RowForm(
        max_length=manifest["max_length"],
        vocab_size=manifest["tokenizer"]["vocab_size"],
        features=tuple(manifest["features"]),
    )
    return format_class(output_format_of(manifest))(form)
