"""The trackers of a run, which continue one record whenever the run continues."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from pathlib import PurePath
from typing import Any

from tokenmill_reader.tracking import Record, Trackers, names_of, parameters, problem
from tpu_trainer.config import FitConfig
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

_log = logging.getLogger(__name__)


def check_trackers(config: FitConfig) -> None:
    """Checks that the trackers of `--track` can be used here.

    Raises:
        UsageError: If one is not installed, or has no place for its files.
    """
    for name in names_of(config.track):
        if (reason := problem(name, folder=_local(config.output_dir))) is not None:
            raise UsageError(f"--track {name}: {reason}")


class TrackedRun:
    """Sends a run's records to its trackers, each record once.

    Steps that training repeats keep the figures of the first time: libraries refuse or mix up steps that go back.
    """

    def __init__(self, config: FitConfig, folder: RunFolder, earlier_records: list[dict[str, Any]]) -> None:
        """Opens the records in the background.

        Args:
            config: The run's.
            folder: The run's. Its trackers.json has the id of the records, and the names of trackers that have one.
            earlier_records: All records of the run's log. Trackers with a record have them already.

        Raises:
            UsageError: If trackers.json is damaged.
            OSError, tf.errors.OpError: If it cannot be written.
        """
        names = names_of(config.track)
        known = folder.trackers() or {"id": secrets.token_hex(8), "trackers": []}
        record = Record(
            id=known["id"],
            name=PurePath(config.output_dir).name,
            folder=_local(config.output_dir) or ".",
            parameters=parameters(dataclasses.asdict(config)),
        )
        if not set(names) <= set(known["trackers"]):
            everywhere = sorted({*known["trackers"], *names})
            folder.write_trackers({"id": known["id"], "trackers": everywhere})
        sent = {_key(each) for each in earlier_records}
        self._sent = {name: sent.copy() if name in known["trackers"] else set() for name in names}
        self._trackers = Trackers(names, record, report=_report)

    def show(self, record: dict[str, Any], figures: dict[str, float]) -> None:
        """Sends the figures of a record of the log to the trackers that do not have it."""
        names = [name for name, sent in self._sent.items() if _key(record) not in sent]
        if names:
            self._trackers.log(record["step"], figures, names=names)
        for name in names:
            self._sent[name].add(_key(record))

    def finish(self, *, succeeded: bool) -> None:
        """Ends the records, which takes some seconds at most."""
        self._trackers.finish(succeeded=succeeded)


def _key(record: dict[str, Any]) -> tuple[int, bool]:
    return record["step"], "eval" in record


def _local(folder: str) -> str | None:
    path = folder.removeprefix("file://")
    return None if files.is_url(path) else path


def _report(is_problem: bool, text: str) -> None:
    _log.log(logging.WARNING if is_problem else logging.INFO, f"fit: {text}")
