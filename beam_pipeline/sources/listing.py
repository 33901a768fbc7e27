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
    item_by_path: dict[str, MixItem] = {}
    for item in items:
        skipped: Counter[str] = Counter()
        try:
            files = _files_of(filesystem.absolute(item.pattern), skipped)
        except (OSError, ValueError) as error:
            raise UsageError(f"{option} {item.pattern}: cannot be listed: {error}") from error
        if not files:
            raise UsageError(f"{option} {item.pattern}: {_no_match_reason(item.pattern, skipped)}")
        if skipped:
            _log.info(f"{option} {item.pattern}: leaves out {_describe(skipped)}")
        for path, size in files:
            if exclusive and path in item_by_path:
                raise UsageError(
                    f"{option}: {path} is matched by two items, {item_by_path[path].pattern} and {item.pattern}; "
                    "give it one weight only"
                )
            sizes[path], item_by_path[path] = size, item
    return sizes, item_by_path


def _files_of(path: str, skipped: Counter[str]) -> Sequence[tuple[str, int]]:
    """Returns the files of a glob or below a folder, as (path, size in bytes), sorted by path."""
    unfollowed_links: list[str] = []
    matches = filesystem.match(path, unfollowed_links=unfollowed_links)
    if matches:
        if unfollowed_links:
            skipped[_LINKS] = len(unfollowed_links)
        return matches
    prefix = path.rstrip("/") + "/"
    files = []
    for name, size in filesystem.list_files(path):
        if any(part.startswith((".", "_")) for part in name[len(prefix) :].split("/")):
            skipped[_HIDDEN] += 1
        elif filesystem.is_local(name) and os.path.islink(name) and os.path.isdir(name):  # noqa: PTH112, PTH114 (fast)
            skipped[_LINKS] += 1
        elif (kind := extension(name)) not in _IN_FOLDERS:
            skipped[kind] += 1
        else:
            files.append((name, size))
    return files


def _no_match_reason(pattern: str, skipped: Counter[str]) -> str:
    if skipped or (filesystem.is_local(pattern) and os.path.isdir(pattern)):  # noqa: PTH112 (a pattern, not a path)
        content = f" (it has {_describe(skipped)})" if skipped else ""
        return (
            f"is a folder without {', '.join(_IN_FOLDERS)} files{content}; name its files: "
            f"'{pattern.rstrip('/')}/*'"
        )
    return "no file matches"


def _describe(skipped: Counter[str]) -> str:
    """Returns the kinds of files that are left out and their numbers: `files of other kinds (2 .py, 1 .csv)`."""
    kinds = [f"{kind} ({skipped[kind]:,})" for kind in (_LINKS, _HIDDEN) if skipped[kind]]
    extensions = sorted(skipped.keys() - {_LINKS, _HIDDEN}, key=lambda kind: (-skipped[kind], kind))
    if extensions:
        names = [
            f"{skipped[kind]:,} {kind or 'without an extension'}" for kind in extensions[:_MAX_EXTENSIONS]
        ]
        names += ["…"] * (len(extensions) > _MAX_EXTENSIONS)
        kinds.append(f"files of other kinds ({', '.join(names)})")
    return ", ".join(kinds)
