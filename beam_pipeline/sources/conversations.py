"""Records that are conversations → documents: JSON in one form, whatever form the records have.

A document is an object with `messages`, and perhaps `tools` and `prompt` (the number of messages before a completion).
So a conversation is a string on its way to the tokenizer, as every document is. Three forms of records are read:

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "tools": […]}
    {"prompt": "Hi", "completion": "Hello!"}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import google_crc32c
import numpy as np
import orjson

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.units import BadRecord, Records
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.texts import Texts
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.console.spelling import suggestion

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation")
"""The roles of messages. A template may write a role into a control token, so no others are allowed."""
_ROLES_BY_SENDER = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bard", "bing", "model", "bot"), "assistant"),
}
_COMPLETIONS = ("completion", "response")
_PIECE_BYTES = 4 << 20
_MOST_NUMBER = 2.0**63
_KINDS = (
    (Mapping, "an object"),
    (list, "an array"),
    (str, "a string"),
    (bool, "a boolean"),
    (int | float, "a number"),
    (type(None), "null"),
)


class _Malformed(Exception):
    """A record is no conversation. The message is the reason."""


def document_of(record: Any, column: str, *, of_table: bool = False) -> tuple[str, str | None]:
    """Returns (the record's conversation as a document, None), or ("", the reason why it is none).

    >>> document_of({"prompt": "Hi", "completion": "Hello!"}, "auto")[0]
    '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"}],"prompt":1}'

    Args:
        record: A JSON value.
        column: The key of the messages; auto: see the module.
        of_table: Whether the record is a row, in which a key that others have may be null.
    """
    try:
        if not isinstance(record, dict):
            raise _Malformed(f"expected a JSON object with messages, got {_kind(record)}")
        conversation = _conversation(record, column)
        return orjson.dumps(_checked(conversation, of_table=of_table)).decode(), None
    except _Malformed as error:
        return "", str(error)
    except (TypeError, orjson.JSONEncodeError) as error:  # half of a surrogate pair, for example
        return "", f"has a value that is no JSON: {error}"
    except RecursionError:
        return "", "its lists and objects are nested too deeply"


def message_texts(document: str) -> str:
    r"""Returns the texts of a conversation's messages, those of tools included, with line feeds between them.

    >>> message_texts('{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"}]}')
    'Hi\nHello!'
    """
    return "\n".join(text for message in orjson.loads(document)["messages"] for text in _texts_in(message))


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict):
        for key, member in value.items():
            if key not in ("role", "type"):
                yield from _texts_in(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts_in(member)


def messages_key(keys: Any, column: str) -> tuple[str, ...] | None:
    """Returns the keys that records have for messages; None if none of these `keys` are.

    >>> messages_key(["id", "response", "prompt"], "auto")
    ('prompt', 'response')
    """
    if column != "auto":
        return (column,) if column in keys else None
    for key in ("messages", "conversations"):
        if key in keys:
            return (key,)
    completion = next((key for key in _COMPLETIONS if key in keys), None)
    return ("prompt", completion) if completion and "prompt" in keys else None


def no_messages_reason(keys: list[str], column: str) -> str:
    """Describes that records with these keys have no messages."""
    if column != "auto":
        wanted = f"no key {column!r} (set by --messages_column)"
    else:
        wanted = "neither messages nor conversations, nor a prompt with a completion; --messages_column names another"
    return f"{wanted}; the keys are {keys[:20]}{suggestion(column, keys)}"


def _conversation(record: Mapping[str, Any], column: str) -> dict[str, Any]:
    # What is null in a table may be missing in the record.
    keys = messages_key([key for key, value in record.items() if value is not None], column)
    if keys is None:
        empty = next((key for key in ("messages", "conversations", column) if key in record), None)
        if empty is not None:
            raise _Malformed(f"{empty} is null")
        raise _Malformed(f"has {no_messages_reason(sorted(map(str, record)), column)}")
    conversation: dict[str, Any] = {}
    if len(keys) == 1:
        conversation["messages"] = _messages(record[keys[0]], keys[0], "user")
    else:
        prompt = _messages(record[keys[0]], keys[0], "user")
        conversation["messages"] = [*prompt, *_messages(record[keys[1]], keys[1], "assistant")]
        conversation["prompt"] = len(prompt)
    system = record.get("system") or ""
    if not isinstance(system, str):
        raise _Malformed(f"system is {_kind(system)}, not a string")
    if system.strip() and conversation["messages"][0]["role"] != "system":
        conversation["messages"].insert(0, {"role": "system", "content": system})
        if "prompt" in conversation:
            conversation["prompt"] += 1
    tools = record.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = orjson.loads(tools)
        except orjson.JSONDecodeError as error:
            raise _Malformed(f"tools is a string that is no JSON: {error}") from error
    if tools:
        if not isinstance(tools, list):
            raise _Malformed(f"tools is {_kind(tools)}, not an array")
        conversation["tools"] = tools
    return conversation


def _messages(value: Any, key: str, role: str) -> list[dict[str, Any]]:
    """Returns the messages of a record's value: a list of them, or the text of a single one with this role."""
    if isinstance(value, str):
        if key in ("prompt", *_COMPLETIONS):
            return [{"role": role, "content": value}]
        try:
            value = orjson.loads(value)  # as tables may have them
        except orjson.JSONDecodeError as error:
            raise _Malformed(f"{key} is a string that is no JSON: {error}") from error
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list) or not value:
        raise _Malformed(
            f"{key} is empty" if value == [] else f"{key} is {_kind(value)}, not an array of messages"
        )
    return [_message(message, f"{key}[{number}]") for number, message in enumerate(value)]


def _message(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Malformed(f"{place} is {_kind(value)}, not an object")
    message = {key: item for key, item in value.items() if item is not None}
    if "role" not in message and "from" in message:
        sender = message.pop("from")
        if "value" not in message:
            raise _Malformed(f"{place} has no value; its keys are {sorted(map(str, value))[:10]}")
        message = {"role": _role(sender, f"{place}.from"), "content": message.pop("value"), **message}
    elif "role" in message:
        message["role"] = _role(message["role"], f"{place}.role")
    else:
        raise _Malformed(f"{place} has no role; its keys are {sorted(map(str, message))[:10]}")
    content = message.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            _check_part(part, f"{place}.content[{number}]")
    elif content is not None and not isinstance(content, str):
        raise _Malformed(f"{place}.content is {_kind(content)}, not a string or an array of parts")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise _Malformed(f"{place}.tool_calls is not a list of objects")
    if content is None and not any(message.get(key) for key in ("tool_calls", "function_call")):
        raise _Malformed(f"{place} has neither content nor tool_calls")
    if message.get("weight", 1) not in (0, 1):
        raise _Malformed(f"{place}.weight is {excerpt(repr(message['weight']), 80)}, neither 0 nor 1")
    return message


def _role(value: Any, place: str) -> str:
    role = _ROLES_BY_SENDER.get(value) if isinstance(value, str) else None
    if role is None:
        meant = suggestion(value.lower(), _ROLES_BY_SENDER) if isinstance(value, str) else ""
        raise _Malformed(
            f"{place} is {excerpt(repr(value), 80)}; the roles are {', '.join(_ROLES_BY_SENDER)}{meant}"
        )
    return role


def _check_part(part: Any, place: str) -> None:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str) or part.get("type") != "text":
        kind = (
            f"a part of type {excerpt(repr(part.get('type')), 80)}" if isinstance(part, dict) else _kind(part)
        )
        raise _Malformed(f"{place} is {kind}; only text can be trained: {{'type': 'text', 'text': …}}")


def _checked(value: Any, *, of_table: bool) -> Any:
    """Returns a JSON value. In objects of a table, keys that others have are null, so those are left out."""
    if isinstance(value, Mapping):
        return {
            str(key): _checked(item, of_table=of_table)
            for key, item in value.items()
            if not (of_table and item is None)
        }
    if isinstance(value, list):
        return [_checked(item, of_table=of_table) for item in value]
    if isinstance(value, float) and not abs(value) < _MOST_NUMBER:
        raise _Malformed(f"has the number {value:g}, which is not finite, or has more than 64 bits")
    return value


def _kind(value: Any) -> str:
    """Returns the type of a JSON value, with an article."""
    return next((kind for types, kind in _KINDS if isinstance(value, types)), type(value).__name__)


def columns_of(source: str, schema: pa.Schema, options: InputConfig) -> list[str]:
    """Returns the columns of a table that conversations are in.

    Raises:
        UsageError: If there are none.
    """
    keys = messages_key(schema.names, options.messages_column)
    if keys is None:
        raise UsageError(f"{source}: has {no_messages_reason(schema.names, options.messages_column)}")
    return [*keys, *(name for name in ("tools", "system") if name in schema.names)]


def table_records(
    name: str, batch: pa.RecordBatch, first_row: int, options: InputConfig
) -> Iterator[Records]:
    """Yields the conversations of a table's rows, a few MiB at a time.

    Args:
        name: The file's path below the root.
        batch: The columns that `columns_of` returns.
        first_row: The number of the batch's first row.
        options: The key is `messages_column`.
    """
    rows = max(1, _PIECE_BYTES * len(batch) // max(1, batch.nbytes))
    for start in range(0, len(batch), rows):
        texts, places, bad_records = [], [], []
        crc = 0
        for place, record in enumerate(batch.slice(start, rows).to_pylist(), first_row + start):
            document, reason = document_of(record, options.messages_column, of_table=True)
            if reason is None:
                texts.append(document)
                places.append(place)
                content = document.encode()
            else:
                content = repr(record).encode(errors="backslashreplace")
                bad_records.append(BadRecord(name, place, reason, content))
            crc = google_crc32c.extend(crc, content + b"\n")
        yield Records(Texts.of(texts), np.array(places, np.int64), bad_records, crc)
