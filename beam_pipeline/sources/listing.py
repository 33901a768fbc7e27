"""Listing the files that the options of the input name."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from beam_pipeline.options.input_options import InputConfig, MixItem
from beam_pipeline.sources.compression import codec_of, extension
from beam_pipeline.sources.content import HEAD, open_text
from beam_pipeline.sources.document_kinds import WHOLE_FILES
from beam_pipeline.sources.opening import open_start
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.support.progress import tracked

# The files that are read in a folder that is an input, besides markup and source code; each may be compressed, too.
_DATA = frozenset({".txt", ".jsonl", ".ndjson", ".parquet"})

_LINKS = "links to folders"
_HIDDEN = "hidden files"
_BINARY = "binary files"
_KINDS = (_LINKS, _HIDDEN, _BINARY)
_FILES_AT_ONCE = 16
_MAX_EXTENSIONS = 5

_log = logging.getLogger(__name__)


def list_items(config: InputConfig, option: str) -> tuple[dict[str, int], dict[str, MixItem]]:
    """Returns the size of each file that the input names, and the file's item. Logs the files that are left out.

    Args:
        config: The input: files, or files with weights.
        option: The option that contains it, for messages.

    Raises:
        UsageError: If an item names no file, or cannot be listed, or a file belongs to several items with weights.
    """
    sizes: dict[str, int] = {}
    item_by_path: dict[str, MixItem] = {}
    for item in config.mix or [MixItem(pattern, 1, 0.0) for pattern in config.input]:
        skipped: Counter[str] = Counter()
        try:
            files = _files_of(filesystem.absolute(item.pattern), config, skipped)
        except (OSError, ValueError) as error:
            raise UsageError(f"{option} {item.pattern}: cannot be listed: {error}") from error
        if not files:
            raise UsageError(f"{option} {item.pattern}: {_no_match_reason(item.pattern, skipped)}")
        if skipped:
            _log.info(f"{option} {item.pattern}: leaves out {_describe(skipped)}")
        for path, size in files:
            if config.mix and path in item_by_path:
                raise UsageError(
                    f"{option}: {path} is matched by two items, {item_by_path[path].pattern} and {item.pattern}; "
                    "give it one weight only"
                )
            sizes[path], item_by_path[path] = size, item
    return sizes, item_by_path


def _files_of(path: str, config: InputConfig, skipped: Counter[str]) -> Sequence[tuple[str, int]]:
    """Returns the files of a glob or below a folder, as (path, size in bytes), sorted by path."""
    unfollowed_links: list[str] = []
    matches = filesystem.match(path, unfollowed_links=unfollowed_links)
    if matches:
        if unfollowed_links:
            skipped[_LINKS] = len(unfollowed_links)
        return matches
    prefix = path.rstrip("/") + "/"
    taken = _DATA | WHOLE_FILES if config.input_format in ("auto", "text") else _DATA
    files = []
    for name, size in filesystem.list_files(path):
        if _is_hidden(name[len(prefix) :]):
            skipped[_HIDDEN] += 1
        elif filesystem.is_local(name) and os.path.islink(name) and os.path.isdir(name):  # noqa: PTH112, PTH114 (fast)
            skipped[_LINKS] += 1
        elif (kind := extension(name)) not in taken:
            skipped[kind] += 1
        else:
            files.append((name, size))
    # A compressed file is not looked into: if its extension is wrong, that is an error.
    code = [path for path, size in files if size and extension(path) in WHOLE_FILES and not codec_of(path)]
    if binary := _binary_files(code, config):
        skipped[_BINARY] = len(binary)
    return [(name, size) for name, size in files if name not in binary]


def _is_hidden(path: str) -> bool:
    """Returns whether a file below a folder is hidden, by its path relative to the folder.

    Data is hidden by a leading _, too, as in Hadoop and Spark, but source code is not: __init__.py.
    """
    *folders, name = path.split("/")
    marks = "." if extension(name) in WHOLE_FILES else (".", "_")
    return name.startswith(marks) or any(
        folder.startswith((".", "_")) or folder == "node_modules" for folder in folders
    )


def _binary_files(paths: Sequence[str], config: InputConfig) -> set[str]:
    """Returns the files that are no text by their first bytes: a .ts file may also be a video."""

    def is_binary(path: str) -> bool:
        try:
            with open_start(path, HEAD) as file:
                open_text(file, path, "text", config)
        except UsageError:
            return True
        except (DataError, OSError):
            pass  # who reads the file reports it
        return False

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        checks = tracked(pool.map(is_binary, paths), len(paths), label="look into", unit="files")
        return {path for path, is_one in zip(paths, checks, strict=True) if is_one}


def _no_match_reason(pattern: str, skipped: Counter[str]) -> str:
    if skipped or (filesystem.is_local(pattern) and os.path.isdir(pattern)):  # noqa: PTH112 (a pattern, not a path)
        content = f" (it has {_describe(skipped)})" if skipped else ""
        return (
            f"is a folder without {', '.join(sorted(_DATA))} files, markup or source code{content}; name its files: "
            f"'{pattern.rstrip('/')}/*'"
        )
    return "no file matches"


def _describe(skipped: Counter[str]) -> str:
    """Returns the kinds of files that are left out and their numbers: `files of other kinds (2 .log, 1 .csv)`."""
    kinds = [f"{kind} ({skipped[kind]:,})" for kind in _KINDS if skipped[kind]]
    extensions = sorted(skipped.keys() - set(_KINDS), key=lambda kind: (-skipped[kind], kind))
    if extensions:
        names = [
            f"{skipped[kind]:,} {kind or 'without an extension'}" for kind in extensions[:_MAX_EXTENSIONS]
        ]
        names += ["…"] * (len(extensions) > _MAX_EXTENSIONS)
        kinds.append(f"files of other kinds ({', '.join(names)})")
    return ", ".join(kinds)
