"""Loading `tokenizer.json`, and changing its model's vocabulary."""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import ByteLevel

from tokenmill_reader.console.escaping import excerpt


class UnsupportedComponent(Exception):
    """The tokenizer has a component that the fast engines do not support.

    Args:
        message: Names the component. It may quote the tokenizer's file, and is shown in logs, manifest and report.
    """

    def __init__(self, message: str):
        super().__init__(excerpt(message))


# The characters that represent the 256 bytes in byte-level models.
BYTE_ALPHABET = frozenset(ByteLevel.alphabet())

# The tokens that represent the 256 bytes in models with byte fallback.
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))

# Values of fields that files written by other versions omit.
_DEFAULTS = {
    "BPE": {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
    "WordPiece": {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    "WordLevel": {"unk_token": "<unk>"},
    "Unigram": {"unk_id": None, "byte_fallback": False},
}


@dataclass(frozen=True)
class LoadedTokenizer:
    """A `tokenizer.json`. The object is shared, so it must not be changed."""

    tokenizer: Tokenizer
    """HF's tokenizer, without truncation and padding."""
    parsed: Mapping
    """The file in the form that the current `tokenizers` writes, whatever version wrote the file."""
    parts: Mapping
    """The file without its model, as it is written."""


@functools.lru_cache(maxsize=1)
def load_tokenizer(tokenizer_json: str) -> LoadedTokenizer:
    """Loads a `tokenizer.json` of any version. The last result is kept, since a run needs it several times.

    The parsed vocabulary is taken from the JSON text itself. `tokenizers` reads scores with an error of one unit in the
    last place, so writing and reading them again changes how ties between segmentations are broken, and it prints every
    gap in a vocabulary.

    Raises:
        Exception: Whatever `tokenizers` raises if it cannot load the text.
    """
    tokenizer = Tokenizer.from_str(tokenizer_json)
    unigram = isinstance(tokenizer.model, Unigram)
    raw_parts = json.loads(tokenizer_json, parse_float=_parse_score if unigram else None)
    raw_model = raw_parts.pop("model")
    if unigram:
        raw_model["vocab"] = [
            [piece, Score(str(score)) if isinstance(score, int) else score]
            for piece, score in raw_model["vocab"]
        ]
    parts = parts_without_model(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model_type = type(tokenizer.model).__name__
    model = {"type": model_type, **_DEFAULTS[model_type], **raw_model}
    if model_type == "BPE":
        model["merges"] = [
            tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
            for merge in raw_model["merges"]
        ]
    return LoadedTokenizer(tokenizer, {**parts, "model": model}, {"added_tokens": [], **raw_parts})


class Score(float):
    """A Unigram score that is written as it was spelled.

    `tokenizers` may read two spellings of the same number as different ones, if one has more than 15 digits.
    """

    def __init__(self, literal: str):
        self._literal = literal

    def __repr__(self) -> str:
        return self._literal


def _parse_score(literal: str) -> float:
    score = float(literal)
    return score if repr(score) == literal else Score(literal)


def read_scores(literals: Iterable[str]) -> list[float]:
    """Reads numbers as `tokenizers` and tokie do: with an error of up to one unit in the last place."""
    vocab = ",".join(f'["{number}",{literal}]' for number, literal in enumerate(literals))
    model = f'{{"type":"Unigram","unk_id":0,"vocab":[{vocab}]}}'
    written = Tokenizer.from_str(f'{{"version":"1.0","added_tokens":[],"model":{model}}}').to_str()
    return [score for _, score in json.loads(written)["model"]["vocab"]]


def dump_tokenizer(tokenizer: Mapping) -> str:
    """Returns the text of a parsed tokenizer's `tokenizer.json`, with every score spelled as in the original."""
    return orjson.dumps(tokenizer, default=lambda score: orjson.Fragment(repr(score))).decode()


def parts_without_model(tokenizer: Tokenizer) -> dict:
    """Returns the parsed `tokenizer.json` of a tokenizer without its model."""
    model = tokenizer.model
    tokenizer.model = type(model)()  # empty, so that `to_str` does not write the vocabulary
    parts = json.loads(tokenizer.to_str())
    tokenizer.model = model
    del parts["model"]
    return parts


def with_model_of(tokenizer: Tokenizer, parts: Mapping) -> Tokenizer:
    """Makes a tokenizer with the components `parts` and the model of `tokenizer`, which is shared."""
    tokenizer_of_parts = Tokenizer.from_str(
        json.dumps({**parts, "model": {"type": "BPE", "vocab": {}, "merges": []}})
    )
    tokenizer_of_parts.model = tokenizer.model
    return tokenizer_of_parts


def dump_with_model(parts: Mapping, data: bytes) -> bytes:
    """Returns a tokenizer.json with the components `parts` and the unchanged text of another one's model.

    Args:
        parts: The other components of a tokenizer.
        data: The content of the tokenizer.json with the model.
    """
    members = json.dumps({key: value for key, value in parts.items() if key != "model"}, ensure_ascii=False)
    return f'{members[:-1]}, "model": {_member_text(data.decode(), "model")}}}'.encode()


def _member_text(text: str, key: str) -> str:
    """Returns the text of a member's value in the text of a JSON object, which must have that member."""
    decoder = json.JSONDecoder()
    delimiters = [re.compile(rf"\s*{sign}\s*") for sign in ("{", ":", ",")]
    end = delimiters[0].match(text).end()
    while True:
        name, end = decoder.raw_decode(text, end)
        start = delimiters[1].match(text, end).end()
        _, end = decoder.raw_decode(text, start)
        if name == key:
            return text[start:end]
        end = delimiters[2].match(text, end).end()


def entries(model: Mapping) -> list[tuple[str, int]]:
    """Returns the keys of the model's vocabulary and their ids."""
    if model["type"] == "Unigram":
        return [(piece, number) for number, (piece, _) in enumerate(model["vocab"])]
    return list(model["vocab"].items())


def unknown_id(model: Mapping) -> int | None:
    """Returns the id of the model's unknown token, or None if it has none."""
    if model["type"] == "Unigram":
        return model["unk_id"]
    return model["vocab"].get(model["unk_token"])


def product(model: Mapping, merge: Sequence[str]) -> str:
    """Returns the token that a BPE merge produces."""
    first, second = merge
    return first + second[len(model["continuing_subword_prefix"] or "") :]


def make_unreachable(model: Mapping, keys: Collection[str]) -> tuple[Mapping, dict[str, str]]:
    """Prevents the model from finding some tokens in text. Ids stay the same, and other text is segmented as before.

    Each token is renamed to 128 random bits in hex. A text could contain a fixed name.
    Ids do not depend on the random names, since texts do not contain them. Merges that produce or use the tokens are
    removed.

    Returns:
        The changed model, and the new name of each key.
    """
    names = {key: secrets.token_hex(16) for key in keys}
    if not names:
        return model, names
    if model["type"] == "Unigram":
        return {
            **model,
            "vocab": [[names.get(piece, piece), score] for piece, score in model["vocab"]],
        }, names
    changed = {**model, "vocab": {names.get(key, key): number for key, number in model["vocab"].items()}}
    if model["type"] == "BPE":
        changed["merges"] = [
            merge for merge in model["merges"] if names.keys().isdisjoint((*merge, product(model, merge)))
        ]
    return changed, names
