"""A tokenizer's folder (local, remote, or the hub's) → the files that AutoTokenizer and the engines read alike."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from beam_pipeline import filesystem, parsing
from beam_pipeline.errors import UsageError

JSON, CONFIG, MAP, ADDED, MODEL_CONFIG = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
SPECIAL_NAMES = ("pad", "mask", "bos", "eos", "cls", "sep", "unk")

_SUFFIXES = (".json", ".txt", ".model", ".jinja")
_MOST_BYTES = 256 << 20

# The class that takes tokenizer.json as it is, by its names. Others may rewrite its parts from their config as they
# load (Llama's add_bos_token, BERT's do_lower_case).
_PLAIN_CLASS = "PreTrainedTokenizerFast"
_PLAIN_CLASSES = (_PLAIN_CLASS, "PreTrainedTokenizer", "TokenizersBackend")

# What special tokens are called if no file names them.
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
    """Reads a tokenizer's folder, or downloads it from the hub, and makes its `tokenizer.json` all that decides ids.

    `AutoTokenizer` may change a `tokenizer.json` by the folder's other files. These changes are made here; everything
    else, the vocabulary above all, is kept byte by byte. No code from the folder is run.

    Returns:
      The files by name, which `AutoTokenizer` loads as the same tokenizer; and what a user should know about them.

    Raises:
      UsageError: there is no tokenizer, or it cannot be loaded.
    """
    files = _read_folder(filesystem.absolute(path))
    if not files:
        if Path(path).is_dir():
            raise UsageError(f"--tokenizer {path}: none of a tokenizer's files is in this folder")
        files = _download(path)
    config, model_config = (parse_json(files, name, path) for name in (CONFIG, MODEL_CONFIG))
    named_class = config.get("tokenizer_class")
    known_class = named_class or model_config.get("tokenizer_class") or model_config.get("model_type")
    if JSON not in files and not known_class:
        raise UsageError(
            f"--tokenizer {path}: it has no tokenizer.json, and neither tokenizer_config.json names a tokenizer_class "
            f"nor config.json a model_type, so {', '.join(sorted(files))} cannot be read; save the tokenizer with "
            "save_pretrained, or add tokenizer.json"
        )
    if JSON in files:
        given = _load_json(files[JSON], path)
        if not known_class:
            return _complete(path, files, config, given)
        if named_class in _PLAIN_CLASSES:
            files = _with_plain_class(files, config)
            if _agrees(parse_json(files, CONFIG, path), files, given):
                return files, []
    return _through_transformers(path, files, custom_code="auto_map" in {**config, **model_config}), []


def parse_json(files: Mapping[str, bytes], name: str, path: str) -> dict[str, Any]:
    """The object in one of the folder's files; an empty one if the file is missing.

    Raises:
      UsageError: the file holds something else.
    """
    try:
        value = parsing.parse_json(files.get(name, b"{}"))
    except ValueError as error:
        raise UsageError(f"--tokenizer {path}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"--tokenizer {path}: {name} holds no JSON object")
    return value


def content(token: str | Mapping) -> str:
    """The text of a token in a config: a string, or an object with flags."""
    return token["content"] if isinstance(token, Mapping) else token


def named_tokens(config: Mapping) -> list[str]:
    """The special tokens that a config names, those without a role included."""
    tokens = [config.get(f"{name}_token") for name in SPECIAL_NAMES] + additional_tokens(config)
    return [content(token) for token in tokens if token]


def additional_tokens(config: Mapping) -> list[str]:
    """The special tokens that a config names without one of the roles in `SPECIAL_NAMES`."""
    found = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(key) or []
        found += value.values() if isinstance(value, Mapping) else value
    return list(map(content, found))


def _read_folder(path: str) -> dict[str, bytes]:
    """The files a tokenizer's folder holds (weights and the like are left where they are)."""
    found = filesystem.list_files(path, recursive=False)
    kept = [file for file, size in found if file.endswith(_SUFFIXES) and size < _MOST_BYTES]
    return {file.rpartition("/")[2]: filesystem.read_bytes(file) for file in kept}


def _download(name: str) -> dict[str, bytes]:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=[f"*{suffix}" for suffix in _SUFFIXES], ignore_patterns="*/*"
        )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--tokenizer {name}: neither a folder with a tokenizer nor one the hub has: {_first_line(error)}"
        ) from error
    files = _read_folder(folder)
    if not files:
        raise UsageError(f"--tokenizer {name}: none of a tokenizer's files is in this repository of the hub")
    return files


def _load_json(data: bytes, path: str) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exception
        raise UsageError(
            f"--tokenizer {path}: tokenizer.json cannot be loaded: {_first_line(error)}"
        ) from error


def _complete(
    path: str, files: Mapping[str, bytes], config: Mapping, tokenizer: Tokenizer
) -> tuple[dict[str, bytes], list[str]]:
    """A folder without a class: its tokenizer.json as it is, and a config that changes nothing of it."""
    given = json.loads(files[JSON])
    changed = {**config, "tokenizer_class": _PLAIN_CLASS, "add_prefix_space": _prefix_space(given)}
    changed.pop("auto_map", None)
    note = []
    if not named_tokens({**parse_json(files, MAP, path), **config}):
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        found = {
            name: next((token for token in tokens if token in added), None)
            for name, tokens in _WELL_KNOWN.items()
        }
        found = {name: token for name, token in found.items() if token is not None}
        changed.update({f"{name}_token": token for name, token in found.items()})
        taken = ", ".join(f"{name} {token}" for name, token in found.items()) or "none"
        note = [
            f"--tokenizer {path}: no file names the roles of its special tokens; by their usual names they are: {taken}"
        ]
    data = files[JSON]
    if given.get("padding") or given.get("truncation"):  # AutoTokenizer would add the token that pads
        kept = {key: value for key, value in given.items() if key not in ("padding", "truncation")}
        data = _with_model_of(kept, data)
    return {**files, JSON: data, CONFIG: _dump(changed)}, note


def _with_plain_class(files: Mapping[str, bytes], config: Mapping) -> dict[str, bytes]:
    """The files, with the name that transformers 4 has for the class."""
    if config["tokenizer_class"] != "TokenizersBackend":
        return dict(files)
    changed = {**config, "tokenizer_class": _PLAIN_CLASS}
    extra = changed.get("extra_special_tokens")
    if isinstance(extra, list):
        del changed["extra_special_tokens"]
        changed["additional_special_tokens"] = [*(changed.get("additional_special_tokens") or []), *extra]
    return {**files, CONFIG: _dump(changed)}


def _agrees(config: Mapping, files: Mapping[str, bytes], tokenizer: Tokenizer) -> bool:
    """Whether AutoTokenizer takes tokenizer.json as it is: what it would change is in no other file."""
    given = json.loads(files[JSON])
    added = {str(number): token for number, token in tokenizer.get_added_tokens_decoder().items()}
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
    if given.get("padding"):
        named.append(given["padding"]["pad_token"])
    if not set(named) <= {token.content for token in added.values()}:
        return False
    if any(config.get(key) for key in ("from_slow", "fast_tokenizer_files", "fix_mistral_regex")):
        return False
    here = (given.get("pre_tokenizer") or {}).get("add_prefix_space")
    return here is None or here == config.get("add_prefix_space", False)


def _prefix_space(given: Mapping) -> bool:
    return bool((given.get("pre_tokenizer") or {}).get("add_prefix_space", False))


def _through_transformers(path: str, files: Mapping[str, bytes], *, custom_code: bool) -> dict[str, bytes]:
    """The files as AutoTokenizer saves them, but with the vocabulary's very text: saving may round its scores."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.mkdir()
        for name, data in files.items():
            (source / name).write_bytes(data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # broken folders make it raise whatever its classes meet
            reason = f"its files ({', '.join(sorted(files))}) cannot be loaded: {_first_line(error)}"
            if custom_code:
                reason = (
                    "its class is code in its own repository (auto_map), which is not run; convert it to a "
                    "PreTrainedTokenizerFast with a tokenizer.json"
                )
            raise UsageError(f"--tokenizer {path}: {reason}") from error
        if not tokenizer.is_fast:
            raise UsageError(
                f"--tokenizer {path}: {type(tokenizer).__name__} has no fast version, and without a "
                "tokenizer.json there is nothing that runs at speed; convert it first"
            )
        tokenizer.save_pretrained(target)
        saved = _as_plain_class(_read_folder(str(target)), tokenizer.model_input_names)
    if JSON not in files:
        return saved
    changed, given = json.loads(saved[JSON]), json.loads(Tokenizer.from_buffer(files[JSON]).to_str())
    if changed == given:
        return {**saved, JSON: files[JSON]}
    if changed["model"] != given["model"]:
        return saved
    del changed["model"]
    return {**saved, JSON: _with_model_of(changed, files[JSON])}


def _as_plain_class(files: Mapping[str, bytes], input_names: Sequence[str]) -> dict[str, bytes]:
    """The files that AutoTokenizer has saved, named so that transformers 4 and 5 take tokenizer.json as it is.

    Many classes of transformers 5, such as AlbertTokenizer, replace its normalizer, its pre-tokenizer or its template
    by their own.
    """
    config = json.loads(files[CONFIG])
    if config["tokenizer_class"] in _PLAIN_CLASSES:
        return dict(files)
    config["tokenizer_class"] = _PLAIN_CLASS
    config["add_prefix_space"] = _prefix_space(json.loads(files[JSON]))
    config["model_input_names"] = list(input_names)
    return {**files, CONFIG: _dump(config)}


def _with_model_of(parts: Mapping, data: bytes) -> bytes:
    """A tokenizer.json of these parts and the model of another, whose text is copied as it is."""
    others = json.dumps({key: value for key, value in parts.items() if key != "model"}, ensure_ascii=False)
    return f'{others[:-1]}, "model": {_member(data.decode(), "model")}}}'.encode()


def _member(text: str, key: str) -> str:
    """The text of a member's value in the text of a JSON object that has it."""
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
