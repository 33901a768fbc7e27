"""A tokenizer's folder (local, remote, on the hub) → files from which AutoTokenizer and the engines read the same."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence, ValuesView
from pathlib import Path
from typing import Any

from beam_pipeline import console, filesystem, parsing
from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.remote_code import config_without_code, runs_code
from beam_pipeline.tokenization.tokenizer_json import (
    LoadedTokenizer,
    load_tokenizer,
    parts_without_model,
)

JSON, CONFIG, MAP, ADDED, MODEL_CONFIG = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
TEKKEN = "tekken.json"
SPECIAL_NAMES = ("pad", "mask", "bos", "eos", "cls", "sep", "unk")

_REMEDY = "to make a tokenizer from your text, use train-tokenizer"
_SUFFIXES = (".json", ".txt", ".model", ".jinja")
_MAX_FILE_BYTES = 256 << 20
_MAX_TOKEN_CHARS = 10_000

# The class that uses tokenizer.json unchanged, and its names. Other classes may change parts of it according to their
# config (Llama's add_bos_token, BERT's do_lower_case).
_PLAIN_CLASS = "PreTrainedTokenizerFast"
_PLAIN_CLASSES = (_PLAIN_CLASS, "PreTrainedTokenizer", "TokenizersBackend")

# The usual names of special tokens, for folders that do not define their roles.
_WELL_KNOWN = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
}


def load_files(path: str) -> tuple[dict[str, bytes], list[str]]:
    """Reads a tokenizer from a folder or the hub, and makes its `tokenizer.json` the only file that determines ids.

    `AutoTokenizer` may change a `tokenizer.json` according to other files of the folder. These changes are applied
    here. Everything else, especially the vocabulary, is kept byte for byte. No code from the folder is run.

    Returns:
        The files by name, which `AutoTokenizer` loads as the same tokenizer, and notes for the user about them.

    Raises:
        UsageError: If there is no tokenizer, or it cannot be loaded.
    """
    files = _read_folder(filesystem.absolute(path))
    if not files:
        if Path(path).is_dir():
            raise UsageError(
                f"--tokenizer {path}: this folder contains no tokenizer files{_tiktoken_remedy(path)}"
            )
        files = _download(path)
    config, model_config, names = (parse_json(files, name, path) for name in (CONFIG, MODEL_CONFIG, MAP))
    _check_tokens(config, CONFIG, path)
    _check_tokens(names, MAP, path)
    named_class = config.get("tokenizer_class")
    known_class = named_class or model_config.get("tokenizer_class") or model_config.get("model_type")
    if JSON not in files and TEKKEN in files:
        raise UsageError(
            f"--tokenizer {path}: {TEKKEN} is the format of mistral_common, which transformers cannot read; use the "
            "tokenizer.json of the model's repository on the Hugging Face hub"
        )
    if JSON not in files and not known_class:
        raise UsageError(
            f"--tokenizer {path}: has no tokenizer.json, and neither tokenizer_config.json names a tokenizer_class "
            f"nor config.json a model_type, so {', '.join(sorted(files))} cannot be read; save the tokenizer with "
            "save_pretrained, or add tokenizer.json"
        )
    notes: list[str] = []
    given = _load_json(files[JSON], path) if JSON in files else None
    if given is not None:
        if not known_class:
            return _with_config(path, files, config, given)
        if runs_code(config):
            config, note = config_without_code(config, given, path)
            config["tokenizer_class"] = named_class = _PLAIN_CLASS
            config["add_prefix_space"] = _prefix_space(given.parsed)
            files = {**files, CONFIG: _dump(config)}
            notes.append(note)
        if named_class in _PLAIN_CLASSES:
            files = _with_plain_class(files, config)
            if _is_consistent(parse_json(files, CONFIG, path), files, given):
                return files, notes
    return _convert(path, files, given, custom_code="auto_map" in {**config, **model_config}), notes


def parse_json(files: Mapping[str, bytes], name: str, path: str) -> dict[str, Any]:
    """Returns the JSON object in one of the folder's files, or an empty one if the file is missing.

    Raises:
        UsageError: If the file contains anything else.
    """
    try:
        value = parsing.parse_json(files.get(name, b"{}"))
    except ValueError as error:
        raise UsageError(f"--tokenizer {path}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"--tokenizer {path}: {name} does not contain a JSON object")
    return value


def _check_tokens(config: Mapping, name: str, path: str) -> None:
    """Checks the entries of a config that name tokens, since AutoTokenizer fails on others or does not return."""
    decoder = config.get("added_tokens_decoder") or {}
    lists = {key: config.get(key) or [] for key in ("additional_special_tokens", "extra_special_tokens")}
    tokens = {f"{role}_token": [config.get(f"{role}_token")] for role in SPECIAL_NAMES}
    tokens |= {key: value.values() if isinstance(value, Mapping) else value for key, value in lists.items()}
    tokens["added_tokens_decoder"] = decoder.values() if isinstance(decoder, Mapping) else None
    for key, found in tokens.items():
        if not isinstance(found, list | ValuesView) or not all(_is_token(token) for token in found if token):
            raise UsageError(
                f"--tokenizer {path}: {key} in {name} is not a token: a text of at most {_MAX_TOKEN_CHARS:,} "
                "characters, or an object with such a content"
            )


def _is_token(token: Any) -> bool:
    text = token.get("content") if isinstance(token, Mapping) else token
    is_text = isinstance(text, str) and not any("\ud800" <= char <= "\udfff" for char in text)
    return is_text and len(text) <= _MAX_TOKEN_CHARS


def content(token: str | Mapping) -> str:
    """Returns the text of a token in a config, where it is a string or an object with flags."""
    return token["content"] if isinstance(token, Mapping) else token


def named_tokens(config: Mapping) -> list[str]:
    """Returns the special tokens that a config names, with or without a role."""
    tokens = [config.get(f"{name}_token") for name in SPECIAL_NAMES] + additional_tokens(config)
    return [content(token) for token in tokens if token]


def additional_tokens(config: Mapping) -> list[str]:
    """Returns the special tokens that a config names without one of the roles in `SPECIAL_NAMES`."""
    found = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(key) or []
        found += value.values() if isinstance(value, Mapping) else value
    return list(map(content, found))


def _read_folder(path: str) -> dict[str, bytes]:
    """Reads the files of a tokenizer's folder, but not weights and the like."""
    found = filesystem.list_files(path, recursive=False)
    kept = [file for file, size in found if file.endswith(_SUFFIXES) and size < _MAX_FILE_BYTES]
    return {file.rpartition("/")[2]: filesystem.read_bytes(file) for file in kept}


def _tiktoken_remedy(path: str) -> str:
    """Returns what to do with a folder that has only tiktoken's ranks, without pattern and special tokens."""
    name = next((file.name for file in sorted(Path(path).glob("*.tiktoken"))), None)
    if name is None:
        return ""
    return (
        f", and {name} alone does not define a tokenizer; convert its encoding with "
        "transformers.integrations.tiktoken.convert_tiktoken_to_fast"
    )


def _download(name: str) -> dict[str, bytes]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(
            name, allow_patterns=[f"*{suffix}" for suffix in _SUFFIXES], ignore_patterns="*/*"
        )
    except HFValidationError as error:  # a path, not the name of a repository
        raise UsageError(f"--tokenizer {name}: no such folder; {_REMEDY}") from error
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--tokenizer {name}: neither a folder with a tokenizer nor a repository on the hub "
            f"({_first_line(error)}); {_REMEDY}"
        ) from error
    files = _read_folder(folder)
    if not files:
        raise UsageError(f"--tokenizer {name}: this repository on the hub contains no tokenizer files")
    return files


def _load_json(data: bytes, path: str) -> LoadedTokenizer:
    try:
        return load_tokenizer(data.decode())
    except Exception as error:  # the library raises plain Exception
        raise UsageError(
            f"--tokenizer {path}: tokenizer.json cannot be loaded: {_first_line(error)}"
        ) from error


def _with_config(
    path: str, files: Mapping[str, bytes], config: Mapping, given: LoadedTokenizer
) -> tuple[dict[str, bytes], list[str]]:
    """Adds a config that makes AutoTokenizer use tokenizer.json unchanged, to a folder that names no class."""
    changed = {**config, "tokenizer_class": _PLAIN_CLASS, "add_prefix_space": _prefix_space(given.parsed)}
    changed.pop("auto_map", None)
    note = []
    if not named_tokens({**parse_json(files, MAP, path), **config}):
        added = {token["content"] for token in given.parsed["added_tokens"]}
        found = {
            name: next((token for token in tokens if token in added), None)
            for name, tokens in _WELL_KNOWN.items()
        }
        found = {name: token for name, token in found.items() if token is not None}
        changed.update({f"{name}_token": token for name, token in found.items()})
        taken = ", ".join(f"{name} {token}" for name, token in found.items()) or "none"
        note = [
            f"--tokenizer {path}: no file defines the roles of its special tokens; according to their usual names they "
            f"are: {taken}"
        ]
    data = files[JSON]
    # AutoTokenizer would add the token of a saved padding as the pad token.
    if given.parsed["padding"] or given.parsed["truncation"]:
        data = _with_model_of({**given.parsed, "padding": None, "truncation": None}, data)
    return {**files, JSON: data, CONFIG: _dump(changed)}, note


def _with_plain_class(files: Mapping[str, bytes], config: Mapping) -> dict[str, bytes]:
    """Replaces the class name of transformers 5 by the one of transformers 4."""
    if config["tokenizer_class"] != "TokenizersBackend":
        return dict(files)
    changed = {**config, "tokenizer_class": _PLAIN_CLASS}
    extra = changed.get("extra_special_tokens")
    if isinstance(extra, list):
        del changed["extra_special_tokens"]
        changed["additional_special_tokens"] = [*(changed.get("additional_special_tokens") or []), *extra]
    return {**files, CONFIG: _dump(changed)}


def _is_consistent(config: Mapping, files: Mapping[str, bytes], loaded: LoadedTokenizer) -> bool:
    """Whether AutoTokenizer uses tokenizer.json unchanged, because no other file contradicts it."""
    # Tokens that other files define must be in tokenizer.json, with the same flags.
    given = loaded.parsed
    added = {str(number): token for number, token in loaded.tokenizer.get_added_tokens_decoder().items()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        here = added.get(number)
        if here is None or here.content != content(token):
            return False
        if any(getattr(here, flag) != token.get(flag, False) for flag in flags):
            return False
    if "added_tokens_decoder" not in config and ADDED in files:
        return False
    named = named_tokens(config) + named_tokens(json.loads(files.get(MAP, b"{}")))
    if given["padding"]:
        named.append(given["padding"]["pad_token"])
    if not set(named) <= {token.content for token in added.values()}:
        return False
    # Options that replace tokenizer.json or change its pre-tokenizer.
    if any(config.get(key) for key in ("from_slow", "fast_tokenizer_files", "fix_mistral_regex")):
        return False
    here = (given["pre_tokenizer"] or {}).get("add_prefix_space")
    return here is None or here == config.get("add_prefix_space", False)


def _prefix_space(given: Mapping) -> bool:
    return bool((given["pre_tokenizer"] or {}).get("add_prefix_space", False))


def _convert(
    path: str, files: Mapping[str, bytes], given: LoadedTokenizer | None, *, custom_code: bool
) -> dict[str, bytes]:
    """Loads the files with AutoTokenizer and saves them. Keeps the vocabulary's text: saving may round its scores."""
    from transformers import AutoTokenizer

    with console.without_stdout(), tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.mkdir()
        for name, data in files.items():
            (source / name).write_bytes(data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # with broken folders, it raises exceptions of many types
            reason = f"its files ({', '.join(sorted(files))}) cannot be loaded: {_first_line(error)}"
            if custom_code:
                reason = (
                    "its class is defined by code in its repository (auto_map), which is not run; convert it to a "
                    "PreTrainedTokenizerFast with a tokenizer.json"
                )
            raise UsageError(f"--tokenizer {path}: {reason}") from error
        if not tokenizer.is_fast:
            raise UsageError(
                f"--tokenizer {path}: {type(tokenizer).__name__} has no fast version, which is required "
                "without a tokenizer.json; convert it to a fast tokenizer first"
            )
        tokenizer.save_pretrained(target)
        saved = _read_folder(str(target))
        loaded = tokenizer.backend_tokenizer
        same_model = given is not None and loaded.model.__getstate__() == given.tokenizer.model.__getstate__()
    parts = parts_without_model(loaded)
    saved = _as_plain_class(saved, parts, tokenizer.model_input_names)
    if not same_model:
        return saved
    same = all(given.parsed[key] == value for key, value in parts.items())
    return {**saved, JSON: files[JSON] if same else _with_model_of(parts, files[JSON])}


def _as_plain_class(
    files: Mapping[str, bytes], parts: Mapping, input_names: Sequence[str]
) -> dict[str, bytes]:
    """Renames the class in files that AutoTokenizer has saved, so that tokenizer.json is used unchanged.

    The plain class does so in transformers 4 and 5. Many classes of transformers 5, such as AlbertTokenizer, replace
    its normalizer, its pre-tokenizer or its template by their own.
    """
    config = json.loads(files[CONFIG])
    if config["tokenizer_class"] in _PLAIN_CLASSES:
        return dict(files)
    config["tokenizer_class"] = _PLAIN_CLASS
    config["add_prefix_space"] = _prefix_space(parts)
    config["model_input_names"] = list(input_names)
    return {**files, CONFIG: _dump(config)}


def _with_model_of(parts: Mapping, data: bytes) -> bytes:
    """Makes a tokenizer.json of `parts` and the model in the tokenizer.json `data`, whose text is copied unchanged."""
    others = json.dumps({key: value for key, value in parts.items() if key != "model"}, ensure_ascii=False)
    return f'{others[:-1]}, "model": {_member_text(data.decode(), "model")}}}'.encode()


def _member_text(text: str, key: str) -> str:
    """Returns the text of a member's value in the text of a JSON object, which must have that member."""
    decoder = json.JSONDecoder()
    after = [re.compile(rf"\s*{sign}\s*") for sign in ("{", ":", ",")]
    end = after[0].match(text).end()
    while True:
        name, end = decoder.raw_decode(text, end)
        start = after[1].match(text, end).end()
        _, end = decoder.raw_decode(text, start)
        if name == key:
            return text[start:end]
        end = after[2].match(text, end).end()


def _dump(value: Mapping) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 300 else lines[0][:300] + "…"
