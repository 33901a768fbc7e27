"""A tokenizer's folder (local, remote, on the hub) → files that give AutoTokenizer and the engines the same ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.conversion import convert, converter
from beam_pipeline.tokenization.folder_files import (
    CONFIG,
    JSON,
    MAP,
    MODEL_CONFIG,
    TEKKEN,
    dump_json,
    find_files,
    first_line,
    parse_json,
)
from beam_pipeline.tokenization.remote_code import config_without_code, runs_code
from beam_pipeline.tokenization.tokenizer_config import (
    PLAIN_CLASSES,
    as_plain_class,
    check_tokens,
    in_version_4,
    is_consistent,
    is_of_version_5,
    named_tokens,
)
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer, dump_with_model, load_tokenizer

# The usual names of special tokens, for folders that do not define their roles.
_USUAL_TOKENS = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
}


# The options of transformers' classes that are paths of files.
_PATHS = re.compile(r".*_file|(source|target)_spm|vocab")


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer that AutoTokenizer loads with `tokenizer.json` unchanged."""

    files: Mapping[str, bytes]
    """The content of each file by its name."""
    notes: list[str]
    """Messages for the user about the files."""
    converted_by: str | None = None
    """The library that made `tokenizer.json`, and its version; None if the folder's own is used."""


def load_files(path: str) -> TokenizerFiles:
    """Reads a tokenizer from a folder or the hub, and makes its `tokenizer.json` the only file that determines ids.

    `AutoTokenizer` may change a `tokenizer.json` according to other files of the folder. These changes are applied
    here. Everything else, especially the vocabulary, is kept byte for byte. No code from the folder is run.

    Raises:
        UsageError: If there is no tokenizer, or it cannot be loaded.
    """
    files = find_files(path)
    original = _load_json(files[JSON], path) if JSON in files else None
    files = _with_clean_configs(files, original, path)
    config, model_config = (parse_json(files, name, path) for name in (CONFIG, MODEL_CONFIG))
    named_class = config.get("tokenizer_class")
    known_class = named_class or model_config.get("tokenizer_class") or model_config.get("model_type")
    if original is None:
        _check_readable(files, known_class, path)
    elif not known_class:
        return _without_model_config(_with_config(path, files, config, original))
    notes: list[str] = []
    if original is not None and runs_code(config):
        config, note = config_without_code(config, original, path)
        config = as_plain_class(config, original.parsed)
        named_class = config["tokenizer_class"]
        files = {**files, CONFIG: dump_json(config)}
        notes.append(note)
    if original is not None and named_class in PLAIN_CLASSES and is_consistent(config, files, original):
        return _without_model_config(TokenizerFiles(files, notes))
    code = "auto_map" in {**config, **model_config}
    converted = convert(path, files, original, named_class=named_class, code=code)
    unchanged = converted[JSON] == files.get(JSON)
    return TokenizerFiles(converted, notes, None if unchanged else converter())


def _load_json(data: bytes, path: str) -> LoadedTokenizer:
    try:
        return load_tokenizer(data.decode())
    except Exception as error:  # the library raises plain Exception
        raise UsageError(
            f"--tokenizer {path}: tokenizer.json cannot be loaded: {first_line(error)}"
        ) from error


def _with_clean_configs(
    files: Mapping[str, bytes], original: LoadedTokenizer | None, path: str
) -> dict[str, bytes]:
    """Removes paths of files from the configs, and entries that only transformers 5 reads.

    AutoTokenizer prefers a path in a config, such as `vocab_file`, to the file in the folder. It would fail on other
    machines, and could lead to any file of this one.

    Transformers 5 reads the `tokenizer.json` of a folder that it has written as it is, so 4 must not change it either.
    """
    changed = dict(files)
    for name in (CONFIG, MAP):
        config = parse_json(files, name, path)
        check_tokens(config, name, path)
        cleaned = {key: value for key, value in config.items() if not _is_path(key, value)}
        if is_of_version_5(config):
            cleaned = in_version_4(cleaned)
            if name == CONFIG and original is not None and "auto_map" not in cleaned:
                cleaned = as_plain_class(cleaned, original.parsed)
        if cleaned != config:
            changed[name] = dump_json(cleaned)
    return changed


def _is_path(key: str, value: Any) -> bool:
    if key == "fast_tokenizer_files":  # names of files of the folder, for ranges of releases
        return "/" in str(value)
    is_vocabulary = key == "vocab" and isinstance(value, Mapping)
    return bool(_PATHS.fullmatch(key)) and not is_vocabulary


def _check_readable(files: Mapping[str, bytes], known_class: str | None, path: str) -> None:
    """Checks that a folder without `tokenizer.json` can be converted.

    Raises:
        UsageError: If it cannot.
    """
    if TEKKEN in files:
        raise UsageError(
            f"--tokenizer {path}: {TEKKEN} is the format of mistral_common, which transformers cannot read; use the "
            "tokenizer.json of the model's repository on the Hugging Face hub"
        )
    if not known_class:
        raise UsageError(
            f"--tokenizer {path}: has no tokenizer.json, and neither tokenizer_config.json names a tokenizer_class "
            f"nor config.json a model_type, so {', '.join(sorted(files))} cannot be read; save the tokenizer with "
            "save_pretrained, or add tokenizer.json"
        )


def _without_model_config(tokenizer: TokenizerFiles) -> TokenizerFiles:
    """Omits the model's config, because of which transformers 5 may choose another class."""
    files = {name: data for name, data in tokenizer.files.items() if name != MODEL_CONFIG}
    return replace(tokenizer, files=files)


def _with_config(
    path: str, files: Mapping[str, bytes], config: Mapping, original: LoadedTokenizer
) -> TokenizerFiles:
    """Adds a config that makes AutoTokenizer use tokenizer.json unchanged, to a folder that names no class."""
    changed = as_plain_class(config, original.parsed)
    notes = []
    if not named_tokens({**parse_json(files, MAP, path), **config}):
        added_tokens = {token["content"] for token in original.parsed["added_tokens"]}
        roles = {
            name: next((token for token in tokens if token in added_tokens), None)
            for name, tokens in _USUAL_TOKENS.items()
        }
        roles = {name: token for name, token in roles.items() if token is not None}
        changed.update({f"{name}_token": token for name, token in roles.items()})
        described = ", ".join(f"{name} {token}" for name, token in roles.items()) or "none"
        notes = [
            f"--tokenizer {path}: no file defines the roles of its special tokens; according to their usual names they "
            f"are: {described}"
        ]
    data = files[JSON]
    # AutoTokenizer would add the token of a saved padding as the pad token.
    if original.parsed["padding"] or original.parsed["truncation"]:
        data = dump_with_model({**original.parsed, "padding": None, "truncation": None}, data)
    return TokenizerFiles({**files, JSON: data, CONFIG: dump_json(changed)}, notes)
