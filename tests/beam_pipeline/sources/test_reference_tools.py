"""Compressed files: what their format's own tool decompresses is read, or refused for the right reason."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.content import open_text
from beam_pipeline.support.errors import DataError, UsageError

TEXT = b"".join(b"line %d of the text\n" % number for number in range(20_000))
A, B = TEXT[:200_000], TEXT[200_000:]
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"
TOOLS = {"gz": "gzip", "bz2": "bzip2", "zst": "zstd", "xz": "xz", "lz4": "lz4"}


def run(tool: str, content: bytes, *options: str) -> bytes:
    return subprocess.run([tool, "-qc", *options], input=content, stdout=subprocess.PIPE, check=True).stdout


def members(compress, magic: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the cases that all formats share, by name."""
    member, first, second, empty_member = (compress(data) for data in (TEXT, A, B, b""))
    yield from {"one": member, "two": first + second, "empty": empty_member}.items()
    yield "empty members", empty_member + first + empty_member + empty_member + second + empty_member
    for count in (1, 3, 4, 512, 300_000):
        yield f"{count} zeros", member + bytes(count)
        yield f"{count} zeros between", first + bytes(count) + second
    for garbage in (b"x", b"\n", b"garbage!", b"a longer piece of garbage" * 20_000, magic, magic[:1]):
        yield f"followed by {garbage[:9]!r} and {len(garbage)} bytes", member + garbage
    yield "truncated", member[:-5]
    yield "second truncated", first + second[:-5]
    yield "second header truncated", first + second[:5]
    yield "first header truncated", member[:5]


def gzip_cases() -> Iterator[tuple[str, bytes]]:
    member = gzip.compress(TEXT)
    yield from members(gzip.compress, member[:2])
    yield "stored", gzip.compress(TEXT, 0)
    member_end = member[4:10] + struct.pack("<H", 6) + b"BC\2\0\1\2name\0comment\0" + member[10:]
    yield "extra, name, comment", member[:3] + bytes([4 | 8 | 16]) + member_end
    head = member[:3] + bytes([2 | 8]) + member[4:10] + b"n\0"
    yield "header checksum", head + struct.pack("<H", zlib.crc32(head) & 0xFFFF) + member[10:]
    yield "wrong header checksum", head + b"\1\2" + member[10:]
    yield "wrong checksum", member[:-8] + b"\1\2\3\4" + member[-4:]
    yield "wrong length", member[:-4] + b"\1\2\3\4"
    yield "zlib", zlib.compress(TEXT)
    yield "xz", lzma.compress(TEXT)
    yield "ratio of 1000", gzip.compress(bytes(20_000_000))


def bzip2_cases() -> Iterator[tuple[str, bytes]]:
    yield from members(bz2.compress, b"BZh9")
    yield "small blocks", bz2.compress(TEXT, 1)
    yield "wrong checksum", bz2.compress(TEXT)[:-3] + b"\1\2\3"


def zstd_cases() -> Iterator[tuple[str, bytes]]:
    yield from members(lambda data: run("zstd", data), b"\x28\xb5\x2f\xfd")
    for option in ("--no-check", "--fast=5", "--no-content-size", "--rsyncable", "-19"):
        yield option, run("zstd", TEXT, option)
    yield "skippable frames", SKIPPABLE + run("zstd", A) + 2 * SKIPPABLE + run("zstd", B) + SKIPPABLE
    yield "only a skippable frame", SKIPPABLE
    yield "truncated skippable frame", run("zstd", TEXT) + SKIPPABLE[:7]
    for bits in (24, 27, 28):
        yield f"window of {1 << bits} bytes", run("zstd", TEXT, f"--long={bits}")


def xz_cases() -> Iterator[tuple[str, bytes]]:
    yield from members(lzma.compress, b"\xfd7zXZ\0")
    for options in (["-C", "none"], ["-C", "sha256"], ["--block-size=10000"], ["-9e"], ["--x86", "--lzma2"]):
        yield " ".join(options), run("xz", TEXT, *options)
    yield "lzma", lzma.compress(TEXT, lzma.FORMAT_ALONE)


def lz4_cases() -> Iterator[tuple[str, bytes]]:
    yield from members(lambda data: run("lz4", data), b"\x04\x22\x4d\x18")
    for option in ("-9", "-BD", "-B4", "-BX", "--no-frame-crc", "--content-size"):
        yield option, run("lz4", TEXT, option)
    yield "skippable frames", SKIPPABLE + run("lz4", A) + 2 * SKIPPABLE + run("lz4", B) + SKIPPABLE
    yield "legacy", run("lz4", TEXT, "-l")


CASES = {"gz": gzip_cases, "bz2": bzip2_cases, "zst": zstd_cases, "xz": xz_cases, "lz4": lz4_cases}
IGNORED = {"gzip": 2, "bzip2": 0}  # the status if other bytes after the data are ignored with a warning


@pytest.mark.parametrize("extension", CASES)
def test_what_the_tool_decompresses_is_read_or_refused_for_the_true_reason(extension: str, tmp_path: Path):
    tool = TOOLS[extension]
    if not shutil.which(tool):
        pytest.skip(f"needs {tool}")
    path = tmp_path / f"a.txt.{extension}"
    for name, content in CASES[extension]():
        path.write_bytes(content)
        expected = subprocess.run([tool, "-dc", str(path)], capture_output=True, check=False)
        has_warning = b"trailing garbage" in expected.stderr and expected.returncode == IGNORED.get(tool)
        try:
            with path.open("rb") as file:
                stream = open_text(file, str(path), "text", InputConfig(input_format="text"))
                pieces = list(iter(partial(stream.read, 1 << 20), b""))
        except (DataError, UsageError) as error:
            message = str(error)
            if has_warning or "followed by" in message:
                assert "followed by" in message, (name, message)
            elif expected.returncode == 0:
                assert name in ("legacy", "lzma"), (name, message)
                assert "truncated" not in message
            if name == f"window of {1 << 28} bytes":
                assert "--long=27" in message
        else:
            assert b"".join(pieces) == expected.stdout, name
            assert expected.returncode == 0 or (has_warning and name.endswith("zeros")), (
                name,
                expected.stderr,
            )
