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
from beam_pipeline.support.errors import UsageError


@dataclass(frozen=True)
class BlockList:
    """A list with an entry per line: a domain, which includes its subdomains, or the beginning of an address.

    Empty lines and those that begin with # are ignored, and so are letter case, schemes and `www.`.
    """

    entries: frozenset[str]

    @classmethod
    def read(cls, path: str) -> BlockList:
        """Reads a list in UTF-8.

        Raises:
            UsageError: If the file cannot be read, or a line is neither a domain nor an address.
        """
        option = f"--url_block_list {path}"
        if not filesystem.exists(path):
            raise UsageError(f"{option}: there is no such file")
        try:
            lines = filesystem.read_bytes(path).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{option}: is not a text file in UTF-8: {error}") from error
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and line[0] != "#" and (set(line) & set("*|^ ") or not _plain(line)):
                raise UsageError(
                    f"{option}, line {number}: {line!r:.80} is neither a domain nor the beginning of an address; write "
                    "example.com or example.com/folder"
                )
        return cls.of_lines(lines)

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
    """Returns the host and path of a URL, in small letters; "" if it has no host."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
    except ValueError:  # such as http://[x
        return ""
    host = (parts.hostname or "").removeprefix("www.").rstrip(".")
    return f"{host}{parts.path.rstrip('/')}".lower() if host else ""


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
