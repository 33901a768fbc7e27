"""The plan verb: what a run would read, give and cost."""

from __future__ import annotations

import json

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import PlanConfig
from tpu_trainer.data.mixture import open_data
from tpu_trainer.data.plan import DataPlan
from tpu_trainer.planning.corpus import corpus_of_datasets, corpus_of_estimate


def main(config: PlanConfig) -> None:
    """Prints the stages and their sources, and the plan.

    Raises:
        UsageError: If the data, the model or a file cannot be used.
    """
    if config.estimate is None:
        data, estimated = DataPlan(config, open_data(config)), None
        corpus = corpus_of_datasets(data)
    else:
        data = None
        corpus, estimated = corpus_of_estimate(config)
    with elapsed("plan: starting TensorFlow"):
        from tpu_trainer.planning.model_cost import model_cost
        from tpu_trainer.planning.run_plan import RunPlan

    plan = RunPlan(config, corpus, model_cost(config, estimated))
    if config.json:
        print(json.dumps((data.to_json() if data else {}) | plan.to_json(), indent=1))
        return
    lines = [*data.lines(), ""] if data else []
    print("\n".join([*lines, *plan.lines()]))
