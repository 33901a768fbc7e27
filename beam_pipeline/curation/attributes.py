"""Attributes of documents: measured once by `annotate`, decided by later with `prepare --keep`.

A table has a row for each non-blank document of a work unit, in the order of reading. Its columns document, place and
checksum identify a document, so that attributes are never applied to other texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import google_crc32c
import numpy as np

from beam_pipeline.curation.filters import RULES, bounds_of
from beam_pipeline.curation.functions import UserFunction
from beam_pipeline.curation.language import LanguageModel
from beam_pipeline.curation.measuring import MeasuredTexts
from beam_pipeline.curation.pii import count_spans
from beam_pipeline.curation.words import WordSplitter
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.sources.record_columns import without_surrogates
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.texts import contents


def text_checksums(texts: Sequence[str]) -> np.ndarray:
    """Returns the CRC-32C of the UTF-8 of each text, int64 [texts]."""
    return np.fromiter(map(google_crc32c.value, contents(texts)), np.int64, len(texts))


class Measurer:
    """Measures batches of documents.

    Args:
        config: Its filters name what to measure.
    """

    def __init__(self, config: CurationConfig):
        self._config = config
        self._splitter = WordSplitter()
        self._model = LanguageModel(config.language_model)
        self._functions = [UserFunction(name) for name in config.filter if ":" in name]

    def table(self, batch: DocumentBatch, first: int) -> pa.Table:
        """Returns the attributes of a batch, whose first document has the number `first`.

        Raises:
            DataError: If two attributes have the same name, or the values of a column have no common type.
        """
        columns: dict[str, Any] = {
            "document": np.arange(first, first + len(batch.texts)),
            "place": batch.places,
            "checksum": text_checksums(batch.texts),
            "bytes": batch.texts.sizes,
        }
        texts = MeasuredTexts(batch.texts, self._splitter)
        self._add(columns, "characters", texts.lengths)
        for name in self._config.filter:
            if name in RULES:
                rule = RULES[name]
                measured = rule.measure(texts, bounds_of(rule, dict(self._config.thresholds)))
                self._add_all(columns, measured.measures)
            elif name == "language":
                codes, probabilities = self._model.detect(batch.texts)
                self._add_all(columns, {"language": codes, "language_probability": probabilities})
            elif name == "pii":
                self._add_all(columns, count_spans(batch.texts))
        for function in self._functions if batch.texts else ():
            results = function.results(batch)
            results.pop("texts", None)
            for name in ("keep", "value"):
                if name in results:
                    self._add(columns, f"{function.rule.rpartition('.')[2]}_{name}", results.pop(name))
            self._add_all(columns, results)
        for name, values in batch.columns.items():
            self._add(columns, name, [without_surrogates(value) for value in values])
        return pa.table(columns)

    def _add_all(self, columns: dict[str, Any], values: dict[str, Sequence[Any]]) -> None:
        for name, column in values.items():
            self._add(columns, name, column)

    def _add(self, columns: dict[str, Any], name: str, values: Sequence[Any]) -> None:
        if name in columns:
            raise DataError(f"two attributes have the name {name!r}; rename that of the column or function")
        try:
            array = pa.array(values)
        except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
            raise DataError(f"the values of {name!r} cannot be stored: {error}") from error
        columns[name] = array


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Joins the attributes of a unit's batches, in their order.

    Raises:
        DataError: If a column has several types that have no common one.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise DataError(f"the attributes of a work unit have no common types: {error}") from error
