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
    non_finite: NonFinite, *, rows: RowStream, folder: RunFolder, checkpoints: Checkpoints
) -> DivergedError:
    """Writes the step and all its records to failure.json if the folder is writable, and returns the error to raise."""
    records = rows.records(non_finite.step - 1)
    steps = checkpoints.steps()
    failure = {
        "step": non_finite.step,
        # As text: JSON has no NaN.
        "loss": str(non_finite.loss),
        "gradient_norm": str(non_finite.gradient_norm),
        "last_checkpoint": steps[-1] if steps else None,
        "records": [{"shard": shard, "slot": slot} for shard, slot in records],
    }
    try:
        if folder.writable:
            files.write_text(folder.failure, json.dumps(failure, indent=1) + "\n")
    except WriteErrors as error:
        _log.warning(f"fit: {folder.failure} cannot be written ({error}): {json.dumps(failure)}")
    shown = ", ".join(f"{shard} slot {slot}" for shard, slot in records[:_SHOWN])
    omitted = f" and {len(records) - _SHOWN} more, all in {folder.failure}" if len(records) > _SHOWN else ""
    checkpoint_text = (
        f"the checkpoint of step {steps[-1]} is usable" if steps else "there is no checkpoint yet"
    )
    return DivergedError(
        f"step {non_finite.step}: loss {non_finite.loss}, gradient norm {non_finite.gradient_norm}; {checkpoint_text}. "
        f"The step read {shown}{omitted}. Check these records; a lower --optimizer.learning_rate, a longer "
        "--schedule.warmup_steps or a smaller --optimizer.clip_norm, with another --output_dir, may help"
    )
