"""`--encoding` and `--encoding_errors`: the same documents as from the files in UTF-8, however they are cut."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import parse_encoding
from beam_pipeline.sources.reading import describe
from beam_pipeline.support.errors import UsageError

LATIN = ["Zwölf Boxkämpfer", "für \x85 Eva", "", "  Çà ", "x\rÿ"]
CHINESE = ["中文文本。中文", "丂亐乗 abc", "", "第二段落", "末"]
JAPANESE = ["ソ表予 能", "日本語\\テキスト", "", "ア", "申す"]
TEXTS = {
    "latin-1": LATIN,
    "cp1252": ["“quotes” – €", *LATIN[2:]],
    "koi8-r": ["Привет мир", "", "да"],
    "gbk": CHINESE,
    "gb18030": [*CHINESE, "\U0001f600 𠀀 \u0f00"],
    "big5": ["中文文本", "功許蓋", "", "末"],
    "shift_jis": JAPANESE,
    "cp932": JAPANESE,
    "euc_jp": JAPANESE,
    "euc_kr": ["한국어 텍스트", "", "끝"],
}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_is_that_of_the_file_in_utf8(write, read, encoding: str, document: str, end: str) -> None:
    content = "".join(text + end for text in TEXTS[encoding] * 3)
    expected = read(write("u/a.txt", content), document=document)
    path = write("e/a.txt", content.encode(encoding))
    for unit_bytes in (1, 3, 1 << 20):
        actual = read(path, document=document, encoding=parse_encoding(encoding), unit_bytes=unit_bytes)
        assert actual.texts == expected.texts
        assert actual.blank == expected.blank
        assert not actual.bad


@pytest.mark.parametrize("encoding", TEXTS)
def test_jsonl_is_that_of_the_file_in_utf8(write, read, encoding: str) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS[encoding]]
    path = write("a.jsonl.gz", gzip.compress("".join(lines).encode(encoding)))
    assert read(path, encoding=encoding).texts == [text for text in TEXTS[encoding] if text]
    nested = write(
        "b.jsonl", "".join(f'{{"a": NaN, "b": {line.strip()}}}\n' for line in lines).encode(encoding)
    )
    assert read(nested, encoding=encoding, text_key="b.text").texts == [
        text for text in TEXTS[encoding] if text
    ]


@pytest.mark.parametrize(
    ("encoding", "bad_bytes"),
    [("utf-8", b"a\xffb"), ("shift_jis", b"a\x81\xffb"), ("gbk", b"\xff b"), ("cp1252", b"\x81")],
)
@pytest.mark.parametrize(
    ("name", "before", "after"), [("a.txt", b"", b""), ("a.jsonl", b'{"text": "', b'"}')]
)
def test_invalid_bytes_are_bad_or_replaced(write, read, encoding, bad_bytes, name, before, after) -> None:
    path = write(name, b"".join(before + content + after + b"\n" for content in (b"first", bad_bytes)))
    result = read(path, encoding=encoding)
    assert result.texts == ["first"]
    label = "UTF-8" if encoding == "utf-8" else encoding
    assert f"invalid {label}: byte 0x" in describe(result.units[0], result.bad[0])
    result = read(path, encoding=encoding, encoding_errors="replace")
    assert result.texts == ["first", bad_bytes.decode(encoding, "replace")]
    assert not result.bad


def test_a_line_that_ends_within_a_character_is_bad(write, read) -> None:
    result = read(write("a.txt", b"one\na\x81\ntwo\n"), encoding="gbk")
    assert result.texts == ["one", "two"]
    assert len(result.bad) == 1


def test_invalid_bytes_of_a_table_are_replaced(tmp_path, read) -> None:
    column = pa.array([b"one", b"a\xffb"]).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert read(str(tmp_path / "a.parquet"), encoding_errors="replace").texts == ["one", "a\ufffdb"]
    assert read(str(tmp_path / "a.parquet")).texts == ["one"]


@pytest.mark.parametrize(
    "name", ["utf-16", "utf-16-le", "UTF32", "utf-7", "cp500", "iso2022_jp", "hz", "unicode_escape", "idna"]
)
def test_an_encoding_without_clear_line_ends_is_refused(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"--encoding {name}: .* convert them, e.g. with iconv -f {name} -t UTF-8"
    ):
        parse_encoding(name)


@pytest.mark.parametrize("name", ["utf-9", "rot13", "base64", "", "a\0b", "../x", "mbcs"])
def test_an_unknown_encoding_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="there is no such encoding of text"):
        parse_encoding(name)


def test_names_of_one_encoding_are_equal() -> None:
    assert {parse_encoding(name) for name in ("latin-1", "ISO-8859-1", "l1")} == {"iso8859-1"}
    assert parse_encoding("UTF8") == parse_encoding("utf-8-sig") == "utf-8"
