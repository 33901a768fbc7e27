"""The formats of shards, `--output_format`: one module for each, imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from beam_pipeline.dataset.records import feature_names
from beam_pipeline.formats.base import DocumentFormat, Format, RowForm
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.support import filesystem
from tokenmill_reader.format.manifest import output_format_of
from tokenmill_reader.format.names import index_name


def format_class(name: str, *, of_documents: bool) -> type[Format]:
    """Returns the class of a format of rows or of documents, given its name in `--output_format`."""
    module = importlib.import_module(f"beam_pipeline.formats.{name}")
    return module.DOCUMENT_FORMAT if of_documents else module.ROW_FORMAT


def format_for(config: PrepareConfig, vocab_size: int) -> Format:
    """Returns the format of the shards that `prepare` writes with these options."""
    features = feature_names(
        attention_mask=config.attention_mask,
        segment_ids=config.segment_ids,
        position_ids=config.position_ids,
        loss_mask=config.has_targets,
    )
    form = RowForm(
        max_length=config.max_length,
        vocab_size=vocab_size,
        features=features,
        ids_column=config.ids_column,
        record_columns=config.curation.record_columns,
    )
    return format_class(config.output_format, of_documents=form.max_length is None)(form)


def format_of(manifest: Mapping[str, Any]) -> Format:
    """Returns the format of a split's shards.

    Raises:
        UsageError: If a package that it needs is not installed.
    """
    form = RowForm(
        max_length=manifest["max_length"],
        vocab_size=manifest["tokenizer"]["vocab_size"],
        features=tuple(manifest["features"]),
        ids_column=manifest.get("ids_column", "input_ids"),
        record_columns=tuple(manifest.get("record_columns", ())),
    )
    chosen = format_class(output_format_of(manifest), of_documents=form.max_length is None)
    chosen.check_packages()
    return chosen(form)


def read_documents(
    document_format: DocumentFormat, path: str, first: int = 0, count: int | None = None
) -> Iterator[DocumentBlock]:
    """Yields the documents of a shard, as `DocumentFormat.read` does."""
    with ExitStack() as files:
        file = files.enter_context(filesystem.open_file(path))
        index = (
            files.enter_context(filesystem.open_file(index_name(path))) if document_format.has_index else None
        )
        yield from document_format.read(file, index, path, first, count)
