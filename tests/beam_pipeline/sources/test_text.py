from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import describe, read_unit
from beam_pipeline.support.errors import DataError

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("content", "documents", "blank"),
    [
        (b"one\ntwo\n", [(0, "one"), (4, "two")], 0),
        (b"no final newline", [(0, "no final newline")], 0),
        (b"one\r\ntwo\r\n", [(0, "one"), (5, "two")], 0),
        (b"one\r\ntwo\r", [(0, "one"), (5, "two")], 0),
        (b"a lone \r stays\n", [(0, "a lone \r stays")], 0),
        (BOM + b"one\ntwo", [(3, "one"), (7, "two")], 0),
        (BOM, [], 0),
        (b"a\0b\n\0\n", [(0, "a\0b"), (4, "\0")], 0),
        (b"\n \t\n\xc2\xa0\nx\n\r\n", [(7, "x")], 4),
        (b"\n", [], 1),
        ("zwölf\n日本\u2028語\x85\n".encode(), [(0, "zwölf"), (7, "日本\u2028語\x85")], 0),
        (b" leading and trailing \n", [(0, " leading and trailing ")], 0),
    ],
)
def test_lines(write, read, content: bytes, documents: list[tuple[int, str]], blank: int) -> None:
    for unit_bytes in (1, 3, 1 << 20):
        result = read(write("a.txt", content), unit_bytes=unit_bytes, input_format="text")
        assert [(place, text) for _, place, text in result.documents] == documents
        assert result.blank == blank
        assert not result.bad


def test_an_empty_file_has_no_documents(write, read) -> None:
    write("empty.txt", b"")
    result = read(write("a.txt", "one\n").replace("a.txt", "*.txt"))
    assert result.texts == ["one"]
    assert [file.path.rpartition("/")[2] for file in result.plan.files] == ["a.txt", "empty.txt"]


def test_invalid_utf8_is_named_by_file_line_and_column(write, read) -> None:
    path = write("a.txt", b"fine\n\nbr\xffken\nfine, too \xe2\x82\xac\n\xe2\x82")
    result = read(path)
    assert result.texts == ["fine", "fine, too €"]
    assert [(record.place, record.content) for record in result.bad] == [(6, b"br\xffken"), (27, b"\xe2\x82")]
    description = [describe(result.units[0], record) for record in result.bad]
    assert description[0].startswith(f"{path}, line 3 (byte 6): invalid UTF-8: byte 0xff at column 3")
    assert description[1].startswith(f"{path}, line 5 (byte 27): invalid UTF-8: byte 0xe2 at column 1")


def test_paragraphs(write, read) -> None:
    content = BOM + "\r\nTitle\r\n\r\nfirst line\r\n  second, é\r\n \t\r\nlast".encode()
    result = read(write("a.txt", content), document="paragraph")
    assert result.documents == [
        ("a.txt", 5, "Title"),
        ("a.txt", 14, "first line\n  second, é"),
        ("a.txt", 44, "last"),
    ]


def test_a_bad_paragraph_is_named_by_its_line(write, read) -> None:
    result = read(write("a.txt", b"fine\n\none\ntw\xffo\n\nfine\n"), document="paragraph")
    assert result.texts == ["fine", "fine"]
    assert ", line 3 (byte 6): invalid UTF-8: byte 0xff at byte 3 of its line 2" in describe(
        result.units[0], result.bad[0]
    )


def test_a_whole_file_is_a_document(write, read) -> None:
    write("1.txt", BOM + b"one\r\n\r\ntwo\n")
    write("2.txt", b"")
    write("3.txt", b" \n")
    path = write("4.txt", b"x" * 100)
    result = read(path.replace("4.txt", "*.txt"), document="file", unit_bytes=10)
    assert result.documents == [("1.txt", 3, "one\n\ntwo\n"), ("4.txt", 0, "x" * 100)]
    assert result.blank == 1


def test_a_long_line_takes_bounded_memory(write, read) -> None:
    size = 100 << 20
    path = write("a.txt", b"short\n" + b"x" * size + b"\nlast")
    tracemalloc.start()
    result = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(text) for text in result.texts] == [5, size, 4]
    assert peak < 6 * size


@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
def test_a_file_that_became_shorter_is_an_error(write, read, document: str, monkeypatch) -> None:
    path = write("a.txt", b"one\n\ntwo\n" * 100)
    from beam_pipeline.sources import reading as sources

    open_file = sources.filesystem.open_file

    def shorten_and_open(name: str):
        write("a.txt", b"one\n\ntwo\n" * 50)
        return open_file(name)

    monkeypatch.setattr(sources.filesystem, "open_file", shorten_and_open)
    with pytest.raises(DataError, match=r"a\.txt: ends at byte 450, but had .* the file has changed since"):
        read(path, document=document)


def test_a_file_that_is_gone_is_an_error(write) -> None:
    path = write("a.txt", b"one\n")
    config = InputConfig(input=(path,))
    (unit,) = plan(config).units
    Path(path).unlink()
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: "):
        list(read_unit(unit, config))
