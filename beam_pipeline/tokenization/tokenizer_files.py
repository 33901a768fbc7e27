"""A tokenizer's folder (local, remote, on the hub) → files from which AutoTokenizer and the engines read the same."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from beam_pipeline import console
from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.folder_files import (
    ADDED,
    CONFIG,
    JSON,
    MAP,
    MODEL_CONFIG,
    TEKKEN,
    find_files,
    first_line,
    parse_json,
    read_folder,
)
from beam_pipeline.tokenization.remote_code import config_without_code, runs_code
from beam_pipeline.tokenization.token_configs import check_tokens, content, named_tokens
from beam_pipeline.tokenization.tokenizer_json import (
    LoadedTokenizer,
    load_tokenizer,
    parts_without_model,
)

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
    files = find_files(path)
    config, model_config, names = (parse_json(files, name, path) for name in (CONFIG, MODEL_CONFIG, MAP))
    check_tokens(config, CONFIG, path)
    check_tokens(names, MAP, path)
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


def _load_json(data: bytes, path: str) -> LoadedTokenizer:
    try:
        return load_tokenizer(data.decode())
    except Exception as error:  # the library raises plain Exception
        raise UsageError(
            f"--tokenizer {path}: tokenizer.json cannot be loaded: {first_line(error)}"
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
            reason = f"its files ({', '.join(sorted(files))}) cannot be loaded: {first_line(error)}"
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
        saved = read_folder(str(target))
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
