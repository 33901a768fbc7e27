"""Reads an exported model's folder, and the prompts of the verbs that run the model."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.config_file import CONFIG, read_config
from tpu_trainer.exports.initial_weights import load_weights, resolve_init_from
from tpu_trainer.support import files, quiet
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    from tpu_trainer.network.families.family import Family
    from tpu_trainer.network.model import LanguageModel

_log = logging.getLogger(__name__)


def read_family(path: str) -> Family:
    """Returns the family of the model in an exported model's folder; raises UsageError for other folders."""
    model_type = read_config(path).get("model_type")
    from tpu_trainer.network.families.registry import FAMILIES  # transformers takes seconds to import

    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UsageError(
            f"{files.join(path, CONFIG)}: model_type is {model_type!r}; must be one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def open_tokenizer(path: str, objective: ObjectiveName) -> tuple[Any, Vocabulary]:
    """Returns the tokenizer and vocabulary of an exported model's folder; raises UsageError for other folders."""
    family = read_family(path)
    if family.objective != objective:
        verb = {"mlm": "fill-mask", "clm": "generate"}[family.objective]
        raise UsageError(f"{path}: the model is a {family.class_name}; use the verb {verb}")
    tokenizer = load_tokenizer(path)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer, path, objective)


def open_model(path: str, tokenizer: Any, vocabulary: Vocabulary, objective: ObjectiveName) -> LanguageModel:
    """Returns the model in a folder that `open_tokenizer` accepts.

    The tokenizer's `model_max_length` is lowered to what the model takes.
    """
    # Imported after the checks, because importing TensorFlow takes seconds.
    from tpu_trainer.network.configuration import configure
    from tpu_trainer.network.initial_values import InitialValues
    from tpu_trainer.network.model import LanguageModel
    from tpu_trainer.network.weights import Network

    quiet.silence_abseil()
    config = resolve_init_from(ModelConfig(init_from=path))
    configuration = configure(config, objective=objective, vocabulary=vocabulary, max_length=1)
    tokenizer.model_max_length = min(tokenizer.model_max_length, configuration.max_length)
    network = Network(configuration.architecture, initial=InitialValues(postpone=True))
    load_weights(network, path, family=configuration.family, vocabulary=vocabulary)
    return LanguageModel(network=network, vocabulary=vocabulary, objective=objective)


@dataclass(frozen=True)
class Prompt:
    """A text to complete or continue."""

    text: str
    record: Mapping[str, Any] | None = None
    """The JSON object that contains the text; None for plain text."""


def read_prompts(text: str | None, *, json_lines: bool) -> Iterator[Prompt]:
    """Yields `text`; if None, each line of standard input: a text, or with `json_lines` an object with the key "text".

    Raises:
        UsageError: If a line is not such an object, or a text is not UTF-8.
    """
    if text is not None:
        yield Prompt(check_text(text, "--text"), {"text": text} if json_lines else None)
        return
    if sys.stdin.isatty():
        _log.info(
            "reading a text from each line of standard input; Ctrl-D ends it, --text gives a single one"
        )
    for number, data in enumerate(sys.stdin.buffer, start=1):
        place = f"line {number} of the standard input"
        try:
            line = data.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"{place}: is not UTF-8: {error}; convert it") from None
        if not json_lines:
            yield Prompt(line)
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--json: {place} is not JSON: {error}") from None
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise UsageError(f'--json: {place} needs a string under "text": {line.strip()[:60]}')
        yield Prompt(check_text(record["text"], f"--json: {place}"), record)


def check_text(text: str, place: str) -> str:
    """Returns the text. Raises UsageError if it is not UTF-8: if it has bytes or escapes that are no characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{place}: character {error.start + 1} is {text[error.start]!r}, so the text is not UTF-8; replace it"
        ) from None
    return text
