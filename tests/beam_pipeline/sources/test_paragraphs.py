from __future__ import annotations

import io
import itertools
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beam_pipeline.sources import lines
from beam_pipeline.sources.paragraphs import paragraphs

contents = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\n\n", b" ", b"\t", b" \n", b"x" * 30, b"\r"])
).map(b"".join)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[bytes, list[int], int]:
    content = draw(contents)
    inner_bounds = draw(st.lists(st.integers(0, len(content)), max_size=6))
    return content, sorted({0, *inner_bounds, len(content)}), draw(st.integers(1, 50))


def expected(content: bytes) -> list[tuple[int, bytes]]:
    """A simple implementation, line by line."""
    result: list[tuple[int, list[bytes]]] = []
    in_paragraph, offset = False, 0
    for line in content.split(b"\n"):
        if line.strip(b" \t\r\f\v"):
            if not in_paragraph:
                result.append((offset, []))
            result[-1][1].append(line)
            in_paragraph = True
        else:
            in_paragraph = False
        offset += len(line) + 1
    return [(first, b"\n".join(lines).removesuffix(b"\r")) for first, lines in result]


def in_blocks(block_bytes: int, content: bytes, start: int, end: int | None) -> list[tuple[int, bytes]]:
    """Returns the paragraphs that are found by reading so many bytes at a time."""
    with mock.patch.object(lines, "_BLOCK_BYTES", block_bytes):
        return [entry for block in paragraphs(io.BytesIO(content), start, end) for entry in block]


@given(cuts())
@example((b"a\n\nb", [0, 3, 4], 50))
@example((b"a\n \nb\n", [0, 2, 4, 6], 1))
@example((b"\n\na\nb\n\n", [0, 1, 3, 5, 7], 3))
@example((b"a\n   ", [0, 2, 5], 2))
def test_every_cut_gives_every_paragraph_once(content_and_cuts: tuple[bytes, list[int], int]) -> None:
    content, bounds, block_bytes = content_and_cuts
    actual = []
    for start, end in itertools.pairwise(bounds):
        range_paragraphs = in_blocks(block_bytes, content, start, end)
        assert all(start <= first < end for first, _ in range_paragraphs)
        actual += range_paragraphs
    assert actual == expected(content)


@given(contents, st.integers(1, 50))
def test_without_an_end_the_file_is_read_to_its_own(content: bytes, block_bytes: int) -> None:
    assert in_blocks(block_bytes, content, 0, None) == expected(content)


def test_a_line_of_a_byte_order_mark_alone_separates() -> None:
    content = b"\xef\xbb\xbf\nfirst\n\nsecond"
    assert in_blocks(100, content, 0, 4) + in_blocks(100, content, 4, len(content)) == [
        (4, b"first"),
        (11, b"second"),
    ]


def test_a_range_without_paragraphs_reads_little() -> None:
    content = b"begins\n" + b"goes on\n" * 1_000_000
    file = io.BytesIO(content)
    assert [entry for block in paragraphs(file, 1000, 2000) for entry in block] == []
    assert file.tell() < 1 << 20


def test_a_file_that_became_shorter_is_noticed() -> None:
    with pytest.raises(EOFError, match="ends at byte 4"):
        list(paragraphs(io.BytesIO(b"a\n\nb"), 0, 5))
