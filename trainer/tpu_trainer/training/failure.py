"""The report of a step whose loss or gradient is not finite."""

from __future__ import annotations

import json
import logging

from tpu_trainer.data.batches import RowStream
from tpu_trainer.runs.checkpoint import Checkpoints, WriteErrors
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.step.results import NonFinite
from tpu_trainer.support import files
from tpu_trainer.support.errors import DivergedError

_log = logging.getLogger(__name__)

_SHOWN = 4


def diverged(
    found: NonFinite, *, rows: RowStream, folder: RunFolder, checkpoints: Checkpoints
) -> DivergedError:
    """Writes the step and all its records to failure.json if the folder is writable, and returns the error to raise."""
    records = rows.records(found.step - 1)
    good = checkpoints.steps()
    failure = {
        "step": found.step,
        # As text: JSON has no NaN.
        "loss": str(found.loss),
        "gradient_norm": str(found.gradient_norm),
        "last_checkpoint": good[-1] if good else None,
        "records": [{"shard": shard, "slot": slot} for shard, slot in records],
    }
    try:
        if folder.writable:
            files.write_text(folder.failure, json.dumps(failure, indent=1) + "\n")
    except WriteErrors as error:
        _log.warning(f"fit: {folder.failure} cannot be written ({error}): {json.dumps(failure)}")
    shown = ", ".join(f"{shard} slot {slot}" for shard, slot in records[:_SHOWN])
    more = f" and {len(records) - _SHOWN} more, all in {folder.failure}" if len(records) > _SHOWN else ""
    kept = f"the checkpoint of step {good[-1]} is usable" if good else "there is no checkpoint yet"
    return DivergedError(
        f"step {found.step}: loss {found.loss}, gradient norm {found.gradient_norm}; {kept}. The step read "
        f"{shown}{more}. Check these records; a lower --optimizer.learning_rate, a longer "
        "--schedule.warmup_steps or a smaller --optimizer.clip_norm, with another --output_dir, may help"
    )
