"""Writes loss.svg to a run's folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_trainer.runs.checkpoint import WriteErrors
from tpu_trainer.runs.curves import loss_picture
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files

_log = logging.getLogger(__name__)


class LossPicture:
    """The chart of a run's losses."""

    def __init__(self, folder: RunFolder, *, title: str, baselines: Mapping[str, float]) -> None:
        """`baselines` are losses to compare with, in nats, by name."""
        self._folder = folder
        self._title = title
        self._baselines = baselines

    def draw(self, records: Sequence[dict[str, Any]]) -> None:
        """Draws the log's records. Reports a failed write without raising an error."""
        if not self._folder.writable:
            return
        try:
            picture = loss_picture(records, title=self._title, baselines=self._baselines)
            files.write_text(self._folder.loss_picture, picture)
        except WriteErrors as error:
            _log.warning(f"fit: {self._folder.loss_picture} cannot be written ({error}); training continues")
