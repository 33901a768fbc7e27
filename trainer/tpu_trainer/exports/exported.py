"""Reads an exported model's folder, and the prompts of the verbs that run the model."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_trainer.config import ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary, load_tokenizer
from tpu_trainer.support import files, quiet
from tpu_trainer.support.errors import UsageError

_log = logging.getLogger(__name__)

CONFIG = "config.json"
# The second is the suffix of XLM's and Flaubert's classes.
_MASKED_CLASSES = ("ForMaskedLM", "WithLMHeadModel")


def read_config(folder: str) -> dict[str, Any]:
    """Returns the values in the config.json of a model's folder; raises UsageError if it is not a JSON object."""
    path = files.join(folder, CONFIG)
    try:
        values = json.loads(files.read_text(path))
    except ValueError as error:  # from JSON or UTF-8
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: not a JSON object")
    return values


def open_tokenizer(path: str, objective: ObjectiveName) -> tuple[Any, Vocabulary]:
    """Returns the tokenizer and vocabulary of a folder written by `export`; raises UsageError for other folders."""
    for name in (CONFIG, "tf_model.h5"):
        if not files.is_file(files.join(path, name)):
            raise UsageError(f"{path}: no {name} there; use a folder written by `export`")
    architectures = read_config(path).get("architectures")
    if (
        not isinstance(architectures, list)
        or len(architectures) != 1
        or not isinstance(architectures[0], str)
    ):
        raise UsageError(
            f"{files.join(path, CONFIG)}: architectures is {architectures!r}, not the name of one class; use a folder "
            "written by `export`"
        )
    architecture = architectures[0]
    model_objective = "mlm" if architecture.endswith(_MASKED_CLASSES) else "clm"
    if model_objective != objective:
        verb = {"mlm": "fill-mask", "clm": "generate"}[model_objective]
        raise UsageError(f"{path}: the model is a {architecture}; use the verb {verb}")
    tokenizer = load_tokenizer(path)
    return tokenizer, Vocabulary.from_tokenizer(tokenizer, path, objective)


def open_model(path: str, vocabulary: Vocabulary, objective: ObjectiveName) -> Any:
    """Returns the LanguageModel in a folder that `open_tokenizer` accepts."""
    # Imported after the checks, because importing TensorFlow takes seconds.
    from transformers import TFAutoModelForCausalLM, TFAutoModelForMaskedLM

    from tpu_trainer.network.model import LanguageModel

    quiet.silence_abseil()
    auto_class = {"mlm": TFAutoModelForMaskedLM, "clm": TFAutoModelForCausalLM}[objective]
    with files.local_copy(path) as folder:
        # transformers 4.55 to 4.57 cannot read PyTorch's layout into TensorFlow (huggingface/transformers#40028).
        network = auto_class.from_pretrained(folder, local_files_only=True, use_safetensors=False)
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
