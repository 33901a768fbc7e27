"""Whether a run in this process fits into memory, known before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beam_pipeline.errors import UsageError

_BASE = 400 << 20  # the program, its libraries and a work unit

# Of docs/preparing.md: what a local runner holds at its peak, when it groups all rows or all documents' hashes.
_PER_BYTE_OF_ROWS = 6.5
_PER_BYTE_OF_TEXT_FOR_HASHES = 0.25
_TEXT_BYTES_PER_TOKEN = 4.2


def needed(*, input_bytes: int, id_bytes: int, groups_rows: bool, groups_hashes: bool) -> int:
    """About how many bytes a run in this process needs at its peak.

    Args:
      input_bytes: of text.
      id_bytes: of a token in a row, 2 or 4.
      groups_rows: whether the runner groups the rows by shard: if the output is not a local folder.
      groups_hashes: whether it groups the documents' hashes: with `--dedup exact`.
    """
    rows = input_bytes / _TEXT_BYTES_PER_TOKEN * id_bytes
    grouped = groups_rows * rows * _PER_BYTE_OF_ROWS
    return int(_BASE + grouped + groups_hashes * input_bytes * _PER_BYTE_OF_TEXT_FOR_HASHES)


def available(root: str = "/") -> int | None:
    """How many bytes this process can still take: of the machine, and of the control groups that it is in.

    Args:
      root: the folder that holds `proc` and `sys`.

    Returns:
      None if the system does not tell.
    """
    meminfo = Path(root, "proc/meminfo")
    if not meminfo.exists():
        return None
    lines = (line.split() for line in meminfo.read_text().splitlines())
    found = [int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:"]
    return min([*found, *_left_in_groups(root)], default=None)


def check(needs: int, has: int | None, *, remedy: str) -> None:
    """Refuses a run that does not fit.

    Raises:
      UsageError: with what it needs, what there is, and the remedy.
    """
    if has is not None and needs > has:
        raise UsageError(
            f"this run needs about {needs / 1e9:.1f} GB of memory here, and {has / 1e9:.1f} GB are available; "
            f"{remedy}, or try it nevertheless with --skip_memory_check"
        )


def _left_in_groups(root: str) -> Iterator[int]:
    """What is left of the memory limit of each control group, version 2 or 1, that this process is in."""
    listing = Path(root, "proc/self/cgroup")
    if not listing.exists():
        return
    for line in listing.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, names = Path(root, "sys/fs/cgroup"), ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = Path(root, "sys/fs/cgroup/memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = top / path.strip("/")
        folders = [own, *own.parents] if own.is_dir() else [top]  # in a container its own group is the top
        for folder in folders:
            limit, usage = folder / names[0], folder / names[1]
            if folder.is_relative_to(top) and limit.exists() and limit.read_text().strip() != "max":
                statistics = (folder / "memory.stat").read_text().split()
                cached = dict(zip(statistics[::2], map(int, statistics[1::2]), strict=True))[names[2]]
                yield max(0, int(limit.read_text()) - int(usage.read_text()) + cached)
