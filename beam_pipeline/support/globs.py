"""Patterns of paths, with the meaning that shells and Python's `glob(recursive=True)` give them.

`*`, `?` and `[…]` match within a name, and `**` as a whole name matches any number of folders, none included. A name
that begins with a dot is matched only by a pattern that begins with one. As in shells, `**` does not follow symbolic
links, so no file is listed twice, and cycles of links are harmless.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from functools import cache

_MAGIC = re.compile(r"[*?[]")
_VISIBLE = r"(?!\.)"
_FOLDERS = f"(?:{_VISIBLE}[^/]*/)*"


def literal_prefix(pattern: str) -> str:
    """Returns the part of a pattern before its first special character."""
    match = _MAGIC.search(pattern)
    return pattern[: match.start()] if match else pattern


def path_regex(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression of the whole paths of files that match."""
    *folders, name = pattern.split("/")
    folder_regex = "".join(_FOLDERS if part == "**" else f"{_name_pattern(part)}/" for part in folders)
    return re.compile(folder_regex + (f"{_FOLDERS}{_VISIBLE}[^/]+" if name == "**" else _name_pattern(name)))


def local_paths(pattern: str, unfollowed_links: list[str]) -> set[str]:
    """Returns the local files, pipes and devices that match a pattern.

    Args:
        pattern: The pattern.
        unfollowed_links: Collects the symbolic links to folders that `**` does not follow.

    Raises:
        OSError: If a folder cannot be read.
    """
    parts = pattern.split("/")
    if parts[-1] == "**":  # as files, what a final `**` matches is what `**/*` matches
        parts.append("*")
    return {path for path in _expand("", parts, unfollowed_links) if _is_file(path)}


def _is_file(path: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 (faster for very many files)
    except (FileNotFoundError, NotADirectoryError):  # a symbolic link without a target, say
        return False


def _expand(parent: str, parts: Sequence[str], unfollowed_links: list[str]) -> Iterator[str]:
    """Yields the paths that match `parts` below the folder whose path with its final `/` is `parent`."""
    part, *remaining = parts
    if part == "**":
        if remaining[0] == "**":
            yield from _expand(parent, remaining, unfollowed_links)
            return
        for folder in _folders(parent, unfollowed_links):
            yield from _expand(folder, remaining, unfollowed_links)
        return
    if not _MAGIC.search(part):
        names = [part]
    else:
        is_match = _name_regex(part).fullmatch
        names = [
            entry.name
            for entry in _entries(parent)
            if is_match(entry.name) and (not remaining or entry.is_dir())
        ]
    for name in names:
        if remaining:
            yield from _expand(f"{parent}{name}/", remaining, unfollowed_links)
        else:
            yield parent + name


def _folders(root: str, unfollowed_links: list[str]) -> Iterator[str]:
    """Yields a folder and all below it, except for hidden ones, each with its final `/`."""
    pending = [root]
    while pending:
        folder = pending.pop()
        yield folder
        for entry in _entries(folder):
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            if entry.is_symlink():
                unfollowed_links.append(entry.path)
            else:
                pending.append(f"{folder}{entry.name}/")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns the content of a folder; nothing if there is no such folder."""
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


@cache
def _name_regex(part: str) -> re.Pattern[str]:
    return re.compile(_name_pattern(part))


def _name_pattern(part: str) -> str:
    """Returns the regular expression of the names that a part of a pattern between two `/` matches."""
    if not _MAGIC.search(part):
        return re.escape(part)
    pieces = [] if part.startswith(".") else [_VISIBLE]
    # A character, or a set such as [a-z], [!a], []a] or [!]a]. A `[` without its `]` is an ordinary character.
    for piece in re.findall(r"\[!?\]?[^\]]*\]|.", part, re.DOTALL):
        if len(piece) > 1:
            pieces.append("(?!/)" + fnmatch.translate(piece)[: -len(r"\Z")])
        else:
            pieces.append({"*": "[^/]*", "?": "[^/]"}.get(piece, re.escape(piece)))
    return "".join(pieces)
