"""The special tokens that a tokenizer puts around every document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer
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


def template_processor(
    first: tuple[str, ...],
    last: tuple[str, ...],
    second: tuple[tuple[str, ...], tuple[str, ...]],
    type_id: int,
) -> dict:
    """Returns the post-processor of a `tokenizer.json` that puts tokens around texts, without the tokens' ids.

    Args:
        first: The tokens before a text.
        last: The tokens after it.
        second: The tokens before and after the second text of a pair.
        type_id: The token type of the second text and of the tokens around it.
    """

    def around(sequence: str, before: tuple[str, ...], after: tuple[str, ...], type_id: int) -> list[dict]:
        special = [
            [{"SpecialToken": {"id": token, "type_id": type_id}} for token in part]
            for part in (before, after)
        ]
        return [*special[0], {"Sequence": {"id": sequence, "type_id": type_id}}, *special[1]]

    single = around("A", first, last, 0)
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *around("B", *second, type_id)]}


def with_ids(post_processor: Mapping, tokenizer: Tokenizer) -> dict:
    """Returns a post-processor with the ids of its tokens, if it is one of `template_processor`."""
    if post_processor["type"] != "TemplateProcessing":
        return dict(post_processor)
    tokens = dict.fromkeys(
        part["SpecialToken"]["id"] for part in post_processor["pair"] if "SpecialToken" in part
    )
    ids = {token: {"id": token, "ids": [tokenizer.token_to_id(token)], "tokens": [token]} for token in tokens}
    return {**post_processor, "special_tokens": ids}
