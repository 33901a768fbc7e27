"""Listing the input once and cutting it into work units, by the input and the options alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from beam_pipeline import filesystem
from beam_pipeline.errors import UsageError
from beam_pipeline.input_options import InputConfig, MixItem
from beam_pipeline.sources import parquet
from beam_pipeline.sources.compression import codec_of, uncompressed_name
from beam_pipeline.sources.cutting import InputFile, Listed, Piece, byte_ranges, common_folder, cut
from beam_pipeline.sources.units import WorkUnit

_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}

_EXPANSION = 4  # prose is three to four times as large as its compressed file
_FOOTERS_AT_ONCE = 16


@dataclass(frozen=True)
class Plan:
    """The input, listed: what is read, and in which pieces.

    Attributes:
      root: the longest folder that all files share, with its final `/`.
      files: sorted by path, each once.
      units: numbered from 0, in the order of (repeat, file name, offset).
    """

    root: str
    files: tuple[InputFile, ...]
    units: tuple[WorkUnit, ...]

    @property
    def bytes(self) -> int:
        """About how much text is read, repeats included."""
        return sum(unit.bytes for unit in self.units)


def plan(config: InputConfig, *, local_files: bool = True) -> Plan:
    """Lists the files and cuts them into units of about `config.unit_bytes` of text.

    A large file is cut into byte ranges or runs of row groups, neighbouring small files share a unit. The order of
    patterns has no influence, and a file that several patterns of `--input` match is read once.

    Args:
      config: what is read.
      local_files: whether the workers see this machine's files.

    Raises:
      UsageError: where a pattern matches no file, a file cannot be read by the workers, or is not what the options
        say.
    """
    if config.dataset:
        from beam_pipeline.sources import huggingface

        listed = huggingface.list_dataset(config, local_files=local_files)
    else:
        listed = _list_files(config, local_files)
    root = common_folder(entry.file.path for entry in listed)
    return Plan(root, tuple(entry.file for entry in listed), tuple(cut(listed, root, config.unit_bytes)))


def _list_files(config: InputConfig, local_files: bool) -> list[Listed]:
    option = "--mix" if config.mix else "--input"
    items = config.mix or [MixItem(pattern, 1, 0.0) for pattern in config.input]
    sizes, chosen = _match(items, option, once=bool(config.mix))
    files = [InputFile(path, sizes[path], _format(path, config.input_format)) for path in sorted(sizes)]
    for file in files:
        _check(file, option, local_files)
    if config.document != "line" and not any(file.format == "text" for file in files):
        raise UsageError(
            f"--document {config.document}: says what a document is in text files, and none of the "
            f"{len(files)} files is one ({files[0].path} is {files[0].format}); leave it out"
        )
    pieces = _pieces(files, config)
    return [
        Listed(file, own, chosen[file.path].repeats, chosen[file.path].share)
        for file, own in zip(files, pieces, strict=True)
    ]


def _match(items: Iterable[MixItem], option: str, *, once: bool) -> tuple[dict[str, int], dict[str, MixItem]]:
    """The size of each file that matches, and the item that it belongs to."""
    sizes: dict[str, int] = {}
    chosen: dict[str, MixItem] = {}
    for item in items:
        try:
            found = filesystem.match(filesystem.absolute(item.pattern))
        except (OSError, ValueError) as error:
            raise UsageError(f"{option} {item.pattern}: cannot be listed: {error}") from error
        if not found:
            raise UsageError(f"{option} {item.pattern}: {_why_nothing(item.pattern)}")
        for path, size in found:
            if once and path in chosen:
                raise UsageError(
                    f"{option}: {path} is matched by two items, {chosen[path].pattern} and {item.pattern}; its "
                    "weight must be named once"
                )
            sizes[path], chosen[path] = size, item
    return sizes, chosen


def _why_nothing(pattern: str) -> str:
    if filesystem.is_local(pattern) and os.path.isdir(pattern):  # noqa: PTH112 (a pattern, not a path)
        return f"is a folder; name its files: '{pattern.rstrip('/')}/*'"
    return "no file matches"


def _format(path: str, input_format: str) -> str:
    if input_format != "auto":
        return input_format
    extension = os.path.splitext(uncompressed_name(path))[1].lower()  # noqa: PTH122 (may be a URL)
    return _EXTENSIONS.get(extension, "text")


def _check(file: InputFile, option: str, local_files: bool) -> None:
    """Checks what can be known of a file without reading it."""
    codec = codec_of(file.path)
    if codec and file.format == "parquet":
        raise UsageError(f"{option}: {file.path}: a parquet file is compressed within; decompress it first")
    if codec and not file.size:
        raise UsageError(
            f"{option}: {file.path}: 0 bytes, which no {codec} file has; it may have been cut off"
        )
    if filesystem.is_local(file.path):
        if not local_files:
            raise UsageError(
                f"{option}: {file.path} is on this machine, where the runner's workers do not see it; copy it to a "
                "bucket (gs://…) or the like"
            )
        if not os.access(file.path, os.R_OK):
            raise UsageError(f"{option}: {file.path} cannot be read: its permissions do not allow it")


def _pieces(files: Sequence[InputFile], config: InputConfig) -> list[list[Piece]]:
    """Each file's pieces. Only parquet files are opened for it, some at a time: their footers are read."""
    tables = [file for file in files if file.format == "parquet"]
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        found = pool.map(lambda file: parquet.row_groups(file.path, file.size, config.text_key), tables)
        groups = dict(zip((file.path for file in tables), found, strict=True))
    pieces = []
    for file in files:
        if file.format == "parquet":
            own = [Piece(i, i + 1, group.bytes) for i, group in enumerate(groups[file.path]) if group.rows]
        elif codec_of(file.path):
            own = [Piece(0, file.size, _EXPANSION * file.size)]
        elif config.document == "file" and file.format == "text":
            own = [Piece(0, file.size, file.size)] if file.size else []
        else:
            own = list(byte_ranges(file.size, config.unit_bytes))
        pieces.append(own)
    return pieces
