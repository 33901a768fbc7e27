"""Removes documents by a list of blocked domains and addresses, given a column with their URLs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

import numpy as np

from beam_pipeline.curation.decisions import Decided
from beam_pipeline.curation.removals import Removals
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support import filesystem


@dataclass(frozen=True)
class BlockList:
    """A list with an entry per line: a domain, which includes its subdomains, or the beginning of an address.

    Empty lines and those that begin with # are ignored, and so are letter case, schemes and `www.`.
    """

    entries: frozenset[str]

    @classmethod
    def read(cls, path: str) -> BlockList:
        """Reads a list in UTF-8."""
        return cls.of_lines(filesystem.read_bytes(path).decode().splitlines())

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> BlockList:
        return cls(
            frozenset(_plain(line.strip()) for line in lines if line.strip() and line.strip()[0] != "#")
        )

    def entry_of(self, url: str) -> str | None:
        """Returns the entry that blocks a URL, or None.

        >>> blocked = BlockList.of_lines(["# adult", "example.com", "site.org/forum"])
        >>> blocked.entry_of("https://www.cdn.example.com/a"), blocked.entry_of("http://site.org/forum/1?q=2")
        ('example.com', 'site.org/forum')
        >>> blocked.entry_of("http://site.org/forums"), blocked.entry_of("notexample.com")
        (None, None)
        """
        host, *folders = _plain(url).split("/")
        labels = host.split(".")
        for start in range(len(labels)):
            if (domain := ".".join(labels[start:])) in self.entries:
                return domain
        for end in range(1, len(folders) + 1):
            if (beginning := "/".join([host, *folders[:end]])) in self.entries:
                return beginning
        return None


def _plain(url: str) -> str:
    """Returns the host and path of a URL, in small letters."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return f"{(parts.hostname or '').removeprefix('www.')}{parts.path.rstrip('/')}".lower()


@dataclass(frozen=True)
class BlockUrls:
    """Removes documents whose URL is blocked; keeps those without one. See `decisions.Decision`."""

    path: str
    column: str

    @cached_property
    def _list(self) -> BlockList:
        return BlockList.read(self.path)

    def __call__(self, unit: WorkUnit, batch: DocumentBatch, first: int) -> Decided:
        urls = batch.columns[self.column]
        entries = [self._list.entry_of(url) if isinstance(url, str) else None for url in urls]
        dropped = np.array([index for index, entry in enumerate(entries) if entry is not None], np.int64)
        evidence = [{"url": urls[index], "entry": entries[index]} for index in dropped.tolist()]
        return Decided(Removals.of_rule("urls", dropped, np.ones(len(dropped)), evidence))
