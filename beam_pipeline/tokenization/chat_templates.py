"""The chat templates in a tokenizer's folder: `chat_template.jinja`, or an entry of `tokenizer_config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import human_bytes
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.folder_files import CONFIG, dump_json, parse_json

FILE = "chat_template.jinja"
_KEY = "chat_template"
_MAX_BYTES = 1 << 20


def chat_templates(files: Mapping[str, bytes]) -> dict[str, str]:
    """Returns the chat templates by name, as transformers finds them. The only one is `default`.

    Raises:
        UsageError: If they are malformed.
    """
    if FILE in files:
        return {"default": _decode(files[FILE], FILE)}
    value = parse_json(files, CONFIG, FILE).get(_KEY)
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else []
    try:
        templates = {entry["name"]: entry["template"] for entry in entries}
    except (KeyError, TypeError) as error:
        raise UsageError(f"--tokenizer: {_KEY} in {CONFIG} has entries without name and template") from error
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise UsageError(f"--tokenizer: {_KEY} in {CONFIG} has entries that are no texts")
    return templates


def with_chat_template(files: Mapping[str, bytes], template: str, path: str) -> dict[str, bytes]:
    """Returns a tokenizer's files with the chat template of another file instead of its own.

    Args:
        files: The tokenizer's.
        template: The path of the template's file.
        path: The tokenizer's folder, for messages.

    Raises:
        UsageError: If there is no such file, or it is not UTF-8.
    """
    size = filesystem.size_of(template)
    if size is None:
        raise UsageError(f"--chat_template {template}: no such file")
    if size > _MAX_BYTES:
        raise UsageError(
            f"--chat_template {template}: has {human_bytes(size)}, and a template may have {human_bytes(_MAX_BYTES)}"
        )
    content = filesystem.read_bytes(template)
    _decode(content, template)
    changed = {FILE: content}
    if CONFIG in files and _KEY in parse_json(files, CONFIG, path):
        config = json.loads(files[CONFIG])
        del config[_KEY]
        changed[CONFIG] = dump_json(config)
    return {**files, **changed}


def _decode(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 (byte {error.start}); convert the chat template") from error
