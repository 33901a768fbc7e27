"""Trackio: to files in its cache, which `trackio show` draws; TRACKIO_DIR names another folder."""

from __future__ import annotations

import os

import trackio

from tokenmill_reader.tracking.trackers import Record


class TrackioRecord:
    """A run of Trackio, which knows runs by their names."""

    def __init__(self, record: Record) -> None:
        project, name = os.environ.get("TRACKIO_PROJECT", "tokenmill"), f"{record.name}-{record.id}"
        trackio.init(
            project=project,
            name=name,
            config=dict(record.parameters),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.place = f"run {name}; show it with `trackio show --project {project}`"

    def log(self, step: int, figures: dict[str, float]) -> None:
        trackio.log(figures, step=step)

    def finish(self, *, succeeded: bool) -> None:
        trackio.finish()


open_record = TrackioRecord
