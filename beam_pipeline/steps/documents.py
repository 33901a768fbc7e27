"""Writes the documents of any PCollection as JSON lines, which are the input of a dataset.

A stable hash of a document's key determines its file, and within a file the documents are sorted by key. So the files
are a function of the set of documents, whatever their order, bundles, workers and retries.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import apache_beam as beam
import orjson
from apache_beam.metrics import Metrics

from beam_pipeline.sources.units import Part, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError

Document = tuple[str, str]
"""A document's key and text."""

FORMAT = "jsonl"
DOCUMENT_FILE = re.compile(r"(documents-(\d{5,})-of-\d{5,}\.jsonl)(\.[0-9a-f]{32}\.tmp)?")
"""Matches the name of a file, also of an unfinished one: its final name, and its unit's number."""
TEXT_KEY = "text"


def file_name(unit: int, units: int) -> str:
    """Returns the name of the file with the documents of a work unit.

    >>> file_name(3, 64)
    'documents-00003-of-00064.jsonl'
    """
    return f"documents-{unit:05d}-of-{units:05d}.jsonl"


def unit_of(key: str, units: int) -> int:
    """Returns the number of the work unit of a key. It is the same in all processes and versions of Python.

    >>> unit_of("wiki/42", 64)
    50
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % units


class CheckDocument(beam.DoFn):
    """A document → the same document. Raises DataError if it is not a pair of two texts."""

    def process(self, element: Any) -> Iterator[Document]:
        yield check_document(element)


def check_document(element: Any) -> Document:
    """Returns the (key, text) of an element.

    Raises:
        DataError: If it is not a pair of two strings of characters.
    """
    if not isinstance(element, tuple | list) or len(element) != 2:
        raise DataError(f"{element!r:.200}: is not a document: a pair of its key and its text")
    key, text = element
    for name, value in (("key", key), ("text", text)):
        if not isinstance(value, str):
            raise DataError(f"document {key!r:.200}: its {name} is of type {type(value).__name__}, not str")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"document {key!r:.200}: its {name} has half of a surrogate pair at character {error.start}, which "
                "is no character"
            ) from error
    return key, text


class WriteDocuments(beam.DoFn):
    """The documents of a unit → the work unit of the file that it writes.

    Args:
        folder: The folder for the files.
        units: The number of work units.
    """

    def __init__(self, folder: str, units: int):
        self._folder = folder
        self._units = units

    def setup(self) -> None:
        self._documents = Metrics.counter("prepare", "documents_written")

    def process(self, element: tuple[int, Iterable[Document | None]]) -> Iterator[WorkUnit]:
        """Writes a file.

        Args:
            element: The unit's number and its documents. None is not a document: each unit has one, so that units
                without documents are written, too.

        Raises:
            DataError: If two documents have the same key.
        """
        unit, documents = element
        in_order = sorted(filter(None, documents), key=itemgetter(0))
        for (key, _), (next_key, _) in itertools.pairwise(in_order):
            if key == next_key:
                raise DataError(
                    f"document {key!r:.200}: several documents have this key; make the keys unique"
                )
        lines = [orjson.dumps({"key": key, TEXT_KEY: text}) + b"\n" for key, text in in_order]
        self._documents.inc(len(lines))
        name = file_name(unit, self._units)
        path = filesystem.join(self._folder, name)
        size = sum(map(len, lines))
        # Concurrent attempts must not share a temporary file.
        with filesystem.create_whole(path, f"{path}.{uuid.uuid4().hex}.tmp") as file:
            file.writelines(lines)
        yield WorkUnit(unit, FORMAT, f"{self._folder}/", (Part(name, 0, size),), size)


class GroupDocuments(beam.PTransform):
    """Documents → work units, whose files it writes. The arguments are those of `WriteDocuments`."""

    def __init__(self, folder: str, units: int):
        super().__init__()
        self._folder = folder
        self._units = units

    def expand(self, documents: beam.PCollection) -> beam.PCollection[WorkUnit]:
        units = self._units
        keyed = (
            documents
            | "CheckDocument" >> beam.ParDo(CheckDocument())
            | "UnitOfKey" >> beam.Map(lambda document: (unit_of(document[0], units), document))
        )
        markers = (
            documents.pipeline
            | "Units" >> beam.Create(range(units))
            | "Marker" >> beam.Map(lambda unit: (unit, None))
        )
        return (
            (keyed, markers)
            | "AddMarkers" >> beam.Flatten()
            | "GroupByUnit" >> beam.GroupByKey()
            | "WriteDocuments" >> beam.ParDo(WriteDocuments(self._folder, units))
        )
