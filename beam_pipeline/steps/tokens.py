"""Documents of any PCollection → their token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np

from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.engine import check_engine
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.steps.documents import Document, check_document
from beam_pipeline.support.errors import DataError, EngineMismatch
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.description import describe_tokenizer

_MAX_DOCUMENTS = 1000  # encoded together


class Tokenize(beam.PTransform):
    """Documents, as pairs of a key and a text → pairs of the key and the document's token ids.

        ids = documents | Tokenize("tokenizer", append_eos=True)

    The ids are arrays, uint16[tokens] or uint32[tokens] depending on the vocabulary's size, with the special tokens of
    the tokenizer's template around the text. They are those that `prepare` packs into rows, and do not depend on the
    runner or its bundles. Keys need not be unique; documents of white space are encoded, too. Text cannot forge control
    tokens, unless `parse_special_tokens` allows it. A document that cannot be encoded is a `DataError` with its key.
    """

    def __init__(
        self,
        tokenizer: str,
        *,
        append_eos: bool = False,
        parse_special_tokens: bool = False,
        engine: str = "auto",
    ) -> None:
        """
        Args:
            tokenizer: Folder of a tokenizer, or its name on the hub. It is read now; workers do not need it.
            append_eos: As in `PrepareConfig`.
            parse_special_tokens: As in `PrepareConfig`.
            engine: As in `PrepareConfig`.

        Raises:
            UsageError: If the tokenizer cannot be read, or contradicts the options.
        """
        super().__init__()
        description = describe_tokenizer(tokenizer, None)
        options = {"parse_special_tokens": parse_special_tokens, "control_ids": description.control_ids}
        check_engine(engine, description.json, **options)
        self._arguments: dict[str, Any] = {
            "tokenizer_json": description.json,
            "vocab_size": description.vocab_size,
            "template": description.template_of(append_eos),
            "engine": engine,
            **options,
        }

    def expand(self, documents: beam.PCollection) -> beam.PCollection[tuple[str, np.ndarray]]:
        return (
            documents
            | "Batch" >> beam.BatchElements(max_batch_size=_MAX_DOCUMENTS)
            | "Encode" >> beam.ParDo(_Encode(self._arguments))
        )


class _Encode(beam.DoFn):
    """Documents → their keys and ids. The arguments are those of `DocumentTokenizer`."""

    def __init__(self, arguments: dict[str, Any]):
        self._arguments = arguments

    def setup(self) -> None:
        self._tokenizer = DocumentTokenizer(**self._arguments)

    def process(self, elements: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
        documents: list[Document] = list(map(check_document, elements))
        texts = [text for _, text in documents]
        batch = DocumentBatch("", Texts.of(texts), np.arange(len(texts)))
        try:
            batch, encoded = self._tokenizer.encode(batch)
        except EngineMismatch as error:
            raise DataError(f"document {documents[error.place][0]!r:.200}: {error}") from error
        for record in batch.bad_records:
            raise DataError(f"document {documents[record.place][0]!r:.200}: {record.reason}")
        parts = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
        for (key, _), ids in zip(documents, parts, strict=True):
            yield key, ids
