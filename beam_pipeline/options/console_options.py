"""The options of all verbs that determine what is shown."""

from __future__ import annotations

from dataclasses import dataclass

from beam_pipeline.options.option_fields import Options, option


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig(Options):
    """What a verb shows."""

    json: bool = option(False, topic="running", affects_bytes=False)
    """Print the results as one JSON document to stdout. All else is on stderr."""
    quiet: bool = option(False, affects_bytes=False)
    """Show neither progress nor notes, only results and errors."""
