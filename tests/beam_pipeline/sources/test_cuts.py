"""Wherever a file is cut into byte ranges, the ranges together have the documents of the whole file."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

BOM = b"\xef\xbb\xbf"

lines = st.sampled_from([b"", b"a", b"bc d", b" ", b"\t\r", "é日".encode(), b"x" * 9, BOM, b"\r"])
contents = st.tuples(
    st.sampled_from([b"", BOM, BOM + b"\n", b"\n", b"\r\n"]),
    st.lists(lines, max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
).map(lambda drawn: drawn[0] + drawn[2].join(drawn[1]))


def expected(content: bytes, document: str) -> list[str]:
    """Returns the documents of a text file, by a simple implementation."""
    text = content.removeprefix(BOM).decode().replace("\r\n", "\n")
    if document == "file":
        result = [text.removesuffix("\r")]
    elif document == "line":
        result = [line.removesuffix("\r") for line in text.split("\n")]
    else:
        result = [""]
        for line in text.split("\n"):
            if line.strip(" \t\r\f\v"):
                result[-1] += ("\n" if result[-1] else "") + line
            else:
                result.append("")
        result = [paragraph.removesuffix("\r") for paragraph in result]
    return [text for text in result if text and not text.isspace()]


@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(content=contents)
@example(content=BOM + b"one\ntwo\n\nthree")
@example(content=BOM + b"\none")
@example(content=BOM)
def test_text_gives_the_same_documents_at_every_cut(write, read, content: bytes, document: str) -> None:
    path = write("a.txt", content)
    uncut = read(path, document=document)
    assert uncut.texts == expected(content, document)
    for unit_bytes in range(1, 9):
        cut = read(path, document=document, unit_bytes=unit_bytes)
        assert (cut.documents, cut.blank) == (uncut.documents, uncut.blank)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    head=st.sampled_from([b"", BOM, BOM + b"\n", b"\n"]),
    texts=st.lists(st.text("aé日\n", max_size=4), max_size=3),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_jsonl_gives_the_same_documents_at_every_cut(write, read, head: bytes, texts, end: str) -> None:
    records = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path = write("a.jsonl", head + end.join(records).encode())
    uncut = read(path)
    assert uncut.texts == [text for text in texts if text and not text.isspace()]
    for unit_bytes in range(1, 9):
        cut = read(path, unit_bytes=unit_bytes)
        assert (cut.documents, cut.blank, cut.bad) == (uncut.documents, uncut.blank, [])
