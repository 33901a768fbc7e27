"""Memory of this machine, and the check that a run fits into it before the run starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beam_pipeline.support.errors import UsageError

_BASE_BYTES = 400 << 20  # the program, its libraries and a work unit
_UNIT_BYTES = 90 << 20  # another unit at the same time

# From docs/preparing.md: the peak memory of a local runner that groups all rows, or all documents' hashes,
# bands of MinHashes, or hashes of paragraphs.
_PER_BYTE_OF_ROWS = 6.5
_PER_BYTE_OF_TEXT_FOR_HASHES = 0.25
_PER_BYTE_OF_TEXT_FOR_BANDS = 0.8
_PER_BYTE_OF_TEXT_FOR_PARAGRAPHS = 0.5
TEXT_BYTES_PER_TOKEN = 4.2
_PER_BYTE_OF_DOCUMENT = 14  # its record, its text, pieces and ids, and copies of these; measured with 50 MB
_COPIES_OF_STATISTICS = 4  # of a unit, its bytes, and sums of two steps

_MAX_BYTES_FOR_ROWS = 1 << 30

# The rows that are gathered at a time: this share of the split's, but at least so many bytes. More of them take memory,
# which the system has to clear, and fewer take more passes over all blocks.
_SHARE_GATHERED = 1 / 4
_LEAST_GATHERED = 128 << 20


def estimate(
    *,
    input_bytes: int,
    id_bytes: int,
    groups_rows: bool,
    groups_hashes: bool,
    groups_bands: bool = False,
    groups_paragraphs: bool = False,
    shard_bytes: float = 0,
    statistics_bytes: int = 0,
    longest_bytes: float = 0,
    units_at_once: int = 1,
) -> int:
    """Estimates the peak memory of a run in this process, in bytes.

    Args:
        input_bytes: Bytes of text.
        id_bytes: Bytes per token of a row, 2 or 4.
        groups_rows: Whether the runner groups the rows by shard, as it does if the output is not a local folder.
        groups_hashes: Whether the runner groups the documents' hashes, as it does with `--dedup exact`.
        groups_bands: Whether the runner groups the documents' bands of MinHashes, as it does with `--dedup near`.
        groups_paragraphs: Whether the runner groups the hashes of paragraphs, as it does with `--dedup paragraphs`.
        shard_bytes: Bytes of a shard's rows, which are gathered in memory.
        statistics_bytes: Bytes of the statistics of all splits.
        longest_bytes: Bytes of the longest document that is known.
        units_at_once: How many units are tokenized at the same time.
    """
    row_bytes = input_bytes / TEXT_BYTES_PER_TOKEN * id_bytes
    gathered_bytes = gathered_at_once(row_bytes, most=bytes_to_gather())
    bytes_for_rows = (
        row_bytes * _PER_BYTE_OF_ROWS if groups_rows else min(row_bytes, max(gathered_bytes, shard_bytes))
    )
    bytes_for_hashes = groups_hashes * input_bytes * _PER_BYTE_OF_TEXT_FOR_HASHES
    bytes_for_hashes += groups_bands * input_bytes * _PER_BYTE_OF_TEXT_FOR_BANDS
    bytes_for_hashes += groups_paragraphs * input_bytes * _PER_BYTE_OF_TEXT_FOR_PARAGRAPHS
    bytes_for_documents = _PER_BYTE_OF_DOCUMENT * longest_bytes + _COPIES_OF_STATISTICS * statistics_bytes
    bytes_for_documents += (units_at_once - 1) * _UNIT_BYTES
    return int(_BASE_BYTES + bytes_for_rows + bytes_for_hashes + bytes_for_documents)


def available(root: str = "/") -> int | None:
    """Returns the available memory in bytes: the least of the machine's and that of each control group of this process.

    Args:
        root: The folder with `proc` and `sys`.

    Returns:
        None if the system does not report it.
    """
    meminfo = Path(root, "proc/meminfo")
    if not meminfo.exists():
        return None
    lines = (line.split() for line in meminfo.read_text().splitlines())
    machine = [int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:"]
    return min([*machine, *_free_in_groups(root)], default=None)


def bytes_to_gather() -> int:
    """Returns the largest number of bytes of rows that this process should gather at a time.

    That is an eighth of the available memory, but at most 1 GiB: more saves no time.
    """
    free_bytes = available()
    return _MAX_BYTES_FOR_ROWS // 4 if free_bytes is None else min(_MAX_BYTES_FOR_ROWS, free_bytes // 8)


def gathered_at_once(row_bytes: float, *, most: int) -> int:
    """Returns how many bytes of rows are gathered at a time, of a split that has `row_bytes` of them."""
    return min(most, max(_LEAST_GATHERED, int(_SHARE_GATHERED * row_bytes)))


def units_at_once(threads: int) -> int:
    """Returns how many units a process of this many threads tokenizes at the same time.

    The memory of those after the first is at most an eighth of what is available.
    """
    free_bytes = available()
    return threads if free_bytes is None else min(threads, 1 + free_bytes // 8 // _UNIT_BYTES)


def check(needed_bytes: int, available_bytes: int | None, *, remedy: str) -> None:
    """Checks that a run fits into memory.

    Args:
        needed_bytes: The memory that it needs.
        available_bytes: The available memory; None if it is unknown.
        remedy: How to reduce the need, for the message.

    Raises:
        UsageError: If it does not fit.
    """
    if available_bytes is not None and needed_bytes > available_bytes:
        raise UsageError(
            f"this run needs about {needed_bytes / 1e9:.1f} GB of memory here, but {available_bytes / 1e9:.1f} GB are "
            f"available; {remedy}, or use --skip_memory_check to try anyway"
        )


def _free_in_groups(root: str) -> Iterator[int]:
    """Yields the remaining memory of each control group (version 2 or 1) of this process."""
    listing = Path(root, "proc/self/cgroup")
    if not listing.exists():
        return
    for line in listing.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root_group, names = Path(root, "sys/fs/cgroup"), ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root_group = Path(root, "sys/fs/cgroup/memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own_group = root_group / path.strip("/")
        # In a container, the process's own group is the top.
        folders = [own_group, *own_group.parents] if own_group.is_dir() else [root_group]
        for folder in folders:
            limit, usage = folder / names[0], folder / names[1]
            if folder.is_relative_to(root_group) and limit.exists() and limit.read_text().strip() != "max":
                statistics = (folder / "memory.stat").read_text().split()
                cached = dict(zip(statistics[::2], map(int, statistics[1::2]), strict=True))[names[2]]
                yield max(0, int(limit.read_text()) - int(usage.read_text()) + cached)
