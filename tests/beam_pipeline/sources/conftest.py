"""Input files, read as a run reads them: listed, cut into units, and each unit on its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from apache_beam.io.filesystem import FileMetadata, MatchResult
from apache_beam.io.localfilesystem import LocalFileSystem

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import BadRecord, WorkUnit


class Corpus:
    """Everything read from an input: documents (name, place, text) in order, bad records, the number of blanks."""

    def __init__(self, config: InputConfig):
        self.plan = plan(config)
        # Through JSON, as units are passed to the workers.
        self.units = [WorkUnit.from_json(unit.to_json()) for unit in self.plan.units]
        assert self.units == list(self.plan.units)
        self.documents: list[tuple[str, int, str]] = []
        self.bad: list[BadRecord] = []
        self.blank = 0
        for unit in self.units:
            for batch in read_unit(unit, config):
                assert len(batch.texts) == len(batch.places) == len(batch.texts.sizes)
                assert batch.texts.sizes.tolist() == [len(text.encode()) for text in batch.texts]
                places = batch.places.tolist()
                self.documents += zip([batch.name] * len(places), places, batch.texts, strict=True)
                self.bad += batch.bad_records
                self.blank += batch.blank

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.documents]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a file in the test's folder and returns its path."""

    def write_file(name: str, content: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


@pytest.fixture
def read() -> Callable[..., Corpus]:
    """Reads the files that match the patterns, with the given options."""

    def read_corpus(*patterns: str, **options: object) -> Corpus:
        return Corpus(InputConfig(input=patterns, **options))

    return read_corpus


class Box(LocalFileSystem):
    """A remote file system for tests: `box://x/y` is the file `x/y` in `Box.folder`.

    Like an object store, it has no folders.
    """

    folder = ""

    @classmethod
    def scheme(cls) -> str:
        return "box"

    def _local(self, path: str) -> str:
        return path.replace("box://", self.folder + "/", 1)

    def match(self, patterns: list[str], limits: list[int] | None = None) -> list[MatchResult]:
        local_files = LocalFileSystem(None)
        results = local_files.match([self._local(pattern) for pattern in patterns], limits)
        return [
            MatchResult(
                pattern,
                [
                    FileMetadata(
                        metadata.path.replace(self.folder + "/", "box://", 1), metadata.size_in_bytes
                    )
                    for metadata in result.metadata_list
                ],
            )
            for pattern, result in zip(patterns, results, strict=True)
        ]

    def create(self, path: str, *args: object, **kwargs: object) -> BinaryIO:
        Path(self._local(path)).parent.mkdir(parents=True, exist_ok=True)
        return super().create(self._local(path), *args, **kwargs)

    def open(self, path: str, *args: object, **kwargs: object) -> BinaryIO:
        return super().open(self._local(path), *args, **kwargs)

    def exists(self, path: str) -> bool:
        return Path(self._local(path)).is_file()

    def metadata(self, path: str) -> FileMetadata:
        return super().metadata(self._local(path))

    def rename(self, sources: list[str], targets: list[str]) -> None:
        super().rename([self._local(path) for path in sources], [self._local(path) for path in targets])

    def delete(self, paths: list[str]) -> None:
        super().delete([self._local(path) for path in paths])


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local folder behind `box://`."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    monkeypatch.setattr(Box, "folder", str(folder))
    return folder
