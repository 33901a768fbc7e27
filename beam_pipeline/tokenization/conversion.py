"""Conversion of folders whose ids AutoTokenizer determines: it loads them, and the tokenizer in memory is saved."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from beam_pipeline.support import console
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.comparison import Difference, find_differences
from beam_pipeline.tokenization.folder_files import CONFIG, JSON, MAP, dump_json, first_line, read_folder
from beam_pipeline.tokenization.tokenizer_config import (
    PLAIN_CLASS,
    PLAIN_CLASSES,
    added_tokens_decoder,
    as_plain_class,
)
from beam_pipeline.tokenization.tokenizer_json import (
    LoadedTokenizer,
    dump_with_model,
    load_tokenizer,
    parts_without_model,
)
from tokenmill_reader.console.escaping import excerpt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


def converter() -> str:
    """Returns the name and version of the library that converts."""
    return f"transformers {version('transformers')}"


def convert(
    path: str,
    files: Mapping[str, bytes],
    original: LoadedTokenizer | None,
    *,
    named_class: str | None,
    code: bool,
) -> dict[str, bytes]:
    """Loads the files with AutoTokenizer and saves them. Copies the vocabulary's text, since saving may round scores.

    Args:
        path: The folder, for messages.
        files: The content of the folder's files by name.
        original: The folder's `tokenizer.json`, if it has one.
        named_class: The `tokenizer_class` of the config.
        code: Whether the class may be code in the folder.

    Returns:
        The content of the converted files by name.

    Raises:
        UsageError: If AutoTokenizer cannot load the files, or no `tokenizer.json` gives AutoTokenizer's ids.
    """
    with console.without_stdout(), tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.mkdir()
        for name, data in files.items():
            (source / name).write_bytes(data)
        tokenizer = _load_and_save(source, target, path, files, named_class=named_class, code=code)
        saved = read_folder(str(target))
        backend = tokenizer.backend_tokenizer
        same_model = (
            original is not None and backend.model.__getstate__() == original.tokenizer.model.__getstate__()
        )
    parts = parts_without_model(backend)
    backend.no_truncation()
    backend.no_padding()
    model_file = files[JSON] if same_model else saved[JSON]
    if same_model and all(original.parsed[key] == value for key, value in parts.items()):
        saved[JSON] = files[JSON]
    elif same_model:
        saved[JSON] = dump_with_model(parts, model_file)
    inexpressible_tokens = {difference.token for difference in _differences(backend, saved[JSON])}
    if inexpressible_tokens:
        parts = _matched_before_normalization(parts, inexpressible_tokens)
        saved[JSON] = dump_with_model(parts, model_file)
        saved.pop(MAP, None)  # it repeats the flags, and nothing reads it beside `added_tokens_decoder`
        for difference in _differences(backend, saved[JSON]):
            raise UsageError(f"--tokenizer {path}: {_inexpressible_reason(difference)}")
    return _with_plain_class(saved, parts, tokenizer.model_input_names)


def _load_and_save(
    source: Path, target: Path, path: str, files: Mapping[str, bytes], *, named_class: str | None, code: bool
) -> PreTrainedTokenizerFast:
    """Loads the files of a folder and saves them in another, or raises an error that says what to do."""
    use_as_it_is = (
        f"to use tokenizer.json as it is, set tokenizer_class in tokenizer_config.json to {PLAIN_CLASS}"
    )
    names = ", ".join(sorted(files))
    damaged = f"neither SentencePiece nor tiktoken can read a vocabulary from its files ({names})"
    try:
        tokenizer = load_by_transformers(source)
        if tokenizer and tokenizer.is_fast:
            tokenizer.model_input_names = list(map(str, tokenizer.model_input_names))
            tokenizer.save_pretrained(target)
    except Exception as error:  # with broken folders, it raises exceptions of many types
        reason = f"its files ({names}) cannot be loaded: {first_line(error)}"
        if code:
            reason = (
                "its class is defined by code in its repository (auto_map), which is not run; convert it to a "
                f"{PLAIN_CLASS} with a tokenizer.json"
            )
        elif isinstance(named_class, str) and not is_known_class(named_class):
            reason = f"{converter()} has no class {named_class}" + (
                f"; {use_as_it_is}" if JSON in files else ""
            )
        elif str(error).startswith("Converting from SentencePiece and Tiktoken failed"):
            reason = damaged
        raise UsageError(f"--tokenizer {path}: {reason}") from error
    if tokenizer is False:  # some classes return this instead of raising an error
        raise UsageError(f"--tokenizer {path}: {damaged}")
    if not tokenizer.is_fast:
        remedy = (
            use_as_it_is
            if JSON in files
            else "if transformers 5 has one, load the folder there, and use the files that save_pretrained writes"
        )
        raise UsageError(
            f"--tokenizer {path}: {type(tokenizer).__name__} has no fast version in {converter()}, which is required; "
            f"{remedy}"
        )
    return tokenizer


def load_by_transformers(folder: Path) -> PreTrainedTokenizerBase:
    """Loads a folder with AutoTokenizer, which runs no code of it, and logs no warnings about it."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    finally:
        logging.set_verbosity(verbosity)


def is_known_class(name: str) -> bool:
    """Determines whether transformers has a class with this name, slow or fast."""
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    return tokenizer_class_from_name(name) is not None or tokenizer_class_from_name(f"{name}Fast") is not None


def _differences(backend: Tokenizer, data: bytes) -> Iterator[Difference]:
    """Yields texts whose ids change if a tokenizer in memory is replaced by the one in a `tokenizer.json`."""
    tokens = [token.content for token in backend.get_added_tokens_decoder().values()]
    return find_differences(backend, load_tokenizer(data.decode()).tokenizer, tokens)


def _inexpressible_reason(difference: Difference) -> str:
    reason = f"AutoTokenizer of {converter()} gives ids that its tokenizer.json could not give: {difference}"
    if difference.token is None:
        return f"{reason}; save it as a {PLAIN_CLASS} with the ids that you want"
    return (
        f"{reason}; set \"normalized\" of the added token '{excerpt(difference.token)}' to false in tokenizer.json "
        "and in added_tokens_decoder of tokenizer_config.json"
    )


def _matched_before_normalization(parts: Mapping, tokens: Collection[str | None]) -> dict:
    """Clears the flag `normalized` of some added tokens.

    A converter adds a model's own tokens without the flag. If the config then adds them with it, the tokenizer in
    memory keeps both, and finds the token in text before it normalizes. A file contains each token once, with the flag:
    loaded again, `x<|endoftext|>y` would be searched for `▁<|endoftext|>`, if the normalizer prepends `▁`.
    """
    added_tokens = [
        {**token, "normalized": token["normalized"] and token["content"] not in tokens}
        for token in parts["added_tokens"]
    ]
    return {**parts, "added_tokens": added_tokens}


def _with_plain_class(
    files: Mapping[str, bytes], parts: Mapping, input_names: Sequence[str]
) -> dict[str, bytes]:
    """Renames the class in files that AutoTokenizer has saved, and omits options that it has applied.

    The plain class uses tokenizer.json unchanged in transformers 4 and 5. Many classes of transformers 5, such as
    AlbertTokenizer, replace its normalizer, its pre-tokenizer or its template by their own.
    """
    config = json.loads(files[CONFIG])
    if config["tokenizer_class"] not in PLAIN_CLASSES:
        config["model_input_names"] = input_names
    config = {**as_plain_class(config, parts), "added_tokens_decoder": added_tokens_decoder(parts)}
    return {**files, CONFIG: dump_json(config)}
