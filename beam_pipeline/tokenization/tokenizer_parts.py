"""The parts of a tokenizer, and where a text may be cut without changing its tokens.

`parse_tokenizer` supports only the components and options listed here, which the tests compare with `tokenizers`.
Any other tokenizer is left to `tokenizers` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_pipeline.tokenization import normalization
from beam_pipeline.tokenization.tokenizer_json import BYTE_ALPHABET, make_unreachable, product

UNIGRAM, WORDPIECE, BYTE_LEVEL, SENTENCEPIECE = "Unigram", "WordPiece", "byte-level BPE", "SentencePiece BPE"

# A space begins what follows it: words are cut before it, wherever it stands. Here, and only here, the character
# before it plays no role.
_BEFORE_SPACE = re.compile("(?= )")
# Punctuation is a word of its own.
_WORDPIECE = re.compile(r"(?= )|(?<=[A-Za-z0-9])(?=[!-/:-@\[-`{-~])")
# Between a word and a space with a word after it; between letters and what ends every run of letters.
_BYTE_LEVEL = re.compile(
    r"(?<=[!-~])(?= [!-~])|(?<=[A-Za-z])(?=[0-9,.;:])|(?<=[\u4e00-\u9fff])(?=[，。、；：！？])"
)
_SENTENCEPIECE = re.compile("(?<=[^▁])(?=▁[^▁])")

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = (_GPT2_PATTERN, _LLAMA3_PATTERN, _QWEN2_PATTERN, _O200K_PATTERN)

# Normalizers that never take away a text's first character. `Metaspace` with the scheme "first" looks at where the
# first character that is left came from.
_KEEP_FIRST = (*normalization.UNICODE_FORMS, "Prepend")


class UnsupportedComponent(Exception):
    """The tokenizer has a component that is not listed here; the message names it."""


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, split into what fast engines need.

    Attributes:
      kind: of its model and pre-tokenizer: one of the constants above.
      normalize: the normalizer's steps that come before `core`.
      core: the `tokenizer.json` of the rest: it adds no tokens, and knows no special ones.
      cuts: where a normalized text may be cut: the pieces' ids, one after the other, are the ids of the whole.
      literals: what stands for an added token in text, as it is before normalization.
    """

    kind: str
    normalize: Sequence[normalization.Step]
    core: Mapping
    cuts: re.Pattern
    literals: tuple[str, ...]


def parse_tokenizer(tokenizer: Mapping, parse_special_tokens: bool) -> TokenizerParts:
    """The parts of a parsed `tokenizer.json`.

    Raises:
      UnsupportedComponent: if one is not supported.
    """
    core = {**tokenizer, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    added = [token for token in tokenizer["added_tokens"] if parse_special_tokens or not token["special"]]
    normalizer, model = tokenizer["normalizer"], tokenizer["model"]
    if normalizer is not None and any(token["normalized"] for token in added):
        raise UnsupportedComponent("added tokens that are looked for in normalized text")
    kind_of = {"Unigram": _unigram, "WordPiece": _wordpiece, "BPE": _bpe}
    if model.get("type") not in kind_of:
        raise UnsupportedComponent(f"a model of the type {model.get('type')}")
    kind, steps, cuts = kind_of[model["type"]](core)
    literals = tuple(sorted({token["content"] for token in added}))
    return TokenizerParts(kind, steps, core, cuts, literals)


def _unigram(core: dict) -> tuple[str, list[normalization.Step], re.Pattern]:
    normalizer = core["normalizer"]
    steps = normalization.steps(normalizer)
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    if len(parts) == 2 and parts[0]["type"] == "WhitespaceSplit":
        if parts[1].get("prepend_scheme") != "always":
            raise UnsupportedComponent("WhitespaceSplit before a Metaspace that does not prepend always")
        steps.append(normalization.each(_mark_words))
        parts = parts[1:]
    if len(parts) != 1 or parts[0]["type"] != "Metaspace":
        raise UnsupportedComponent(f"the pre-tokenizer {_names(parts)}")
    metaspace = parts[0]
    if metaspace["replacement"] != "▁" or not metaspace.get("split", True):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(metaspace, ensure_ascii=False)}")
    if metaspace["prepend_scheme"] == "first" and not _keeps_first(normalizer):
        raise UnsupportedComponent(
            "a normalizer that may take away the first character, before Metaspace's scheme 'first'"
        )
    core.update(normalizer=None, pre_tokenizer=metaspace)
    return UNIGRAM, steps, _BEFORE_SPACE


def _mark_words(text: str) -> str:
    """Words with a space before each that does not begin with the mark that Metaspace would put there."""
    words = filter(None, re.split(f"[{normalization.RUST_SPACE}]+", text))
    return "".join(word if word.startswith("▁") else " " + word for word in words)


def _keeps_first(normalizer: Mapping | None) -> bool:
    for part in _sequence(normalizer, "normalizers"):
        replaces = part["type"] == "Replace" and part["content"]
        strips_right = part["type"] == "Strip" and not part["strip_left"]
        if not (part["type"] in _KEEP_FIRST or replaces or strips_right):
            return False
    return True


def _wordpiece(core: dict) -> tuple[str, list[normalization.Step], re.Pattern]:
    normalizer, pre_tokenizer = core["normalizer"], core["pre_tokenizer"]
    if not normalizer or normalizer["type"] != "BertNormalizer" or not normalizer["clean_text"]:
        raise UnsupportedComponent(f"the normalizer {json.dumps(normalizer)}")
    if not normalizer["handle_chinese_chars"]:
        raise UnsupportedComponent("a BertNormalizer that leaves Chinese characters")
    if not pre_tokenizer or pre_tokenizer["type"] != "BertPreTokenizer":
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(pre_tokenizer)}")
    if core["model"]["continuing_subword_prefix"] != "##":
        raise UnsupportedComponent(f"the subword prefix {core['model']['continuing_subword_prefix']!r}")
    return WORDPIECE, [], _WORDPIECE


def _bpe(core: dict) -> tuple[str, list[normalization.Step], re.Pattern]:
    model = core["model"]
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedComponent(f"the BPE option {option} = {model[option]!r}")
    core_normalizer = core["normalizer"]
    steps = normalization.steps(core_normalizer)
    core["normalizer"] = None
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    if model.get("byte_fallback"):
        steps += _unsplit_metaspace(parts, core_normalizer)
        core["pre_tokenizer"] = None
        if any("▁" in token.lstrip("▁") for token in model["vocab"]):
            raise UnsupportedComponent("tokens that span two words")
        return SENTENCEPIECE, steps, _SENTENCEPIECE
    core["pre_tokenizer"], prefix = _byte_level(parts)
    core["model"] = _without_dead_tokens(model)
    if prefix:
        steps.append(
            normalization.each(lambda text: " " + text if text and not text.startswith(" ") else text)
        )
    return BYTE_LEVEL, steps, _BYTE_LEVEL


def _without_dead_tokens(model: Mapping) -> Mapping:
    """A byte-level model in which the tokens that `tokenizers` never emits cannot be found by other engines either.

    `tokenizers` sees words in the byte alphabet, and comes to longer tokens by merges alone, unless it ignores them.
    """
    vocab = model["vocab"]
    if not vocab.keys() >= BYTE_ALPHABET:
        raise UnsupportedComponent("a byte-level model without tokens for all bytes")
    made = vocab.keys() if model["ignore_merges"] else {product(model, merge) for merge in model["merges"]}
    dead = [key for key in vocab if len(key) > 1 and (key not in made or not BYTE_ALPHABET.issuperset(key))]
    dead += [key for key in vocab if len(key) == 1 and key not in BYTE_ALPHABET]
    return make_unreachable(model, dead)[0]


def _unsplit_metaspace(parts: Sequence[Mapping], normalizer: Mapping | None) -> list[normalization.Step]:
    """What a Metaspace pre-tokenizer that does not split does to a text: it is but one more normalizer."""
    if not parts:
        return []
    if len(parts) > 1 or parts[0]["type"] != "Metaspace" or parts[0].get("split", True):
        raise UnsupportedComponent(f"the pre-tokenizer {_names(parts)} before a BPE model with byte fallback")
    scheme = parts[0]["prepend_scheme"]
    if parts[0]["replacement"] != "▁" or (scheme == "first" and not _keeps_first(normalizer)):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts[0], ensure_ascii=False)}")

    def mark(text: str) -> str:
        text = text.replace(" ", "▁")
        return "▁" + text if text and scheme != "never" and not text.startswith("▁") else text

    return [normalization.each(mark)]


def _byte_level(parts: Sequence[Mapping]) -> tuple[dict, bool]:
    """The pre-tokenizer without its prefix space, and whether it had one."""
    if not parts or parts[-1]["type"] != "ByteLevel" or len(parts) > 2:
        raise UnsupportedComponent(f"the pre-tokenizer {_names(parts)}")
    byte_level = {**parts[-1], "add_prefix_space": False, "use_regex": True}
    if len(parts) == 1:
        if not parts[0].get("use_regex", True):
            raise UnsupportedComponent("a ByteLevel pre-tokenizer that does not split")
        return byte_level, parts[0]["add_prefix_space"]
    split = parts[0]
    pattern = (split.get("pattern") or {}).get("Regex")
    known = split["type"] == "Split" and split["behavior"] == "Isolated" and not split["invert"]
    if not known or pattern not in PATTERNS or parts[1].get("use_regex", True):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts)}")
    if parts[1]["add_prefix_space"]:
        raise UnsupportedComponent("a prefix space for each word")
    if pattern == _GPT2_PATTERN:
        return byte_level, False
    return {"type": "Sequence", "pretokenizers": list(parts)}, False


def _sequence(part: Mapping | None, key: str) -> list[Mapping]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for each in part[key] for inner in _sequence(each, key)]
    return [part]


def _names(parts: Sequence[Mapping]) -> str:
    return " + ".join(part["type"] for part in parts) or "None"
