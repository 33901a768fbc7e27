"""The options of `--decontaminate`. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.support.errors import UsageError

_MIN_WORDS = 8


def parse_fields(text: str) -> tuple[str, ...]:
    """Returns the fields of `--decontaminate_fields`. Raises UsageError if one is empty."""
    names = tuple(text.split(":"))
    if not all(names):
        raise UsageError(
            f"--decontaminate_fields {text}: has an empty name; use a key such as question, or several: question:answer"
        )
    return names


@dataclass(frozen=True)
class DecontaminateConfig(Options):
    """Benchmarks whose items a dataset must not contain."""

    decontaminate: tuple[str, ...] = option((), topic="curation", metavar="FILE", affects_bytes=False)
    """Benchmarks: files, globs or folders of jsonl, parquet or text, or folders that save_to_disk has written.
    Documents that contain an item are removed."""
    decontaminate_fields: tuple[str, ...] = option(
        ("text",), metavar="KEY[:KEY]", parse=parse_fields, needs="decontaminate", default_text="text"
    )
    """Keys or columns of an item that must all be in a document: question, or question:answer for both. question,title
    joins the texts of two keys."""
    decontaminate_ngram: int = option(13, metavar="N", bounds=(1, 1024), needs="decontaminate")
    """Length of the n-grams that are compared, in words. Case, punctuation and white space do not matter."""
    decontaminate_min_words: int = option(
        _MIN_WORDS,
        metavar="N",
        bounds=(1, 1024),
        needs="decontaminate",
        default_text=f"{_MIN_WORDS}, or the length of the n-grams if that is smaller",
    )
    """Items with fewer words than an n-gram, but at least so many, are compared as a whole. Those with fewer words are
    only counted, since ordinary text has them by chance."""
    decontaminate_share: float = option(0.3, metavar="SHARE", bounds=(0, 1), needs="decontaminate")
    """Share of an item's n-grams that must be in a document. 0: a single n-gram suffices."""
    decontaminate_common: int = option(1000, metavar="N", bounds=(1, 2**53), needs="decontaminate")
    """N-grams of more documents than this are common text, and no evidence. Items that consist mostly of them are
    reported as public text, and remove nothing."""
    decontaminate_remove: Literal["document", "passage"] = option("document", needs="decontaminate")
    """What is removed: the document, or only the passages with n-grams of the item."""

    def __post_init__(self) -> None:
        if self.decontaminate_min_words > self.decontaminate_ngram:
            raise UsageError(
                f"--decontaminate_min_words {self.decontaminate_min_words}: is more than --decontaminate_ngram "
                f"{self.decontaminate_ngram}; items of that length have n-grams"
            )

    @classmethod
    def complete(cls, arguments: dict[str, Any]) -> None:
        """See `Options.complete`."""
        if "decontaminate_ngram" in arguments:
            arguments.setdefault("decontaminate_min_words", min(_MIN_WORDS, arguments["decontaminate_ngram"]))

    def identity(self) -> Mapping[str, Any]:
        """See `Options.identity`. The fingerprint contains the content of the files."""
        return super().identity() if self.decontaminate else {}
