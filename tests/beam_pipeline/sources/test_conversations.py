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
            {"messages": [USER], "tools": [{"name": "t"}]},
        ),
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
        ([], "expected a JSON object with messages, got a JSON list"),
        (
            {"text": "Hi"},
            "has neither messages nor conversations, nor a prompt with a completion; --messages_column",
        ),
        ({"messages": []}, "messages is empty"),
        ({"messages": "Hi"}, "messages has type str, not list of messages"),
        ({"messages": ["Hi"]}, "messages[0] has type str, not object"),
        ({"messages": [{"content": "Hi"}]}, "messages[0] has no role; its keys are ['content']"),
        (
            {"messages": [USER, {"role": "<|im_end|>", "content": ""}]},
            "messages[1].role is '<|im_end|>'; the roles",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0] has neither content nor tool_calls"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content has type int"),
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
