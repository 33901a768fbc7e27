"""Checksums of the files that a work unit reads, so that a unit is never reread with different texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import google_crc32c

from beam_pipeline.dataset.sections import read_if_intact
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support.errors import DataError

KEY = "texts"  # in the index of a file of sections


class TextChecksums:
    """The CRC-32C of the part of each file that a unit reads."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}
        """File's path below the root → CRC-32C."""

    def add_each(self, batches: Iterable[DocumentBatch]) -> Iterator[DocumentBatch]:
        """Yields all of the unit's batches, and adds the checksum of each."""
        for batch in batches:
            crc = self.by_name.get(batch.name, 0)
            self.by_name[batch.name] = google_crc32c.extend(crc, batch.crc.to_bytes(4, "little"))
            yield batch

    def check(self, unit: WorkUnit, path: str, **identity: object) -> None:
        """Compares the checksums with those in the file of sections of an earlier attempt, if it exists.

        Args:
            unit: The unit.
            path: The file of sections.
            identity: Entries that its index must contain; otherwise nothing is compared.

        Raises:
            DataError: If a file of the unit has changed since.
        """
        stored: Mapping[str, int] | None = read_if_intact(path, identity, lambda _, index: index.get(KEY))
        if stored is None or stored == self.by_name:
            return
        names = (part.name for part in unit.parts)
        changed = next(name for name in names if stored.get(name) != self.by_name.get(name))
        raise DataError(
            f"{unit.root}{changed}: has changed since this run first read it: the text of work unit {unit.index} "
            "differs; use --overwrite to make the dataset from the new text"
        )
