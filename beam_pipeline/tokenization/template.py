"""The special tokens that a tokenizer puts around every document."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers.processors import Sequence

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.tokenizer_json import LoadedTokenizer, with_model_of


@dataclass(frozen=True)
class Template:
    """The ids before and after every document, such as those of `<s>` and `</s>`. Either may be empty."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


def find_template(loaded: LoadedTokenizer) -> Template:
    """Returns the ids that the tokenizer's post-processor adds around a text. Encodes texts with it and without it.

    Raises:
        UsageError: If the post-processor does more than adding ids before and after a text.
    """
    if loaded.parsed["post_processor"] is None:
        return Template((), ())
    tokenizer = with_model_of(loaded.tokenizer, {**loaded.parsed, "truncation": None, "padding": None})
    texts = ["a", "b 1"]
    full = [tokenizer.encode(text).ids for text in texts]
    tokenizer.post_processor = Sequence([])
    plain = [tokenizer.encode(text).ids for text in texts]
    for first in range(len(full[0]) - len(plain[0]) + 1):
        prefix, suffix = full[0][:first], full[0][first + len(plain[0]) :]
        if full == [[*prefix, *ids, *suffix] for ids in plain]:
            return Template(tuple(prefix), tuple(suffix))
    raise UsageError(
        f"--tokenizer: its post-processor turns the ids {plain[0]} of 'a' into {full[0]}; only templates that "
        "put tokens before and after a text are supported"
    )
