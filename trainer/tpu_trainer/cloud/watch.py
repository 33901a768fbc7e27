"""What following a training has in common for all services: messages, waits, and patience with lost answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.lease import Lease
from tpu_trainer.cloud.signals import Signals

_Answer = TypeVar("_Answer")


def say(text: str) -> None:
    """Shows a line on stderr."""
    try:
        print(f"launch: {text}", file=sys.stderr, flush=True)
    except OSError:  # its reader has gone, such as the terminal: giving the TPU back matters more
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


class Watch:
    """Follows one run.

    Attributes:
        signals: While its context is open, they interrupt.
        left: The command that ends what may be there and cost money; None: nothing is.
    """

    def __init__(self, api: Api, config: LaunchConfig, lease: Lease, sleep: Callable[[float], Any]) -> None:
        self._api = api
        self._lease = lease
        self._sleep = sleep
        self._seconds = config.cloud.poll_seconds
        self._log = files.join(config.output_dir, "metrics.jsonl")
        self._said: dict[str, str] = {}
        self.left: str | None = None
        self.signals = Signals(last_words=self.last_words)

    def last_words(self) -> str:
        """What to do about what may be left on Google Cloud."""
        if self.left is None:
            return "nothing is left on Google Cloud"
        return (
            "what it asked for may be left, billed and unwatched; the same command watches it again, and this ends it: "
            f"{self.left}"
        )

    def wait(self, *, at_least: float = 0) -> None:
        """Until the next look; seconds."""
        self._sleep(max(self._seconds, at_least))
        self._lease.renew()

    def patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """What `ask` answers; asks again, for as long as it takes, when Google Cloud does not answer.

        Giving up would leave a TPU that is billed and that nothing watches.
        """
        while True:
            try:
                return ask()
            except UnansweredError as error:
                self.state(f"asks again: {error}")
                self.wait(at_least=1)

    def state(self, text: str) -> None:
        """Says how what was asked for stands, if that has changed."""
        self._say_once("state", text)

    def training(self) -> None:
        """Says the last whole line of the run's log, if it is a new one."""
        text = self.patiently(lambda: self._api.read_object(self._log, last_bytes=4096)) or ""
        lines = text.split("\n")[:-1]
        if lines and lines[-1].startswith("{"):
            record = json.loads(lines[-1])
            figures = record.get("eval", record)
            kind = "validation loss" if "eval" in record else "loss"
            if "loss" in figures:
                self._say_once("training", f"step {record['step']}: {kind} {figures['loss']:.3f}")

    def _say_once(self, what: str, text: str) -> None:
        if self._said.get(what) != text:
            say(text)
            self._said[what] = text
