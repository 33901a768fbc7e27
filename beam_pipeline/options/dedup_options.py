"""The options of `--dedup`. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.options.option_values import parse_bands, parse_shingle
from beam_pipeline.support.errors import UsageError

_OPTIONS = {
    "near": ("near_threshold", "near_shingle", "near_bands"),
    "paragraphs": ("paragraph_copies", "paragraph_min_words", "paragraph_end"),
}
"""The options that apply to a part of `--dedup` only."""


@dataclass(frozen=True)
class DedupConfig(Options):
    """Which repeated documents and paragraphs are removed."""

    dedup: Literal["none", "exact", "near", "paragraphs", "exact+paragraphs", "near+paragraphs"] = option(
        "none", topic="curation"
    )
    """exact keeps only the first of several documents with the same text; near only the first of similar ones.
    paragraphs removes paragraphs of many documents from all but the first, such as cookie notices; then documents are
    compared, if requested."""
    near_threshold: float = option(0.8, metavar="SHARE", bounds=(0.1, 1), needs="dedup")
    """With --dedup near: documents are similar if their sets of shingles have at least this Jaccard similarity, the
    share of their shingles that both have. OUT/removed has the similarity of each removed document."""
    near_shingle: str = option("5", metavar="N[c]", needs="dedup", parse=parse_shingle)
    """With --dedup near: the shingles of a document are its sequences of so many words, or, for languages without
    spaces, of characters, such as 24c, regardless of case, white space and punctuation."""
    near_bands: str | None = option(
        None,
        metavar="BANDSxROWS",
        needs="dedup",
        parse=parse_bands,
        default_text="those of up to 128 MinHashes that find 97.5 of 100 pairs at the threshold, 18x7 for 0.8",
    )
    """With --dedup near: bands of MinHashes by which pairs are proposed, whose similarity is then computed. More bands
    find more, more rows propose less."""
    dedup_keep: str = option("first", metavar="first|longest|ATTRIBUTE", needs="dedup")
    """Which of several equal or similar documents is kept: the first in the order of the input; the longest; or the one
    with the highest value of an attribute of --attributes. Of several with the same value, the first."""
    paragraph_copies: int = option(10, metavar="N", bounds=(1, 2**53), needs="dedup")
    """With --dedup paragraphs: paragraphs of more documents than this are removed from all but the first of them,
    regardless of case, white space and punctuation."""
    paragraph_min_words: int = option(8, metavar="N", bounds=(1, 2**31), needs="dedup")
    """With --dedup paragraphs: paragraphs with fewer words stay, such as headings."""
    paragraph_end: Literal["newline", "blank_line"] = option("newline", needs="dedup")
    """With --dedup paragraphs: the end of a paragraph. blank_line is for texts whose paragraphs have several lines."""

    @property
    def document_dedup(self) -> str:
        """How documents are compared: none, exact or near."""
        name = self.dedup.partition("+")[0]
        return "none" if name == "paragraphs" else name

    @property
    def prefers(self) -> bool:
        """Whether another document than the first can be kept."""
        return self.document_dedup != "none" and self.dedup_keep != "first"

    @property
    def preferred_attribute(self) -> str | None:
        """The attribute by which the document to keep is chosen, if it is."""
        return self.dedup_keep if self.prefers and self.dedup_keep != "longest" else None

    @property
    def removes_paragraphs(self) -> bool:
        """Whether repeated paragraphs are removed."""
        return "paragraphs" in self._parts

    @property
    def _parts(self) -> list[str]:
        return self.dedup.split("+")

    @classmethod
    def complete(cls, arguments: dict[str, Any]) -> None:
        """See `Options.complete`."""
        parts = arguments.get("dedup", cls.dedup).split("+")
        for part, names in _OPTIONS.items():
            for name in names:
                if name in arguments and part not in parts:
                    raise UsageError(f"--{name}: applies to --dedup {part} only; add that, or omit it")
        if parts == ["paragraphs"] and "dedup_keep" in arguments:
            raise UsageError(
                "--dedup_keep: applies to --dedup exact or near only; add one, as in near+paragraphs, or omit it"
            )
        if "exact" in parts and arguments.get("dedup_keep") == "longest":
            raise UsageError("--dedup_keep longest with --dedup exact: equal texts are equally long; omit it")
        if "paragraphs" in parts and arguments.get("content") == "conversation":
            raise UsageError(
                f"--dedup {arguments['dedup']}: conversations stay whole; use exact or near, or omit it"
            )

    def identity(self) -> dict[str, Any]:
        """See `Options.identity`. Fingerprints and manifests have only the options that are used."""
        values = super().identity()
        for part, names in _OPTIONS.items():
            for name in names:
                if part not in self._parts or values[name] is None:
                    del values[name]
        if not self.prefers:
            del values["dedup_keep"]
        return values
