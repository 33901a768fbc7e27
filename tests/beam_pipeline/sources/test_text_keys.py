"""`--text_key`: nested keys, several keys and lists of strings give the same texts from JSON lines and tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.support.errors import UsageError

RECORDS = [
    {
        "title": f"title {number}" if number % 3 else None,
        "text": "same text" if number % 2 else "",
        "data": {"text": f"inner {number}", "deep": {"list": ["one", f"zwölf {number}"]}},
        "list": [f"line {number}", "last"] if number % 5 else [],
        "data.deep": f"literal {number}",
        "a,b": f"comma {number}",
    }
    for number in range(20)
]

JOINED = ["\n".join(filter(None, (each["title"], each["text"]))) for each in RECORDS]
KEYS = {
    "data.text": [each["data"]["text"] for each in RECORDS],
    "data.deep": [each["data.deep"] for each in RECORDS],
    "data.deep.list": ["\n".join(each["data"]["deep"]["list"]) for each in RECORDS],
    "list": ["\n".join(each["list"]) for each in RECORDS],
    "a,b": [each["a,b"] for each in RECORDS],
    "title,text": JOINED,
    "title,data.text,list": [
        "\n".join(filter(None, (each["title"], each["data"]["text"], *each["list"]))) for each in RECORDS
    ],
}


@pytest.fixture(params=["jsonl", "parquet"])
def path(request, tmp_path: Path) -> str:
    path = tmp_path / f"a.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    else:
        pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=7)
    return str(path)


@pytest.mark.parametrize("key", KEYS)
def test_the_texts_are_found_and_joined(path: str, read, key: str) -> None:
    result = read(path, text_key=key)
    assert result.texts == [text for text in KEYS[key] if text]
    assert result.blank == KEYS[key].count("")
    assert not result.bad


def test_a_record_without_any_of_several_keys_is_bad(path: str, read) -> None:
    if path.endswith(".parquet"):
        pq.write_table(pa.table({"a": [None, "x", ""], "b": pa.array([None, None, None], pa.string())}), path)
    else:
        Path(path).write_text('{"a": null}\n{"a": "x", "b": null}\n{"a": ""}\n')
    result = read(path, text_key="a,b")
    assert (result.texts, result.blank, len(result.bad)) == (["x"], 1, 1)


def test_the_separator(path: str, read) -> None:
    expected = [text.replace("\n", " | ") for text in JOINED if text]
    assert read(path, text_key="title,text", text_separator=" | ").texts == expected


@pytest.mark.parametrize("key", ["data.nothing", "data", "nothing", "text.inner", "nothing,text"])
def test_a_wrong_key_is_named(path: str, read, key: str) -> None:
    if path.endswith(".parquet") or key in ("data.nothing", "nothing", "text.inner"):
        with pytest.raises(UsageError, match=r"set by --text_key"):
            read(path, text_key=key)
    elif key != "nothing,text":  # a record may lack one of several keys
        result = read(path, text_key=key)
        assert not result.texts
        assert len(result.bad) == len(RECORDS)
        assert f"'{key}'" in result.bad[0].reason
