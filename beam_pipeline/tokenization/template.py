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
    with_template = [tokenizer.encode(text).ids for text in texts]
    tokenizer.post_processor = Sequence([])
    without_template = [tokenizer.encode(text).ids for text in texts]
    for prefix_length in range(len(with_template[0]) - len(without_template[0]) + 1):
        prefix, suffix = (
            with_template[0][:prefix_length],
            with_template[0][prefix_length + len(without_template[0]) :],
        )
        if with_template == [[*prefix, *ids, *suffix] for ids in without_template]:
            return Template(tuple(prefix), tuple(suffix))
    raise UsageError(
        f"--tokenizer: its post-processor turns the ids {without_template[0]} of 'a' into {with_template[0]}; only "
        "templates that put tokens before and after a text are supported"
    )
