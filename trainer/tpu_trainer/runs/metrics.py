"""The log of a run: every record goes to metrics.jsonl, to TensorBoard and to trackers.

A full disk does not end training: records that cannot be written are kept and written later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tpu_trainer.runs.checkpoint import WriteErrors
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.time_spent import SPENT, TimeSpent, goodput
from tpu_trainer.runs.tracked import TrackedRun
from tpu_trainer.support import files

_log = logging.getLogger(__name__)


class MetricsLog:
    """The records of a run, in order; each has a step."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        last_step: int,
        tensorboard: bool,
        time_spent: TimeSpent | None = None,
        saved_seconds: Mapping[str, float] = MappingProxyType({}),
        trackers: Callable[[list[dict[str, Any]]], TrackedRun | None] = lambda records: None,
    ) -> None:
        """Continues the log in `folder` after `last_step`. Removes later records: their steps will be repeated.

        Args:
            folder: The run's.
            last_step: The updates that training continues after.
            tensorboard: Whether TensorBoard gets the records.
            time_spent: Continued here; every record gets its seconds.
            saved_seconds: The seconds at the checkpoint that training continues from.
            trackers: All earlier records → the trackers that get the records.

        Raises:
            UsageError: If the log there is damaged.
        """
        self._folder = folder
        earlier_records = folder.metrics()
        self.records = [record for record in earlier_records if record["step"] <= last_step]
        self._time_spent = time_spent
        if time_spent is not None:
            self._continue_time(earlier_records, saved_seconds)
        self._trackers = trackers(earlier_records) if folder.writable else None
        self._is_complete = False
        """Whether the file has all records except a new one."""
        self._tensorboard: _TensorBoard | None = None
        if tensorboard and folder.writable:
            self._try_tensorboard(self._open_tensorboard)
        self._write()
        for record in self.records:
            self._show(record)

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record. An evaluation replaces an earlier one of the same step."""
        if self._time_spent is not None:
            record = record | {SPENT: self._time_spent.seconds()}
        if (
            "eval" in record
            and (
                other_records := [
                    earlier
                    for earlier in self.records
                    if not ("eval" in earlier and earlier["step"] == record["step"])
                ]
            )
            != self.records
        ):
            self.records, self._is_complete = other_records, False
        self.records.append(record)
        self._write()
        self._show(record)

    def close(self) -> None:
        """Writes pending records."""
        if not self._is_complete:
            self._write()
        if self._tensorboard is not None:
            self._try_tensorboard(self._tensorboard.close)

    def finish_trackers(self, *, succeeded: bool) -> None:
        """Ends the records of trackers, which show whether the run `succeeded`. Takes some seconds at most."""
        if self._trackers is not None:
            self._trackers.finish(succeeded=succeeded)

    def _continue_time(self, earlier: list[dict[str, Any]], saved: Mapping[str, float]) -> None:
        """Adds the time of earlier processes, and keeps it in the last record, should this one log none."""

        def latest(candidates: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
            return max(candidates, key=lambda seconds: sum(seconds.values()), default={})

        last = latest([saved, *(record[SPENT] for record in earlier if SPENT in record)])
        saved = latest([saved, *(record[SPENT] for record in self.records if SPENT in record)])
        self._time_spent.continue_from(saved, last)
        if last and self.records:
            self.records[-1] = self.records[-1] | {SPENT: self._time_spent.earlier_seconds()}

    def _write(self) -> None:
        if not self._folder.writable:
            return
        try:
            if self._is_complete:
                files.append_text(self._folder.metrics_log, json.dumps(self.records[-1]) + "\n")
            else:
                lines = "".join(json.dumps(record) + "\n" for record in self.records)
                files.write_text(self._folder.metrics_log, lines)
            self._is_complete = True
        except WriteErrors as error:
            # The file may now end with an incomplete line: rewrite it next time.
            self._is_complete = False
            _log.warning(f"fit: {self._folder.metrics_log} cannot be written ({error}); training continues")

    def _show(self, record: dict[str, Any]) -> None:
        if self._tensorboard is not None:
            self._try_tensorboard(lambda: self._tensorboard.write(record))
        if self._trackers is not None:
            self._trackers.show(record, _flat(record))

    def _open_tensorboard(self) -> None:
        self._tensorboard = _TensorBoard(self._folder.tensorboard)

    def _try_tensorboard(self, write: Any) -> None:
        try:
            write()
        except WriteErrors as error:
            _log.warning(
                f"fit: {self._folder.tensorboard} cannot be written ({error}); training continues without it"
            )
            self._tensorboard = None


class _TensorBoard:
    """Event files, rewritten from the log's records whenever a run starts or continues."""

    def __init__(self, folder: str) -> None:
        # Old events may be from steps that will be repeated. Profiles are in a subfolder and stay.
        for name in files.list_names(folder):
            if name.startswith("events.out.tfevents"):
                files.remove_file(files.join(folder, name))
        self._writer = tf.summary.create_file_writer(folder)

    def write(self, record: dict[str, Any]) -> None:
        with self._writer.as_default(step=record["step"]):
            for name, value in _flat(record).items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        self._writer.close()


def _flat(record: dict[str, Any]) -> dict[str, float]:
    """Returns name in TensorBoard and trackers → number: train/loss, eval/loss or eval/<split>/loss, …"""
    figures = {}
    for name, value in record.items():
        if name == "eval":
            splits = value.get("splits", {"": value})
            figures |= {
                f"eval/{split}{split and '/'}{key}": number
                for split, numbers in splits.items()
                for key, number in numbers.items()
                if key != "choices"
            }
            figures |= {
                f"choices/{name}/{key}": number
                for name, numbers in value.get("choices", {}).items()
                for key, number in numbers.items()
            }
        elif name == "sources":
            figures |= {
                f"sources/{source}/{key}": number
                for source, numbers in value.items()
                for key, number in numbers.items()
            }
        elif name == SPENT:
            figures |= {f"seconds/{kind}": seconds for kind, seconds in value.items()}
            if (share := goodput(value)) is not None:
                figures["seconds/goodput"] = share
        elif name != "step" and isinstance(value, int | float):
            figures[f"train/{name}"] = value
    return figures
