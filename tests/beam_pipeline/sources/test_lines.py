from __future__ import annotations

import io
import itertools
from typing import BinaryIO
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beam_pipeline.sources import lines
from beam_pipeline.sources.lines import line_bounds, line_number, undecodable, whole_lines

# Few letters, so that line ends often fall on the borders of ranges and blocks.
contents = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\n\n", b"\0", b"x" * 40])).map(b"".join)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[bytes, list[int], int]:
    content = draw(contents)
    inner_bounds = draw(st.lists(st.integers(0, len(content)), max_size=6))
    return content, sorted({0, *inner_bounds, len(content)}), draw(st.integers(1, 50))


def in_blocks(block_bytes: int, file: BinaryIO, start: int, end: int | None) -> list[tuple[int, bytes]]:
    """Returns what `whole_lines` yields if it reads so many bytes at a time."""
    with mock.patch.object(lines, "_BLOCK_BYTES", block_bytes):
        return list(whole_lines(file, start, end))


@given(cuts())
@example((b"", [0], 1))
@example((b"\n", [0, 1], 1))
@example((b"a\n", [0, 1, 2], 2))
def test_every_cut_gives_every_line_once(content_and_cuts: tuple[bytes, list[int], int]) -> None:
    content, bounds, block_bytes = content_and_cuts
    actual = []
    for start, end in itertools.pairwise(bounds):
        for offset, block in in_blocks(block_bytes, io.BytesIO(content), start, end):
            assert content[offset : offset + len(block)] == block
            assert block.endswith(b"\n") or offset + len(block) == len(content)
            for line_start, line_end in zip(*line_bounds(block), strict=True):
                assert start <= offset + line_start < end, (
                    "a line belongs to the range that holds its first byte"
                )
                actual.append((offset + int(line_start), block[line_start:line_end]))
    expected = content.removesuffix(b"\n").split(b"\n") if content else []
    assert [line for _, line in actual] == expected
    assert [offset for offset, _ in actual] == [
        sum(len(line) + 1 for line in expected[:i]) for i in range(len(expected))
    ]


@given(contents, st.integers(1, 50))
def test_without_an_end_the_file_is_read_to_its_own(content: bytes, block_bytes: int) -> None:
    blocks = [block for _, block in in_blocks(block_bytes, io.BytesIO(content), 0, None)]
    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])


def test_no_byte_is_read_twice_and_little_past_the_end() -> None:
    content = b"".join(b"%099d\n" % number for number in range(100_000))  # 10 MB
    file = CountingFile(content)
    bytes_read = sum(len(block) for _, block in whole_lines(file, 0, 1_000_050))
    assert bytes_read == 1_000_100
    assert file.bytes_read < 1_000_050 + (128 << 10)


def test_a_long_line_is_gathered_in_linear_time() -> None:
    content = b"x" * (20 << 20) + b"\nshort\n"
    file = CountingFile(content)
    blocks = [block for _, block in in_blocks(64 << 10, file, 0, 100)]
    assert [len(block) for block in blocks] == [(20 << 20) + 1]
    assert file.bytes_read <= len(content)
    # The line's other bytes are in ranges in which no line begins.
    assert list(whole_lines(io.BytesIO(content), 100, 200)) == []


@pytest.mark.parametrize("bounds", [(0, 11), (4, 11), (10, 20)])
def test_a_file_that_became_shorter_is_noticed(bounds: tuple[int, int]) -> None:
    with pytest.raises(EOFError, match="ends at byte 10"):
        list(whole_lines(io.BytesIO(b"abc\ndef\ngh"), *bounds))


@given(contents)
def test_line_numbers(content: bytes) -> None:
    starts, _ = line_bounds(content)
    for number, start in enumerate(starts.tolist(), start=1):
        assert line_number(io.BytesIO(content), start) == number


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"fine \xc3\xa9", None),
        (b"ab\xffcd", "byte 0xff at column 3 "),
        (b"\xc3\xa9\xe2\x82", "byte 0xe2 at column 3 "),
        (b"one\ntwo\n12\x80", "byte 0x80 at byte 3 of its line 3 "),
        (b"\xff\xfeh\0i\0", "looks like UTF-16"),
    ],
)
def test_undecodable_is_located(record: bytes, reason: str | None) -> None:
    result = undecodable(record)
    assert result is None if reason is None else reason in result


class CountingFile(io.BytesIO):
    bytes_read = 0

    def read(self, size: int = -1) -> bytes:
        piece = super().read(size)
        self.bytes_read += len(piece)
        return piece
