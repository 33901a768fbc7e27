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
        if name.count(".") != 1 or math.isnan(values[name]):
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
