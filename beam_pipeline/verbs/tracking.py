"""The trackers of `prepare --track`: its progress while it runs, and the dataset's figures at the end."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath

from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.runners.launching import Launch
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs.results import PreparedDataset
from tokenmill_reader.tracking import Record, Trackers, names_of, parameters, problem

_log = logging.getLogger(__name__)


class TrackedPreparation:
    """The records of a run of `prepare`, which a resumed run continues: the output and the fingerprint identify them.

    Their steps are seconds since 1970, which a resumed run does not repeat.
    """

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def progress(self, amounts: Mapping[str, float]) -> None:
        """Logs stage and unit → amount done."""
        self._log({f"progress/{name}": amount for name, amount in amounts.items()})

    def totals(self, prepared: PreparedDataset) -> None:
        """Logs the figures of a finished dataset."""
        figures = {
            f"{name}/{key}": value
            for name, split in prepared.splits.items()
            for key, value in dataclasses.asdict(split).items()
        }
        figures |= {f"excluded/{name}": count for name, count in prepared.excluded.items()}
        figures |= {f"edited/{name}": count for name, count in prepared.edited.items()}
        self._log(figures | {"seconds": prepared.seconds})

    def _log(self, figures: Mapping[str, float | None]) -> None:
        known = {name: value for name, value in figures.items() if value is not None}
        self._trackers.log(int(time.time()), known)


def check_trackers(config: PrepareConfig, launch: Launch) -> None:
    """Checks that the trackers of `--track` can be used.

    Raises:
        UsageError: If one is not installed, or this process will not see the figures.
    """
    if config.track and launch.on_dataflow and not config.wait:
        raise UsageError(f"--track {config.track}: on Dataflow, the figures are known here only with --wait")
    for name in names_of(config.track):
        if (reason := problem(name, folder=".")) is not None:
            raise UsageError(f"--track {name}: {reason}")


@contextmanager
def tracked(config: PrepareConfig, output: str, fingerprint: str) -> Iterator[TrackedPreparation]:
    """Opens the records in the background, and ends them with the block. Their files are in the current folder."""
    record = Record(
        id=hashlib.sha256(f"{output} {fingerprint}".encode()).hexdigest()[:16],
        name=PurePath(output).name,
        folder=".",
        parameters=parameters(dataclasses.asdict(config)),
    )
    trackers = Trackers(names_of(config.track), record, report=_report)
    succeeded = False
    try:
        yield TrackedPreparation(trackers)
        succeeded = True
    finally:
        trackers.finish(succeeded=succeeded)


def _report(is_problem: bool, text: str) -> None:
    _log.log(logging.WARNING if is_problem else logging.INFO, text)
