"""Listing the input once and cutting it into work units. The result depends only on the input and the options."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import get_args

from beam_pipeline.options.input_options import Document, InputConfig
from beam_pipeline.sources import jsonl, parquet
from beam_pipeline.sources.compression import codec_of, extension
from beam_pipeline.sources.content import HEAD, open_text
from beam_pipeline.sources.cutting import FileRange, InputFile, ListedFile, byte_ranges, common_folder, cut
from beam_pipeline.sources.document_kinds import common_kind, document_kind
from beam_pipeline.sources.listing import list_items
from beam_pipeline.sources.opening import open_start
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted, megabytes
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.progress import tracked
from tokenmill_reader.console.elapsed import elapsed

_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_TABLES = (".csv", ".tsv")

_EXPANSION = 4  # prose is three to four times larger than its compressed file
_FILES_AT_ONCE = 16

# A unit larger than this many bytes, and this many times --unit_bytes, causes a warning.
_LARGE_UNIT_BYTES = 1 << 30
_LARGE_FACTOR = 16
_TEXT_PER_SECOND = 20e6  # of `prepare` as a whole, from docs/benchmarks.md
_MAX_CHECKED = 256
_MAX_EXTENSIONS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InputPlan:
    """The input as listed: the files and the work units."""

    root: str
    """The longest folder that all files share, with its final `/`."""
    files: tuple[InputFile, ...]
    """Sorted by path, without duplicates."""
    units: tuple[WorkUnit, ...]
    """Numbered from 0, in the order of (repeat, file name, offset)."""
    config: InputConfig = field(compare=False)
    """How to read them: `document` is `auto` only if it makes a difference, so that equal bytes have equal options."""

    @property
    def bytes(self) -> int:
        """The approximate size of the text that is read, repeats included."""
        return sum(unit.bytes for unit in self.units)

    @property
    def longest_known(self) -> int:
        """The size of the longest document that is a whole text file and is not compressed; 0 if there is none."""
        return max((file.size for file in self.whole_files if not codec_of(file.path)), default=0)

    @property
    def whole_files(self) -> Iterator[InputFile]:
        """The text files that are one document each."""
        text_files = (file for file in self.files if file.format == "text")
        return (file for file in text_files if document_kind(file.path, self.config) == "file")

    def describe_files(self) -> list[dict[str, str | int]]:
        """Returns the files' paths and sizes, for manifests and fingerprints."""
        return [{"path": file.path, "bytes": file.size} for file in self.files]


def plan(config: InputConfig, *, local_files: bool = True, skip_bad: bool = False) -> InputPlan:
    """Lists the files and cuts them into units of about `config.unit_bytes` of text.

    A large file is cut into byte ranges or runs of row groups; neighbouring small files share a unit. The order of the
    patterns does not matter, and a file that several patterns of `--input` match is read once.

    Args:
        config: What to read.
        local_files: Whether the workers can read this machine's files.
        skip_bad: Whether records without a text are skipped. Then some files, but not all, may lack the key of texts.

    Raises:
        UsageError: If a pattern matches no file, the workers cannot read a file, or a file contradicts the options.
    """
    if config.dataset:
        from beam_pipeline.sources import huggingface

        listed = huggingface.list_dataset(config, local_files=local_files)
    else:
        listed = _list_files(config, local_files, skip_bad)
    with elapsed("cutting the input into work units"):
        root = common_folder(entry.file.path for entry in listed)
        units = tuple(cut(listed, root, config.unit_bytes))
    if warning := _large_units(units, config.unit_bytes):
        _log.warning("WARNING: %s", warning)
    files = tuple(entry.file for entry in listed)
    kind = common_kind((file.path for file in files if file.format == "text"), config)
    return InputPlan(root, files, units, replace(config, document=kind))


def describe_plan(input_plan: InputPlan) -> str:
    """Describes the input in one line: its files, its size and its documents."""
    config = input_plan.config
    files, formats = input_plan.files, {file.format for file in input_plan.files}
    size = f"{megabytes(input_plan.bytes)}{' of text' if formats == {'text'} else ''}"
    if any(codec_of(file.path) for file in files):
        size = f"about {size}"
    if any(unit.repeat for unit in input_plan.units):
        size += ", repeats included"
    documents = []
    if "text" in formats:
        documents.append(_describe_documents(input_plan))
    if config.content == "conversation":
        documents.append("a document is a record, a conversation")
    elif formats - {"text"}:
        documents.append(f'a document is a record, its text under "{config.text_key}" (--text_key)')
    if len(documents) == 2:
        documents = [f"in text files, {documents[0]}", f"in other files, {documents[1]}"]
    return "; ".join([f"input: {counted(len(files), 'file')}, {size}", *documents])


def _describe_documents(input_plan: InputPlan) -> str:
    kind = input_plan.config.document
    if kind == "auto":
        extensions = Counter(extension(file.path) for file in input_plan.whole_files)
        names = [name for name, _ in extensions.most_common(_MAX_EXTENSIONS)]
        names += ["…"] * (len(extensions) > _MAX_EXTENSIONS)
        return f"each file is a document if it is {', '.join(names)}, else each line (--document changes it)"
    choices = " or ".join(choice for choice in get_args(Document) if choice not in ("auto", kind))
    return f"a document is a {kind} (--document {choices} changes it)"


def _large_units(units: Sequence[WorkUnit], unit_bytes: int) -> str | None:
    """Returns a warning about units that will keep one worker busy when all others are done, or None."""
    large = [unit for unit in units if unit.bytes > max(_LARGE_UNIT_BYTES, _LARGE_FACTOR * unit_bytes)]
    if not large:
        return None
    longest = max(large, key=lambda unit: unit.bytes)
    path = longest.root + longest.parts[0].name
    if codec_of(path):
        kind = "a compressed file"
        remedy = "in parts, e.g. zcat FILE | split -C 256M --filter='gzip > $FILE.gz' - part-"
    elif longest.format == "parquet":
        kind, remedy = "a row group", "with smaller row groups"
    else:
        kind, remedy = "a document", "in parts"
    size, minutes = longest.bytes / 1e9, longest.bytes / _TEXT_PER_SECOND / 60
    return (
        f"{len(large)} of {len(units)} work units cannot be cut to --unit_bytes {unit_bytes}. The largest one, of "
        f"{path}, has about {size:.1f} GB of text. A single worker reads {kind} from start to end, which takes about "
        f"{minutes:.0f} minutes at {_TEXT_PER_SECOND / 1e6:.0f} MB/s. To read it in parallel, write it {remedy}"
    )


def _list_files(config: InputConfig, local_files: bool, skip_bad: bool) -> list[ListedFile]:
    option = "--mix" if config.mix else "--input"
    with elapsed("listing the input"):
        sizes, item_by_path = list_items(config, option)
        files = [InputFile(path, sizes[path], _format(path, config.input_format)) for path in sorted(sizes)]
    for file in tracked(files, len(files), label="check", unit="files"):
        _check_file(file, option, local_files, config.input_format)
    if config.content == "conversation" and any(file.format == "text" for file in files):
        path = next(file.path for file in files if file.format == "text")
        raise UsageError(
            f"{option}: {path}: is text, and conversations are read from jsonl and parquet files and datasets; leave "
            "it out, or use --input_format jsonl if it has one record per line"
        )
    _check_contents(files, config, skip_bad)
    if config.document not in ("auto", "line") and not any(file.format == "text" for file in files):
        raise UsageError(
            f"--document {config.document}: applies to text files only, and the input has none "
            f"({files[0].path} is {files[0].format}); leave it out"
        )
    ranges_of_files = _cut_files(files, config)
    return [
        ListedFile(file, ranges, item_by_path[file.path].repeats, item_by_path[file.path].share)
        for file, ranges in zip(files, ranges_of_files, strict=True)
    ]


def _format(path: str, input_format: str) -> str:
    if input_format != "auto":
        return input_format
    return _EXTENSIONS.get(extension(path), "text")


def _check_file(file: InputFile, option: str, local_files: bool, input_format: str) -> None:
    """Checks a file as far as possible without reading it."""
    try:
        file.path.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{option}: {file.path!r}: its name is not UTF-8; rename it") from error
    codec = codec_of(file.path)
    if input_format == "auto" and (table_extension := extension(file.path)) in _TABLES:
        raise UsageError(
            f"{option}: {file.path}: {table_extension} files are tables; convert the file to jsonl or parquet, or use "
            "--input_format text to read its lines unchanged"
        )
    if codec and file.format == "parquet":
        raise UsageError(
            f"{option}: {file.path}: compressed parquet files are not supported, since parquet compresses its columns "
            "itself; decompress the file first"
        )
    if codec and not file.size:
        raise UsageError(
            f"{option}: {file.path}: 0 bytes is not a valid {codec} file; it may have been truncated"
        )
    if filesystem.is_local(file.path):
        if not local_files:
            raise UsageError(
                f"{option}: {file.path} is on this machine, where the runner's workers cannot read it; copy it to a "
                "bucket (gs://…)"
            )
        if not os.path.isfile(file.path):  # noqa: PTH113 (as below)
            raise UsageError(
                f"{option}: {file.path}: is not a regular file (but a pipe, say), and input may be read more "
                "than once; write its content to a file"
            )
        if not os.access(file.path, os.R_OK):
            raise UsageError(f"{option}: {file.path} cannot be read: its permissions do not allow it")


def _check_contents(files: Sequence[InputFile], config: InputConfig, skip_bad: bool) -> None:
    """Checks the first bytes of text and jsonl files.

    If there are many files, checks the first one with each extension and a sample of the others. The rest are checked
    when they are read.
    """
    text_files = [file for file in files if file.format != "parquet" and file.size]
    if len(text_files) > _MAX_CHECKED:
        first_by_extension = {extension(file.path): file for file in reversed(text_files)}
        sample = text_files[:: -(-2 * len(text_files) // _MAX_CHECKED)]
        text_files = [*list(first_by_extension.values())[: _MAX_CHECKED // 2], *sample]

    def check(file: InputFile) -> str | None:
        try:
            with open_start(file.path, HEAD) as opened:
                stream = open_text(opened, file.path, file.format, config)
                return jsonl.missing_key_reason(stream, config) if file.format == "jsonl" else None
        except OSError as error:
            raise UsageError(f"{file.path}: cannot be read: {error}") from error

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        reasons = list(tracked(pool.map(check, text_files), len(text_files), label="look into", unit="files"))
    wrong = [(file.path, reason) for file, reason in zip(text_files, reasons, strict=True) if reason]
    if wrong and not (skip_bad and len(wrong) < len(files)):
        path, reason = wrong[0]
        raise UsageError(f"{path}: {reason}")


def _cut_files(files: Sequence[InputFile], config: InputConfig) -> list[list[FileRange]]:
    """Cuts each file into pieces. Opens only parquet files, several at a time, to read their footers."""
    tables = [file for file in files if file.format == "parquet"]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        groups_of_files = pool.map(lambda file: parquet.row_groups(file.path, file.size, config), tables)
        groups_of_files = tracked(groups_of_files, len(tables), label="footers", unit="files")
        groups = dict(zip((file.path for file in tables), groups_of_files, strict=True))
    ranges_of_files = []
    for file in files:
        if file.format == "parquet":
            ranges = groups[file.path]
        elif codec_of(file.path):
            ranges = [FileRange(0, file.size, _EXPANSION * file.size)]
        elif file.format == "text" and document_kind(file.path, config) == "file":
            ranges = [FileRange(0, file.size, file.size)] if file.size else []
        else:
            ranges = list(byte_ranges(file.size, config.unit_bytes))
        ranges_of_files.append(ranges)
    return ranges_of_files
