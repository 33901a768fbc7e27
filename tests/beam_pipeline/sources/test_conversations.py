"""Records in any form → conversations, and the reasons of those that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources.conversations import document_of

SYSTEM = {"role": "system", "content": "Be brief."}
USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}


@pytest.mark.parametrize(
    ("record", "column", "expected"),
    [
        ({"messages": [USER, ASSISTANT], "id": 1}, "auto", {"messages": [USER, ASSISTANT]}),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]},
            "auto",
            {"messages": [USER, ASSISTANT]},
        ),
        ({"prompt": "Hi", "response": "Hello!"}, "auto", {"messages": [USER, ASSISTANT], "prompt": 1}),
        ({"prompt": [USER], "completion": [ASSISTANT]}, "auto", {"messages": [USER, ASSISTANT], "prompt": 1}),
        ({"chat": [USER], "messages": []}, "chat", {"messages": [USER]}),
        (
            {"messages": [{**USER, "name": None}], "tools": '[{"name": "t", "x": null}]'},
            "auto",
            {"messages": [USER], "tools": [{"name": "t", "x": None}]},
        ),
        ({"messages": json.dumps([USER, ASSISTANT])}, "auto", {"messages": [USER, ASSISTANT]}),
        ({"messages": [USER], "system": "Be brief."}, "auto", {"messages": [SYSTEM, USER]}),
        ({"messages": [SYSTEM, USER], "system": "Other"}, "auto", {"messages": [SYSTEM, USER]}),
        (
            {"prompt": "Hi", "completion": "Hello!", "system": "Be brief."},
            "auto",
            {"messages": [SYSTEM, USER, ASSISTANT], "prompt": 2},
        ),
        ({"messages": [{**USER, "weight": 0}]}, "auto", {"messages": [{**USER, "weight": 0}]}),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            "auto",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        ),
    ],
)
def test_records_of_any_form_become_conversations(record: Any, column: str, expected: Any) -> None:
    document, reason = document_of(record, column)
    assert reason is None
    assert orjson.loads(document) == expected


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ([], "expected a JSON object with messages, got an array"),
        (
            {"text": "Hi"},
            "has neither messages nor conversations, nor a prompt with a completion; --messages_column",
        ),
        ({"messages": []}, "messages is empty"),
        ({"messages": None}, "messages is null"),
        ({"messages": {}}, "messages[0] has no role"),
        ({"messages": [USER], "system": ["x"]}, "system is an array, not a string"),
        ({"messages": "5"}, "messages is a number, not an array of messages"),
        ({"messages": [{**USER, "role": "User"}]}, "did you mean user?"),
        ({"messages": [{**USER, "weight": 0.5}]}, "messages[0].weight is 0.5, neither 0 nor 1"),
        ({"conversations": [{"from": "human", "text": "Hi"}]}, "conversations[0] has no value"),
        ({"messages": [{**USER, "n": float("nan")}]}, "has the number nan, which is not finite"),
        ({"messages": [{**USER, "n": 10**30}]}, "has a value that is no JSON"),
        (
            {"messages": [{**USER, "n": 1e30}]},
            "has the number 1e+30, which is not finite, or has more than 64",
        ),
        ({"messages": "Hi"}, "messages is a string that is no JSON"),
        ({"messages": ["Hi"]}, "messages[0] is a string, not an object"),
        ({"messages": [{"content": "Hi"}]}, "messages[0] has no role; its keys are ['content']"),
        (
            {"messages": [USER, {"role": "<|im_end|>", "content": ""}]},
            "messages[1].role is '<|im_end|>'; the roles",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0] has neither content nor tool_calls"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content is a number, not a string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
            "messages[0].content[0] is a part of type 'image'; only text can be trained",
        ),
        ({"messages": [{**USER, "tool_calls": "x"}]}, "messages[0].tool_calls is not a list of objects"),
        ({"messages": [USER], "tools": "x"}, "tools is a string that is no JSON"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "has a value that is no JSON"),
    ],
)
def test_malformed_records_have_a_reason(record: Any, reason: str) -> None:
    document, actual = document_of(record, "auto")
    assert document == ""
    assert actual is not None and reason in actual


def test_only_a_tables_nulls_are_left_out() -> None:
    call = {"function": {"name": "f", "arguments": {"city": "Paris", "unit": None}}}
    record = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    [message] = orjson.loads(document_of(record, "auto")[0])["messages"]
    assert message == {"role": "assistant", "tool_calls": [call]}
    [message] = orjson.loads(document_of(record, "auto", of_table=True)[0])["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_jsonl_and_parquet_give_the_same_conversations(suffix: str, tmp_path: Path, read: Any) -> None:
    records = [{"messages": [USER, {**ASSISTANT, "content": f"{number}"}]} for number in range(300)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=70)
    documents = read(str(path), content="conversation", unit_bytes=2000).texts
    assert [orjson.loads(document) for document in documents] == records
