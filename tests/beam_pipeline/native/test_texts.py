"""The compiled reading of UTF-8 and of JSON lines, against Python's decoder and orjson."""

import json
import random

import numpy as np
import orjson
import pytest

from beam_pipeline.native import texts
from beam_pipeline.native.library import rows_library
from beam_pipeline.native.texts import is_utf8, json_texts
from beam_pipeline.sources.lines import line_bounds

pytestmark = pytest.mark.skipif(rows_library() is None, reason="needs compiled code")

STRINGS = [
    "",
    "a",
    "\\",
    '"',
    "/",
    "\n\t\r\b\f",
    "\0\x1f\x7f",
    "é",
    "\u2028",
    "字",
    "😀",
    "a" * 40,
    "  ",
    "text",
    "{}",
]
FAULTS = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b",",
    b":",
    b"\x00",
    b"\x1f",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\u",
    b"\\ud83d",
    b"0",
    b"-",
]


def random_value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 7:
        return {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, False, rng.randrange(-5, 10**12), rng.uniform(-1e30, 1e-30), random_text(rng)][kind]


def random_text(rng: random.Random) -> str:
    return "".join(rng.choices(STRINGS, k=rng.randrange(6)))


def random_line(rng: random.Random) -> bytes:
    record = {random_text(rng): random_value(rng) for _ in range(rng.randrange(3))}
    record["text"] = random_text(rng)
    record |= {random_text(rng): random_value(rng) for _ in range(rng.randrange(3))}
    separators = rng.choice([(",", ":"), (" , ", "\t: "), (", ", ": ")])
    line = json.dumps(record, ensure_ascii=rng.random() < 0.5, separators=separators)
    return (rng.choice(["", " "]) + line + rng.choice(["", "\r", " "])).encode()


def read(lines: list[bytes], key: str = "text") -> list[str | None]:
    block = b"\n".join(lines) + b"\n"
    read_texts, is_read = json_texts(block, *line_bounds(block), key)
    return [text if known else None for text, known in zip(read_texts, is_read.tolist(), strict=True)]


def test_texts_are_those_of_orjson() -> None:
    rng = random.Random(0)
    lines = [random_line(rng) for _ in range(3000)]
    for line, text in zip(lines, read(lines), strict=True):
        expected = orjson.loads(line)["text"]
        is_hard = b"\\" in line or not isinstance(expected, str)  # a name may have a backslash
        assert text == expected or (text is None and is_hard)
    plain = [json.dumps({"id": number, "text": f"some {number} \n \u00e9"}).encode() for number in range(9)]
    assert read(plain) == [f"some {number} \n é" for number in range(9)]


def test_a_damaged_line_is_never_read_as_something_else() -> None:
    rng = random.Random(1)
    lines = []
    for _ in range(20_000):
        line = bytearray(random_line(rng))
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(line) + 1)
            line[at : at + rng.randrange(3)] = rng.choice(FAULTS)
        lines.append(bytes(line).replace(b"\n", b""))
    for line, text in zip(lines, read(lines), strict=True):
        if text is not None:  # else it is left to the parser that gives reasons
            assert json.loads(line)["text"] == text


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a"} x',
        b'{"text": "a"',
        b'{"text": "a",}',
        b'{"text": 1}',
        b'{"text": "a", "text": 1}',
        b'{"a": "b"}',
        b'{"te\\u0078t": "a"}',
        b'{"text": "a", "b": 01}',
        b'{"text": "a", "b": 1.}',
        b'{"text": "a", "b": NaN}',
        b'{"text": "a", "b": tru}',
        b'{"text": "\\ud83d"}',
        b'{"text": "\\udc00\\ud83d"}',
        b'{"text": "\\ud83dx"}',
        b'{"text": "\\x41"}',
        b'{"text": "a\x01"}',
        b'{"text": "\xc3"}',
        b'{"text": "a", "b": "\xed\xa0\x80"}',
        b'{"text": "a", "b": ' + 70 * b"[" + 70 * b"]" + b"}",
        b'["text"]',
        b"",
        b"{",
        b'{"text',
    ],
)
def test_other_lines_are_left_to_another_parser(line: bytes) -> None:
    assert read([b'{"text": "x"}', line, b'{"text": "y"}']) == ["x", None, "y"]


def test_the_last_of_equal_keys_counts() -> None:
    assert read([b'{"text": "first one", "text": "2"}']) == ["2"]
    assert read([b'{"a.b": "dotted", "text": "x"}'], key="a.b") == ["dotted"]
    assert read(['{"é": "x"}'.encode()], key="é") == ["x"]


def test_utf8_is_what_python_decodes() -> None:
    rng = random.Random(2)
    pieces = [
        *(text.encode() for text in STRINGS),
        *FAULTS,
        b"\xf4\x90\x80\x80",
        b"\xe0\x80\x80",
        b"\xc0\x80",
        b"a" * 33,
    ]
    for _ in range(20_000):
        data = b"".join(rng.choices(pieces, k=rng.randrange(8)))[: rng.randrange(1, 80)]
        try:
            data.decode()
            expected = True
        except UnicodeDecodeError:
            expected = False
        assert is_utf8(data) == expected, data


def test_without_compiled_code_another_parser_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "rows_library", lambda: None)
    assert read([b'{"text": "x"}']) == [None]
    assert is_utf8(b"ok") and not is_utf8(b"\xff")


def test_texts_of_all_sizes_are_read() -> None:
    lines = [
        json.dumps({"text": "x" * size, "n": size}).encode() for size in (0, 7, 8, 9, 15, 16, 17, 100_000)
    ]
    block = b"\n".join(lines)  # without the last line end
    read_texts, is_read = json_texts(block, *line_bounds(block), "text")
    assert is_read.all() and np.array_equal(read_texts.sizes, [0, 7, 8, 9, 15, 16, 17, 100_000])
