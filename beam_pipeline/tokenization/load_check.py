"""Loads the tokenizer that a dataset will contain as its users do, before the run that makes the dataset."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_pipeline.support import console
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.comparison import find_differences
from beam_pipeline.tokenization.description import MAX_MESSAGE, TokenizerDescription
from beam_pipeline.tokenization.folder_files import CONFIG, JSON, MAP, first_line, parse_json
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.tokenization.tokenizer_classes import PLAIN_CLASS
from beam_pipeline.tokenization.tokenizer_config import added_tokens_decoder, named_tokens
from beam_pipeline.tokenization.tokenizer_folder import RECORD
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer, load_tokenizer
from tokenmill_reader.console.escaping import excerpt
from tokenmill_reader.format.names import SPECIAL_NAMES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SIDES = ("left", "right")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


# The form in which train-tokenizer writes a config: its keys, and the values that AutoTokenizer is known to accept.
_KNOWN: Mapping[str, Callable[[Any], bool]] = {
    "tokenizer_class": lambda value: value == PLAIN_CLASS,
    **{f"{name}_token": _is_text for name in SPECIAL_NAMES},
    "add_prefix_space": _is_bool,
    "clean_up_tokenization_spaces": _is_bool,
    "extra_special_tokens": lambda value: value == {},
    "model_input_names": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "model_max_length": lambda value: type(value) is int,
    "padding_side": _SIDES.__contains__,
    "truncation_side": _SIDES.__contains__,
}


def check_copy(described: TokenizerDescription, path: str) -> None:
    """Checks that AutoTokenizer loads the tokenizer's files, and that it gives the ids of the dataset.

    Nothing else of the pipeline needs transformers, so this is omitted if it is not installed. Importing it takes
    seconds of CPU, so files in the form of `train-tokenizer` are not loaded either: there, `tokenizer.json` determines
    everything.

    Raises:
        UsageError: If it does not.
    """
    loaded = load_tokenizer(described.json)
    if _is_known(described.files, parse_json(described.files, CONFIG, path), loaded):
        return
    if importlib.util.find_spec("transformers") is None:
        return
    try:
        with library_errors():
            _check_copy(described, loaded, path)
    except EncodingError as error:
        raise UsageError(
            f"--tokenizer {path}: AutoTokenizer of {_release()} cannot use it: {error}"
        ) from error
    except UsageError as error:
        raise UsageError(excerpt(str(error), MAX_MESSAGE)) from error


def _check_copy(described: TokenizerDescription, loaded: LoadedTokenizer, path: str) -> None:
    copy = f"--tokenizer {path}: AutoTokenizer of {_release()}"
    remedy = "correct tokenizer_config.json"
    with console.without_stdout(), tempfile.TemporaryDirectory() as folder:
        for name, data in described.files.items():
            Path(folder, name).write_bytes(data)
        try:
            tokenizer = _load(Path(folder))
            tokenizer("")  # not a word, which the model may not know
        except Exception as error:  # with broken folders, it raises exceptions of many types
            raise UsageError(
                f"{copy} cannot load it: {type(error).__name__}: {first_line(error)}; {remedy}"
            ) from error
        roles = {name: getattr(tokenizer, f"{name}_token_id") for name in SPECIAL_NAMES}
    for name, number in described.special_token_ids.items():
        if roles[name] != number:
            raise UsageError(
                f"{copy} gives its {name} token the id {roles[name]} instead of {number}; {remedy}"
            )
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    tokens = sorted({token.content for token in backend.get_added_tokens_decoder().values()})
    for as_text in (False, True):
        for difference in find_differences(loaded.tokenizer, backend, tokens, as_text=as_text):
            raise UsageError(f"{copy} does not give the ids of its tokenizer.json: {difference}; {remedy}")


def _load(folder: Path) -> PreTrainedTokenizerBase:
    """Loads a folder with AutoTokenizer, which runs no code of it, and logs no warnings about it."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that PyTorch is missing
    from transformers import AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    finally:
        logging.set_verbosity(verbosity)


def _release() -> str:
    return f"transformers {version('transformers')}"


def _is_known(files: Mapping[str, bytes], config: Mapping, loaded: LoadedTokenizer) -> bool:
    if not files.keys() <= {JSON, CONFIG, MAP, RECORD}:
        return False
    config = dict(config)
    if config.pop("added_tokens_decoder", None) != added_tokens_decoder(loaded.parsed):
        return False
    if loaded.parsed["padding"] or loaded.parsed["truncation"]:
        return False
    contents = {token["content"] for token in loaded.parsed["added_tokens"]}
    is_as_written = all(key in _KNOWN and _KNOWN[key](value) for key, value in config.items())
    return is_as_written and set(named_tokens(config)) <= contents
