"""What determines a training step and so its time, to tell whether two steps are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tpu_trainer.config import FitConfig
from tpu_trainer.network.configuration import configure
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.step import Rows

# Of the architecture: the step does not depend on initial values, and positions follow from the length of the rows.
_WITHOUT_EFFECT = ("initial", "positions")
DATA_OPTIONS = _COLUMNS, _SOURCES = ("columns of the rows", "sources")
"""Names of what only datasets determine."""


def step_options(config: FitConfig, rows: Rows, *, topology: Topology, batch_size: int) -> dict[str, Any]:
    """Returns name → JSON value of all that determines the step of `fit`, in the order in which to name differences.

    Args:
        config: The configuration of `fit`, its init_from resolved.
        rows: The properties of the data.
        topology: The devices.
        batch_size: Rows in a step, over all devices; that of `config` is ignored.

    Raises:
        UsageError: If the model or the mesh is not possible.
    """
    train, optimizer, pjrt = config.train, config.optimizer, config.strategy == "pjrt"
    options = {
        "--objective": config.objective,
        "--model.type": config.model.type,
        "--train.precision": train.precision,
        "--train.recompute": train.recompute,
        "--train.attention_kernel": train.attention_kernel,
        "--train.batch_size": batch_size,
        "--train.accumulation": train.accumulation,
        "--train.z_loss": _switch(train.z_loss),
        "--train.skip_spikes": _switch(train.skip_spikes),
        "--optimizer.name": optimizer.name,
        "--optimizer.clip_norm": _switch(optimizer.clip_norm),
        "--optimizer.ema": _switch(optimizer.ema),
        "--strategy": "pjrt" if pjrt else "another than pjrt",
    }
    if config.objective == "mlm":
        options |= {"--mlm.probability": config.mlm.probability, "--mlm.unit": config.mlm.unit}
    if pjrt:
        mesh = config.mesh.without_processes().on(
            topology.replicas, f"{topology.name} has {topology.replicas}"
        )
        sizes = mesh.sizes | {"fsdp": mesh.fsdp, "rules": mesh.rules}
        options |= {f"--mesh.{name}": value for name, value in sizes.items()}
    architecture = asdict(
        configure(
            config.model,
            objective=config.objective,
            vocabulary=rows.vocabulary,
            max_length=rows.max_length,
        ).architecture
    )
    options |= {"tokens in a row": rows.max_length, "layers of the model": len(architecture["kinds"])}
    for name, value in architecture.items():
        if name not in _WITHOUT_EFFECT:
            options |= _flat(f"{name} of the model", value)
    options |= {
        _COLUMNS: [name for name in rows.specs(1) if name != "row"],
        _SOURCES: max(1, len(rows.first_rows)),
    }
    return json.loads(json.dumps(options))


def _switch(value: float | None) -> str:
    return "on" if value else "off"


def _flat(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {f"{inner} of {name}": each for inner, each in value.items()}
