"""The plan verb: what a run would read, give and cost."""

from __future__ import annotations

import json
from dataclasses import replace

from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import PlanConfig
from tpu_trainer.data.mixture import open_data
from tpu_trainer.data.plan import DataPlan
from tpu_trainer.exports.initial_weights import resolve_init_from
from tpu_trainer.planning.corpus import corpus_of_datasets, corpus_of_estimate


def main(config: PlanConfig) -> None:
    """Prints the stages and their sources, and the plan.

    Raises:
        UsageError: If the data, the model or a file cannot be used.
    """
    config = replace(config, model=resolve_init_from(config.model))
    stages = None
    if config.estimate is None:
        data = open_data(config)
        stages = DataPlan(config, data)
        corpus = corpus_of_datasets(stages)
    else:
        corpus, data = corpus_of_estimate(config)
    with elapsed("plan: starting TensorFlow"):
        from tpu_trainer.planning.model_cost import model_cost
        from tpu_trainer.planning.run_plan import RunPlan

    plan = RunPlan(config, corpus, model_cost(config, data))
    if config.json:
        print(json.dumps((stages.to_json() if stages else {}) | plan.to_json(), indent=1))
        return
    lines = [*stages.lines(), ""] if stages else []
    print("\n".join([*lines, *plan.lines()]))
