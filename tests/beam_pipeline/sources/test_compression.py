from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc

import pyarrow as pa
import pytest

from beam_pipeline.sources.reading import describe
from beam_pipeline.support.errors import DataError, UsageError


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


def lz4(content: bytes) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "lz4") as compressed:
        compressed.write(content)
    return stream.getvalue().to_pybytes()


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstd, "xz": lzma.compress, "lz4": lz4}

every_codec = pytest.mark.parametrize("extension", COMPRESS)


@every_codec
@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
def test_the_documents_are_those_of_the_plain_file(write, read, extension: str, document: str) -> None:
    content = "\ufeffone\r\nzwölf\n\n\nthree\0\nfour".encode()
    plain_result = read(write("plain/a.txt", content), document=document, input_format="text")
    packed = read(
        write(f"packed/a.txt.{extension}", COMPRESS[extension](content)),
        document=document,
        input_format="text",
        unit_bytes=5,
    )
    assert len(packed.units) == 1
    assert [entry[1:] for entry in packed.documents] == [entry[1:] for entry in plain_result.documents]
    assert packed.blank == plain_result.blank
    assert {name for name, _, _ in packed.documents} == {f"a.txt.{extension}"}


@every_codec
def test_several_members_are_read_to_the_end(write, read, extension: str) -> None:
    compress = COMPRESS[extension]
    content = compress(b'{"text": "one"}\n{"te') + compress(b"") + compress(b'xt": "two"}\n')
    assert read(write(f"a.jsonl.{extension}", content)).texts == ["one", "two"]


@every_codec
def test_a_truncated_file_is_an_error(write, read, extension: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20_000))
    compressed = COMPRESS[extension](lines)
    for content in (
        compressed[:-1],
        compressed[: len(compressed) // 2],
        compressed[:3],
        compressed + compressed[:20],
    ):
        with pytest.raises(
            DataError, match=rf"a\.txt\.{extension}: truncated or corrupt .* before byte \d+ of the"
        ):
            read(write(f"a.txt.{extension}", content))


@pytest.mark.parametrize("extension", sorted(COMPRESS.keys() - {"lz4"}))  # Arrow writes LZ4 without checksums
def test_a_corrupt_file_is_an_error(write, read, extension: str) -> None:
    content = bytearray(COMPRESS[extension](b"".join(b"line %d\n" % number for number in range(20_000))))
    content[len(content) // 2] ^= 0x55
    with pytest.raises(
        DataError, match=rf"a\.txt\.{extension}: truncated or corrupt .* after \d+ bytes of its content"
    ):
        read(write(f"a.txt.{extension}", bytes(content)), input_format="text")


@every_codec
def test_no_bytes_at_all_are_noticed_while_planning(write, read, extension: str) -> None:
    with pytest.raises(UsageError, match=r"0 bytes is not a valid \w+ file"):
        read(write(f"a.txt.{extension}", b""))


@every_codec
def test_a_bad_record_is_named_by_its_line(write, read, extension: str) -> None:
    result = read(write(f"a.jsonl.{extension}", COMPRESS[extension](b'{"text": "one"}\n\n{"text": 2}\n')))
    (bad_record,) = result.bad
    assert ", line 3 (byte 17 of its content): the value of 'text'" in describe(result.units[0], bad_record)


@every_codec
def test_little_of_the_content_is_in_memory(write, read, extension: str) -> None:
    line = b" " * 999 + b"\n"
    path = write(f"a.txt.{extension}", COMPRESS[extension](line) + COMPRESS[extension](line * 80_000))
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    result = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.blank == 80_001
    assert peak < 35 << 20  # the content has 80 MB
    assert pa.total_allocated_bytes() - before < 8 << 20


def test_the_format_goes_by_the_name_within(write, read) -> None:
    assert read(write("a.json.GZ", gzip.compress(b'{"text": "one"}'))).texts == ["one"]


def test_small_compressed_files_share_a_unit(write, read) -> None:
    for number in range(5):
        path = write(f"{number}.txt.gz", gzip.compress(b"%d\n" % number))
    result = read(path.replace("4.txt", "*.txt"))
    assert result.texts == ["0", "1", "2", "3", "4"]
    assert len(result.units) == 1


def test_a_compressed_parquet_file_is_refused(write, read) -> None:
    with pytest.raises(UsageError, match=r"a\.parquet\.gz: compressed parquet files are not supported"):
        read(write("a.parquet.gz", b"x"))
