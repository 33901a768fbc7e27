"""Weights & Biases: to its server after a login, else to files that `wandb sync` sends later."""

from __future__ import annotations

import os

import wandb

from tokenmill_reader.tracking.names import wandb_mode
from tokenmill_reader.tracking.trackers import Record

# No capture of the console or of the code, no files but the figures, no figures of the machine.
_SETTINGS = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "init_timeout": 30,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbRecord:
    """A run of Weights & Biases."""

    def __init__(self, record: Record) -> None:
        known = type(wandb.Settings()).model_fields
        settings = wandb.Settings(**{name: value for name, value in _SETTINGS.items() if name in known})

        def start(mode: str) -> wandb.Run:
            return wandb.init(
                project=os.environ.get("WANDB_PROJECT", "tokenmill"),
                id=record.id,
                name=record.name,
                dir=os.environ.get("WANDB_DIR", record.folder),
                config=dict(record.parameters),
                resume="allow",
                mode=mode,
                settings=settings,
            )

        mode = wandb_mode()
        try:
            self._run = start(mode)
        except wandb.errors.CommError:
            if mode != "online":
                raise
            self._run = start("offline")  # no network
            mode = "offline"
        self.place = f"record {record.id}"
        if mode == "offline":
            self.place += (
                f" in {self._run.settings.sync_dir}; send it with `wandb sync {self._run.settings.sync_dir}`"
            )
        elif self._run.url:
            self.place += f" at {self._run.url}"

    def log(self, step: int, figures: dict[str, float]) -> None:
        # Of equal steps, the figures are one line of the record; wandb refuses earlier steps.
        self._run.log(figures, step=step)

    def finish(self, *, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)


open_record = WandbRecord
