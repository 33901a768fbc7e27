from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.sources.cutting import FileRange, InputFile, ListedFile, byte_ranges, common_folder, cut
from beam_pipeline.sources.units import WorkUnit


def text_file(path: str, size: int, unit_bytes: int, **weight: float) -> ListedFile:
    return ListedFile(InputFile(path, size, "text"), list(byte_ranges(size, unit_bytes)), **weight)


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(1, 100))
def test_every_byte_is_in_one_unit(sizes: list[int], unit_bytes: int) -> None:
    files = [text_file(f"r/{number:02d}.txt", size, unit_bytes) for number, size in enumerate(sizes)]
    units = cut(files, "r/", unit_bytes)
    assert [unit.index for unit in units] == list(range(len(units)))
    byte_places = [
        (part.name, byte) for unit in units for part in unit.parts for byte in range(part.start, part.end)
    ]
    assert byte_places == [
        (f"{number:02d}.txt", byte) for number, size in enumerate(sizes) for byte in range(size)
    ]
    for unit in units:
        assert unit.bytes == sum(part.end - part.start for part in unit.parts)
        assert 0 < unit.bytes <= unit_bytes
        assert unit.format == "text"
        assert (unit.repeat, unit.share) == (0, 1.0)
    # No two neighbouring units would fit into one: small files share units.
    assert all(before.bytes + after.bytes > unit_bytes for before, after in pairwise(units))


def test_units_have_one_format() -> None:
    files = [
        ListedFile(InputFile(f"/{number}", 10, form), [FileRange(0, 10, 10)])
        for number, form in enumerate(["text", "text", "jsonl", "text"])
    ]
    units = cut(files, "/", 1000)
    assert [(unit.format, len(unit.parts)) for unit in units] == [("text", 2), ("jsonl", 1), ("text", 1)]


def test_neighbouring_pieces_of_a_file_become_one_part() -> None:
    ranges = [
        FileRange(0, 1, 10),
        FileRange(1, 2, 10),
        FileRange(4, 5, 10, (400, 3)),
        FileRange(5, 6, 10, (500, 5)),
    ]
    (unit,) = cut([ListedFile(InputFile("/a", 1, "arrow"), ranges)], "/", 100)
    assert [(part.start, part.end, part.batch_start) for part in unit.parts] == [
        (0, 2, (0, 0)),
        (4, 6, (400, 3)),
    ]
    assert WorkUnit.from_json(unit.to_json()) == unit


@pytest.mark.parametrize(
    ("repeats", "share", "expected"),
    [
        (1, 0.0, [(0, 1.0)]),
        (2, 0.5, [(0, 1.0), (1, 1.0), (2, 0.5)]),
        (0, 0.25, [(0, 0.25)]),
        (3, 0.0, [(0, 1.0), (1, 1.0), (2, 1.0)]),
    ],
)
def test_weights(repeats: int, share: float, expected: list[tuple[int, float]]) -> None:
    units = cut([text_file("/a", 100, 200, repeats=repeats, share=share)], "/", 200)
    assert [(unit.repeat, unit.share) for unit in units] == expected


def test_files_of_different_weights_share_no_unit() -> None:
    files = [
        text_file("/a", 10, 100, repeats=2),
        text_file("/b", 10, 100, repeats=0, share=0.5),
        text_file("/c", 10, 100, repeats=1),
        text_file("/d", 10, 100, repeats=1),
    ]
    units = cut(files, "/", 100)
    description = [(unit.repeat, unit.share, [part.name for part in unit.parts]) for unit in units]
    assert description == [(0, 1.0, ["a"]), (0, 0.5, ["b"]), (0, 1.0, ["c", "d"]), (1, 1.0, ["a"])]


def test_a_million_small_files_make_a_thousand_units() -> None:
    start_time = time.process_time()
    ranges = list(byte_ranges(900, 32 << 20))  # made once: the test does not measure this
    files = [ListedFile(InputFile(f"/corpus/{i:07d}.txt", 900, "text"), ranges) for i in range(1_000_000)]
    units = cut(files, common_folder(entry.file.path for entry in files), 32 << 20)
    assert time.process_time() - start_time < 30
    assert 900 < len(units) < 1100
    assert sum(len(unit.parts) for unit in units) == 1_000_000
    assert units[0].root == "/corpus/"
    assert units[0].parts[0].name == "0000000.txt"


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["/a/b/c.txt"], "/a/b/"),
        (["/a/b/c.txt", "/a/b/d/e.txt"], "/a/b/"),
        (["/a/bc/1", "/a/bd/2", "/a/b/0"], "/a/"),
        (["/a/1", "/b/2"], "/"),
        (["gs://bucket/x/1", "gs://bucket/x/2"], "gs://bucket/x/"),
        (["gs://bucket/x/1", "gs://other/x/2"], "gs://"),
        (["/a/1", "gs://bucket/2"], ""),
        (["/a/b/1", "/a/b-c/1"], "/a/"),
    ],
)
def test_common_folder(paths: list[str], folder: str) -> None:
    assert common_folder(paths) == common_folder(reversed(paths)) == folder
    assert all(path.startswith(folder) for path in paths)
