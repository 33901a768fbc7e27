"""Infilling: some documents are cut in three, and their middle moves to the end, so that a model learns to fill in.

As in StarCoder's and Megatron-LM's datasets (Bavarian et al., 2022, "Efficient Training of Language Models to Fill in
the Middle"), documents are cut between characters and the three parts are tokenized separately, so no token crosses a
cut:

    PSM:  <prefix> prefix <suffix> suffix <middle> middle
    SPM:  <prefix> <suffix> suffix <middle> prefix middle

What is cut, and where, is a function of the seed and the document's place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.engines.token_arrays import Documents
from beam_pipeline.sources.units import BadRecord, DocumentBatch
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.hashing import mix64, place_hashes
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer
from tokenmill_reader.console.escaping import excerpt

# The sentinels of published tokenizers: before the prefix, the middle and the suffix.
_KNOWN = (
    ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    ("<|fim_begin|>", "<|fim_end|>", "<|fim_hole|>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>", "<\uff5cfim\u2581hole\uff5c>"),
    ("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"),
    ("<PRE>", "<MID>", "<SUF>"),
    ("[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
)
_SPACES = ("\u2581", "\u0120")
"""A space in the vocabularies of SentencePiece and of byte-level tokenizers."""


@dataclass(frozen=True)
class Infilling:
    """Which documents are cut, and how their parts are marked."""

    rate: float
    """The share of the documents."""
    spm_rate: float
    """The share of these whose suffix comes first."""
    prefix: int
    """The id before the prefix."""
    middle: int
    """The id before the middle."""
    suffix: int
    """The id before the suffix."""
    max_length: int | None
    """The most tokens of a cut document: a longer one stays whole. None: any number."""
    seed: int


def sentinels(
    tokenizer_json: str, control_ids: Collection[int], names: tuple[str, ...] | None
) -> tuple[int, int, int]:
    """Returns the ids of the sentinels of prefix, middle and suffix.

    Args:
        tokenizer_json: The content of the `tokenizer.json`.
        control_ids: The ids that no text may encode to.
        names: The sentinels; None: those of a published tokenizer.

    Raises:
        UsageError: If the tokenizer has no such tokens, text could forge them, or it would add spaces to the text.
    """
    loaded = load_tokenizer(tokenizer_json).tokenizer
    id_of = loaded.token_to_id
    if "".join(loaded.encode("x", add_special_tokens=False).tokens).startswith(_SPACES):
        raise UsageError(
            "--fim_rate: the tokenizer writes a space before each text, so each cut would add one; take a tokenizer "
            "that does not, such as a byte-level one"
        )
    for candidate in _KNOWN if names is None else (names,):
        ids = tuple(map(id_of, candidate))
        if None not in ids:
            break
    else:
        if names is None:
            raise UsageError(
                "--fim_rate: the tokenizer has no sentinels that are known, such as <fim_prefix>; name its own by "
                "--fim_tokens PREFIX,MIDDLE,SUFFIX, or add them as special tokens"
            )
        missing = next(name for name, number in zip(names, ids, strict=True) if number is None)
        raise UsageError(f"--fim_tokens: '{excerpt(missing)}' is not in the tokenizer's vocabulary")
    ordinary = [name for name, number in zip(candidate, ids, strict=True) if number not in control_ids]
    if ordinary:
        raise UsageError(
            f"--fim_tokens: '{excerpt(ordinary[0])}' is not a special token, so text could forge it; mark it as "
            "special in the tokenizer"
        )
    return ids


def infilling_of(config: Mapping[str, Any], tokenizer: TokenizerDescription) -> Infilling | None:
    """Returns which documents are cut; None if none are.

    Args:
        config: The run's options, as in a manifest.
        tokenizer: The run's.

    Raises:
        UsageError: If the tokenizer has no sentinels.
    """
    if not config.get("fim_rate"):
        return None
    names = config.get("fim_tokens")
    prefix, middle, suffix = sentinels(
        tokenizer.json, tokenizer.control_ids, None if names is None else tuple(names)
    )
    return Infilling(
        rate=config["fim_rate"],
        spm_rate=config["fim_spm_rate"],
        prefix=prefix,
        middle=middle,
        suffix=suffix,
        max_length=config["max_length"] if config["packing"] in ("best_fit", "pad") else None,
        seed=config["seed"],
    )


class InfillingTokenizer:
    """Tokenizes batches of documents, and cuts some of them. It has the interface of `DocumentTokenizer`.

    Args:
        infilling: What to cut.
        options: The arguments of `DocumentTokenizer`.
    """

    def __init__(self, infilling: Infilling, **options: Any) -> None:
        template = options.pop("template")
        self._infilling = infilling
        self._inner = DocumentTokenizer(template=replace(template, prefix=(), suffix=()), **options)
        self._prefix, self._suffix = list(template.prefix), list(template.suffix)
        self._infilled: Counter[str] = Counter()

    @property
    def use(self) -> EngineUse:
        """Counts of the texts encoded so far: a cut document has three."""
        return replace(self._inner.use, infilled=self._infilled.copy())

    def encode(self, batch: DocumentBatch) -> tuple[DocumentBatch, Documents]:
        """Encodes documents. See `DocumentTokenizer.encode`."""
        cuts = self._cuts(batch)
        parts, reasons = self._encode(batch, {index: cut[:2] for index, cut in cuts.items()})
        too_long = [index for index in cuts if index in parts and not self._fits(parts[index])]
        for index in too_long:
            del cuts[index]
        if too_long:  # whole after all
            whole, further_reasons = self._encode(batch.take(too_long), {})
            parts |= {too_long[number]: ids for number, ids in whole.items()}
            reasons |= {too_long[number]: reason for number, reason in further_reasons.items()}
        self._infilled.update(
            documents=len(cuts.keys() - reasons.keys()), whole=len(set(too_long) - reasons.keys())
        )
        dtype = self._inner.dtype
        ids = [
            self._assembled(parts[index], cuts.get(index), dtype)
            for index in range(len(batch.texts))
            if index not in reasons
        ]
        bad_records = [
            BadRecord(batch.name, int(batch.places[index]), reason, batch.texts[index].encode())
            for index, reason in sorted(reasons.items())
        ]
        good = batch.without(np.array(sorted(reasons), np.int64))
        return (
            replace(good, bad_records=[*batch.bad_records, *bad_records]),
            Documents(np.concatenate([np.empty(0, dtype), *ids]), np.array(list(map(len, ids)), np.int64)),
        )

    def _encode(
        self, batch: DocumentBatch, cuts: Mapping[int, tuple[int, int]]
    ) -> tuple[dict[int, list[np.ndarray]], dict[int, str]]:
        """Encodes the parts of documents.

        Args:
            batch: The documents.
            cuts: Where the middle of each document that is cut begins and ends.

        Returns:
            The ids of each document's parts, and the reason of each document that cannot be encoded, by their indices.
        """
        texts, owners = [], []
        for index, text in enumerate(batch.texts):
            start, end = cuts.get(index, (0, 0))
            pieces = [text[:start], text[start:end], text[end:]] if index in cuts else [text]
            texts += pieces
            owners += [index] * len(pieces)
        index_of = {place: index for index, place in enumerate(batch.places.tolist())}
        places = batch.places[np.array(owners, np.int64)]
        encoded, documents = self._inner.encode(DocumentBatch(batch.name, Texts.of(texts), places))
        reasons = {index_of[record.place]: record.reason for record in encoded.bad_records}
        parts: dict[int, list[np.ndarray]] = {}
        for place, ids in zip(
            encoded.places.tolist(), np.split(documents.ids, np.cumsum(documents.lengths)[:-1]), strict=False
        ):
            if index_of[place] not in reasons:
                parts.setdefault(index_of[place], []).append(ids)
        return parts, reasons

    def _fits(self, parts: list[np.ndarray]) -> bool:
        most = self._infilling.max_length
        size = sum(map(len, parts)) + 3 + len(self._prefix) + len(self._suffix)
        return most is None or size <= most

    def _cuts(self, batch: DocumentBatch) -> Mapping[int, tuple[int, int, bool]]:
        """Returns (start of the middle, its end, whether the suffix comes first) of each document that is cut."""
        hashes = place_hashes("infilling", self._infilling.seed, batch.name, batch.places)
        draws = [mix64(hashes + np.uint64(number)) for number in range(4)]
        chosen = np.flatnonzero(draws[0] / 2.0**64 < self._infilling.rate)
        cuts = {}
        for index in chosen.tolist():
            places = len(batch.texts[index]) + 1
            start, end = sorted(int(draws[number][index]) * places >> 64 for number in (1, 2))
            cuts[index] = start, end, float(draws[3][index]) / 2.0**64 < self._infilling.spm_rate
        return cuts

    def _assembled(
        self, parts: list[np.ndarray], cut: tuple[int, int, bool] | None, dtype: np.dtype
    ) -> np.ndarray:
        """Returns a document's ids, with the tokens of the tokenizer's template around them."""
        sentinels = self._infilling
        if cut is not None:
            prefix, middle, suffix = parts
            if cut[2]:
                parts = [[sentinels.prefix, sentinels.suffix], suffix, [sentinels.middle], prefix, middle]
            else:
                parts = [[sentinels.prefix], prefix, [sentinels.suffix], suffix, [sentinels.middle], middle]
        return np.concatenate([np.array(part, dtype) for part in (self._prefix, *parts, self._suffix)])
