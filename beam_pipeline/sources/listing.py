"""Listing the files that the options of the input name."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence

from beam_pipeline.options.input_options import MixItem
from beam_pipeline.sources.compression import uncompressed_name
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import UsageError

# The files that are read in a folder that is an input; each may be compressed, too.
_IN_FOLDERS = (".txt", ".md", ".rst", ".jsonl", ".ndjson", ".parquet")

_LINKS = "links to folders"
_HIDDEN = "files whose name, or a folder's, begins with . or _"
_MAX_EXTENSIONS = 5

_log = logging.getLogger(__name__)


def extension(path: str) -> str:
    """Returns the extension of a file's path, that of its content if it is compressed, in lower case."""
    return os.path.splitext(uncompressed_name(path))[1].lower()  # noqa: PTH122 (may be a URL)


def list_items(
    items: Iterable[MixItem], option: str, *, exclusive: bool
) -> tuple[dict[str, int], dict[str, MixItem]]:
    """Returns the size of each file that an item names, and the file's item. Logs the files that are left out.

    Args:
        items: The items.
        option: The option that contains the items, for messages.
        exclusive: Whether a file may belong to one item only.

    Raises:
        UsageError: If an item names no file, or cannot be listed, or a file belongs to several items.
    """
    sizes: dict[str, int] = {}
    chosen: dict[str, MixItem] = {}
    for item in items:
        left_out: Counter[str] = Counter()
        try:
            files = _files_of(filesystem.absolute(item.pattern), left_out)
        except (OSError, ValueError) as error:
            raise UsageError(f"{option} {item.pattern}: cannot be listed: {error}") from error
        if not files:
            raise UsageError(f"{option} {item.pattern}: {_no_match_reason(item.pattern, left_out)}")
        if left_out:
            _log.info(f"{option} {item.pattern}: leaves out {_describe(left_out)}")
        for path, size in files:
            if exclusive and path in chosen:
                raise UsageError(
                    f"{option}: {path} is matched by two items, {chosen[path].pattern} and {item.pattern}; give it "
                    "one weight only"
                )
            sizes[path], chosen[path] = size, item
    return sizes, chosen


def _files_of(path: str, left_out: Counter[str]) -> Sequence[tuple[str, int]]:
    """Returns the files of a glob or below a folder, as (path, size in bytes), sorted by path."""
    unfollowed_links: list[str] = []
    matches = filesystem.match(path, unfollowed_links=unfollowed_links)
    if matches:
        if unfollowed_links:
            left_out[_LINKS] = len(unfollowed_links)
        return matches
    prefix = path.rstrip("/") + "/"
    chosen = []
    for name, size in filesystem.list_files(path):
        if any(part.startswith((".", "_")) for part in name[len(prefix) :].split("/")):
            left_out[_HIDDEN] += 1
        elif filesystem.is_local(name) and os.path.islink(name) and os.path.isdir(name):  # noqa: PTH112, PTH114 (fast)
            left_out[_LINKS] += 1
        elif (kind := extension(name)) not in _IN_FOLDERS:
            left_out[kind] += 1
        else:
            chosen.append((name, size))
    return chosen


def _no_match_reason(pattern: str, left_out: Counter[str]) -> str:
    if left_out or (filesystem.is_local(pattern) and os.path.isdir(pattern)):  # noqa: PTH112 (a pattern, not a path)
        content = f" (it has {_describe(left_out)})" if left_out else ""
        return (
            f"is a folder without {', '.join(_IN_FOLDERS)} files{content}; name its files: "
            f"'{pattern.rstrip('/')}/*'"
        )
    return "no file matches"


def _describe(left_out: Counter[str]) -> str:
    """Returns the kinds of files that are left out and their numbers: `files of other kinds (2 .py, 1 .csv)`."""
    kinds = [f"{kind} ({left_out[kind]:,})" for kind in (_LINKS, _HIDDEN) if left_out[kind]]
    extensions = sorted(left_out.keys() - {_LINKS, _HIDDEN}, key=lambda kind: (-left_out[kind], kind))
    if extensions:
        names = [
            f"{left_out[kind]:,} {kind or 'without an extension'}" for kind in extensions[:_MAX_EXTENSIONS]
        ]
        names += ["…"] * (len(extensions) > _MAX_EXTENSIONS)
        kinds.append(f"files of other kinds ({', '.join(names)})")
    return ", ".join(kinds)
