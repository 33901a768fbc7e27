"""An exported model's folder, opened for the verbs that ask the model something."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_trainer import files, quiet
from tpu_trainer.config import ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary, load_tokenizer
from tpu_trainer.errors import UsageError

CONFIG = "config.json"
# XLM's and Flaubert's have the second ending.
_MASKED_CLASSES = ("ForMaskedLM", "WithLMHeadModel")


def read_config(folder: str) -> dict[str, Any]:
    """The values in the config.json of a model's folder; UsageError if it holds no JSON object."""
    path = files.join(folder, CONFIG)
    try:
        values = json.loads(files.read_text(path))
    except ValueError as error:  # of JSON or of UTF-8
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: holds no JSON object")
    return values


def open_tokenizer(path: str, objective: ObjectiveName) -> tuple[Any, Vocabulary]:
    """The tokenizer in a folder that `export` wrote, and its vocabulary; UsageError where it is no such folder."""
    for name in (CONFIG, "tf_model.h5"):
        if not files.is_file(files.join(path, name)):
            raise UsageError(f"{path}: no {name} there; give a folder that `export` has written")
    architectures = read_config(path).get("architectures")
    if (
        not isinstance(architectures, list)
        or len(architectures) != 1
        or not isinstance(architectures[0], str)
    ):
        raise UsageError(
            f"{files.join(path, CONFIG)}: architectures is {architectures!r}, not the name of one class; give a folder "
            "that `export` has written"
        )
    architecture = architectures[0]
    found = "mlm" if architecture.endswith(_MASKED_CLASSES) else "clm"
    if found != objective:
        verb = {"mlm": "fill-mask", "clm": "generate"}[found]
        raise UsageError(f"{path}: a {architecture}, which is for the verb {verb}")
    tokenizer = load_tokenizer(path)
    return tokenizer, Vocabulary.of(tokenizer, path, objective)


def open_model(path: str, vocabulary: Vocabulary, objective: ObjectiveName) -> Any:
    """The LanguageModel in a folder that `open_tokenizer` has opened."""
    # TensorFlow takes seconds to import: not for what the verbs' checks refuse.
    from transformers import TFAutoModelForCausalLM, TFAutoModelForMaskedLM

    from tpu_trainer.network.model import LanguageModel

    quiet.silence_abseil()
    auto_class = {"mlm": TFAutoModelForMaskedLM, "clm": TFAutoModelForCausalLM}[objective]
    with files.local_copy(path) as folder:
        # transformers 4.55 to 4.57 cannot read PyTorch's layout into TensorFlow (huggingface/transformers#40028).
        network = auto_class.from_pretrained(folder, local_files_only=True, use_safetensors=False)
    return LanguageModel(network=network, vocabulary=vocabulary, objective=objective)


@dataclass(frozen=True)
class Question:
    """A text that a user asks the model about."""

    text: str
    given: Mapping[str, Any] | None = None
    """The JSON object that held it; None for plain text."""


def questions_of(text: str | None, *, json_lines: bool) -> Iterator[Question]:
    """Yields `text`, or each line of the standard input: a text, or a JSON object with the key "text".

    Raises:
        UsageError: if a line is not such an object.
    """
    if text is not None:
        yield Question(text, {"text": text} if json_lines else None)
        return
    for number, line in enumerate(sys.stdin, start=1):
        if not json_lines:
            yield Question(line.rstrip("\n"))
            continue
        try:
            given = json.loads(line)
        except ValueError as error:
            raise UsageError(f"--json: line {number} of the standard input is not JSON: {error}") from None
        if not isinstance(given, dict) or not isinstance(given.get("text"), str):
            raise UsageError(
                f'--json: line {number} of the standard input needs a string under "text": {line.strip()[:60]}'
            )
        yield Question(given["text"], given)
