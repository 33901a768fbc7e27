"""Corpora of files, read the way a run reads them: listed, cut into units, each unit on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources import read_unit
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.units import BadRecord, WorkUnit


class Corpus:
    """All documents of an input: (name, place, text) in the units' order, the bad records, and how many are blank."""

    def __init__(self, config: InputConfig):
        self.plan = plan(config)
        # Through JSON, as the units reach the workers.
        self.units = [WorkUnit.from_json(unit.to_json()) for unit in self.plan.units]
        assert self.units == list(self.plan.units)
        self.documents: list[tuple[str, int, str]] = []
        self.bad: list[BadRecord] = []
        self.blank = 0
        for unit in self.units:
            for batch in read_unit(unit, config):
                assert len(batch.texts) == len(batch.places) == len(batch.bytes)
                assert batch.bytes.tolist() == [len(text.encode()) for text in batch.texts]
                places = batch.places.tolist()
                self.documents += zip([batch.name] * len(places), places, batch.texts, strict=True)
                self.bad += batch.bad
                self.blank += batch.blank

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.documents]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a file below the test's folder; returns its path."""

    def write_file(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


@pytest.fixture
def read() -> Callable[..., Corpus]:
    """Reads what these patterns and options say."""

    def read_corpus(*patterns: str, **options: object) -> Corpus:
        return Corpus(InputConfig(input=patterns, **options))

    return read_corpus
