from __future__ import annotations

import json

import pytest

from beam_pipeline.sources.reading import describe


def test_documents_with_their_places(write, read) -> None:
    texts = ["one", "two\nlines", "zwölf \0 日本", " ", "", "last"]
    lines = [
        json.dumps({"id": index, "text": text}, ensure_ascii=index % 2 == 0)
        for index, text in enumerate(texts)
    ]
    content = "\r\n".join([lines[0], "", *lines[1:]])
    for unit_bytes in (1, 7, 50, 1 << 20):
        result = read(write("a.jsonl", "\ufeff" + content), unit_bytes=unit_bytes)
        assert result.texts == ["one", "two\nlines", "zwölf \0 日本", "last"]
        assert result.documents[0][1] == 3
        assert result.documents[1][1] == 3 + len(lines[0]) + 4
        assert result.blank == 3
        assert not result.bad


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "broken JSON ("),
        (b"text", "broken JSON ("),
        (b'{"text": "a"} {"text": "b"}', "broken JSON ("),
        (b'{"text": NaN}', "the value of 'text' has type float, not string"),
        (b'{"text": 123456789012345678901234567890}', "the value of 'text' has type float, not string"),
        (
            b'{"text": "a\\ud800"}',
            r"the value of 'text' has \ud800, half of a surrogate pair, which is no character",
        ),
        (
            b'{"text": "a"}\r{"text": "b"}',
            "broken JSON (unexpected content after document: line 1 column 15 (char 14)); it ",
        ),
        (b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "broken JSON ("),
        (b'{"text": "\xff"}', "invalid UTF-8: byte 0xff at column 11"),
        (b'["a"]', "expected a JSON object with the key 'text', got a JSON list"),
        (b"3", "expected a JSON object with the key 'text', got a JSON int"),
        (b'{"Text": "a", "id": 1}', "no key 'text' (set by --text_key); the keys are ['Text', 'id']"),
        (b'{"text": null}', "the value of 'text' has type NoneType, not string"),
        (b'{"text": ["a", 1]}', "the value of 'text' is a list of other things than strings"),
    ],
)
def test_a_bad_line_is_named(write, read, line: bytes, reason: str) -> None:
    path = write("a.jsonl", b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    result = read(path)
    assert result.texts == ["one", "two"]
    (bad_record,) = result.bad
    assert (bad_record.name, bad_record.place, bad_record.content) == ("a.jsonl", 16, line)
    assert describe(result.units[0], bad_record).startswith(f"{path}, line 2 (byte 16): {reason}")


@pytest.mark.parametrize(
    "value",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        '"\\ud800"',
        '"\\udc00a"',
        "9" * 30,
        "9" * 5000,
        "1e999",
        "-1e400000",
        "[" * 400 + "]" * 400,
    ],
)
def test_what_pythons_json_accepts_is_read(write, read, value: str) -> None:
    lines = [
        '{"text": "one"}',
        f'{{"x": {value}, "text": "zwölf"}}',
        '{"text": "two"}',
        f'{{"{value[1:7]}": 1, "text": "three"}}',
    ]
    result = read(write("a.jsonl", "\n".join(lines)))
    assert result.texts == ["one", "zwölf", "two", "three"]
    assert not result.bad


def test_text_key(write, read) -> None:
    path = write("a.ndjson", b'{"body": "one", "text": 3}\n')
    assert read(path, text_key="body").texts == ["one"]


def test_the_format_goes_by_the_extension_unless_it_is_named(write, read) -> None:
    line = '{"text": "one"}'
    for name in ("a.jsonl", "a.ndjson", "a.json", "a.JSONL"):
        assert read(write(name, line)).texts == ["one"]
        assert read(write(name, line), input_format="text").texts == [line]
    assert read(write("a.data", line)).texts == [line]
    assert read(write("a.data", line), input_format="jsonl").texts == ["one"]
