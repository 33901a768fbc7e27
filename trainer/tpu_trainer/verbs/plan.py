"""The plan verb: what a run would read."""

from __future__ import annotations

import json

from tpu_trainer.config import PlanConfig
from tpu_trainer.data.mixture import open_data
from tpu_trainer.data.plan import DataPlan


def main(config: PlanConfig) -> None:
    """Prints the stages and their sources.

    Raises:
        UsageError: If the data cannot be opened.
    """
    plan = DataPlan(config, open_data(config))
    print(json.dumps(plan.to_json(), indent=1) if config.json else "\n".join(plan.lines()))
