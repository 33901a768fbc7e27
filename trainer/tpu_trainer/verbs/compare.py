"""The compare verb: runs side by side."""

from __future__ import annotations

import json

from tpu_trainer.comparison.compared_run import open_runs
from tpu_trainer.comparison.page import render, text_lines, to_json
from tpu_trainer.config import CompareConfig
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


def main(config: CompareConfig) -> None:
    """Writes the page and prints its tables.

    Raises:
        UsageError: If a run cannot be read, or the page cannot be written.
    """
    try:
        files.check_writable(config.output)
    except OSError as error:
        raise UsageError(f"--output is {config.output!r}: cannot be written ({error.strerror})") from error
    runs = open_runs(config.runs)
    files.write_text(config.output, render(runs))
    if config.json:
        print(json.dumps(to_json(runs) | {"page": config.output}, indent=1))
        return
    for line in text_lines(runs):
        print(line)
    print(f"page: {config.output}")
