"""A tokenizer's folder (local, remote, on the hub) → files that give AutoTokenizer and the engines the same ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.conversion import convert
from beam_pipeline.tokenization.folder_files import (
    ADDED,
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
from beam_pipeline.tokenization.remote_code import check_code, code_classes
from beam_pipeline.tokenization.resolution import resolve
from beam_pipeline.tokenization.tokenizer_classes import (
    PLAIN,
    PLAIN_CLASS,
    PLAIN_CLASSES,
    TokenizerClass,
    find_class,
)
from beam_pipeline.tokenization.tokenizer_config import (
    as_plain_class,
    check_tokens,
    in_version_4,
    is_consistent,
    is_of_version_5,
    named_tokens,
)
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer, entries, load_tokenizer
from tokenmill_reader.console.escaping import excerpt

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


# Sixteen times the largest vocabulary in use. Engines have tables of all ids, which would fill the memory for larger
# ones.
_MAX_ID = (1 << 24) - 1

# The options of transformers' classes that are paths of files.
_PATHS = re.compile(r".*_file|(source|target)_spm|vocab")


def load_files(path: str) -> tuple[dict[str, bytes], list[str]]:
    """Reads a tokenizer from a folder or the hub, and makes its `tokenizer.json` the only file that determines ids.

    What the other files define is applied to it by rules that depend on no release of transformers. The vocabulary is
    kept byte for byte. No code from the folder is run.

    Returns:
        The content of each file by its name, and messages for the user.

    Raises:
        UsageError: If there is no tokenizer, or it cannot be loaded.
    """
    files = find_files(path)
    original = _load_json(files[JSON], path) if JSON in files else None
    files = _with_clean_configs(files, original, path)
    config, model_config = (parse_json(files, name, path) for name in (CONFIG, MODEL_CONFIG))
    named_class = config.get("tokenizer_class") or model_config.get("tokenizer_class")
    if not isinstance(named_class, str | None):
        raise UsageError(f"--tokenizer {path}: tokenizer_class is not a name: {excerpt(str(named_class))}")
    tokenizer_class = find_class(config, model_config)
    auto_map = config.get("auto_map") or model_config.get("auto_map")
    is_code = bool(code_classes(auto_map)) and not (tokenizer_class and tokenizer_class.is_known)
    config = _with_map(config, files, path)
    if original is None:
        return _converted(files, config, tokenizer_class, path, is_code=is_code)
    if named_class in PLAIN_CLASSES and is_consistent(config, files, original):
        return {name: data for name, data in files.items() if name != MODEL_CONFIG}, []
    notes = []
    if is_code:
        notes.append(check_code(config, named_class, auto_map, original, path))
    elif tokenizer_class is not None and not tokenizer_class.is_known:
        notes.append(
            f"--tokenizer {path}: its tokenizer.json is used as it is, without what {named_class} may change"
        )
    if tokenizer_class is None or not (tokenizer_class.is_known or named_tokens(config)):
        roles, note = _usual_roles(config, original, path)
        config, notes = {**roles, **config}, [*notes, *note]
    if original.parsed["padding"]:
        config = {"pad_token": original.parsed["padding"]["pad_token"], **config}
    resolved, more = resolve(files, config, original, tokenizer_class or PLAIN, path)
    return resolved, [*notes, *more]


def _converted(
    files: Mapping[str, bytes],
    config: Mapping,
    tokenizer_class: TokenizerClass | None,
    path: str,
    *,
    is_code: bool,
) -> tuple[dict[str, bytes], list[str]]:
    """Returns what `load_files` returns, for a folder without `tokenizer.json`."""
    _check_readable(files, tokenizer_class, path, is_code=is_code)
    data, post_processor = convert(files, config, tokenizer_class, path)
    files = {**files, JSON: data}
    original = _load_json(files[JSON], path)
    resolved, notes = resolve(files, config, original, tokenizer_class, path, post_processor=post_processor)
    kept = {name for name in resolved if name in (JSON, CONFIG) or name.endswith(".jinja")}
    return {name: resolved[name] for name in sorted(kept)}, notes


def _load_json(data: bytes, path: str) -> LoadedTokenizer:
    try:
        loaded = load_tokenizer(data.decode())
    except Exception as error:  # the library raises plain Exception
        raise UsageError(
            f"--tokenizer {path}: tokenizer.json cannot be loaded: {first_line(error)}"
        ) from error
    token, number = max(entries(loaded.parsed["model"]), key=lambda entry: entry[1], default=("", 0))
    if number > _MAX_ID:
        raise UsageError(
            f"--tokenizer {path}: the token '{excerpt(token)}' in tokenizer.json has the id {number:,}, and ids are "
            f"{_MAX_ID:,} at most; check that it is a tokenizer"
        )
    return loaded


def _with_clean_configs(
    files: Mapping[str, bytes], original: LoadedTokenizer | None, path: str
) -> dict[str, bytes]:
    """Removes paths of files from the configs, and entries that only transformers 5 reads.

    AutoTokenizer prefers a path in a config, such as `vocab_file`, to the file in the folder. It would fail on other
    machines, and could lead to any file of this one.

    The `tokenizer.json` of a folder that transformers 5 has written contains all that its config says.
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


def _check_readable(
    files: Mapping[str, bytes], tokenizer_class: TokenizerClass | None, path: str, *, is_code: bool
) -> None:
    """Checks that a folder without `tokenizer.json` names a class that can be converted.

    Raises:
        UsageError: If it does not.
    """
    if TEKKEN in files:
        raise UsageError(
            f"--tokenizer {path}: {TEKKEN} is the format of mistral_common, which transformers cannot read; use the "
            "tokenizer.json of the model's repository on the Hugging Face hub"
        )
    if is_code:
        raise UsageError(
            f"--tokenizer {path}: its class is defined by code in its repository (auto_map), which is not run; convert "
            f"it to a {PLAIN_CLASS} with a tokenizer.json"
        )
    if tokenizer_class is None:
        raise UsageError(
            f"--tokenizer {path}: has no tokenizer.json, and neither tokenizer_config.json names a tokenizer_class "
            f"nor config.json a known model_type, so {', '.join(sorted(files))} cannot be read; save the tokenizer "
            "with save_pretrained, or add tokenizer.json"
        )


def _with_map(config: Mapping, files: Mapping[str, bytes], path: str) -> dict:
    """Returns a config with the special tokens that older folders name in files of their own."""
    for number in parse_json(files, ADDED, path).values():
        if type(number) is not int or number < 0:
            raise UsageError(f"--tokenizer {path}: {excerpt(str(number))} in {ADDED} is not an id")
    names = {} if "added_tokens_decoder" in config else parse_json(files, MAP, path)
    return {**config, **names}


def _usual_roles(config: Mapping, original: LoadedTokenizer, path: str) -> tuple[dict[str, str], list[str]]:
    """Returns the special tokens of a folder that names none, by their usual names, and a note about them."""
    if named_tokens(config):
        return {}, []
    added = {token["content"] for token in original.parsed["added_tokens"]}
    usual = {
        role: next((token for token in tokens if token in added), None)
        for role, tokens in _WELL_KNOWN.items()
    }
    roles = {role: token for role, token in usual.items() if token is not None}
    described = ", ".join(f"{role} {token}" for role, token in roles.items()) or "none"
    note = (
        f"--tokenizer {path}: no file defines the roles of its special tokens; according to their usual names they "
        f"are: {described}"
    )
    return {f"{role}_token": token for role, token in roles.items()}, [note]
