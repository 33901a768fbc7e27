"""The size of a configured model and the operations of training it, without building it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tpu_trainer.config import PlanConfig
from tpu_trainer.exports.initial_weights import resolve_init_from
from tpu_trainer.network.configuration import configure
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.weights import weight_specs
from tpu_trainer.planning.corpus import EstimatedRows
from tpu_trainer.tpu_check.step import rows_of_dataset, rows_without_dataset
from tpu_trainer.training.model_flops import training_flops_per_row


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """A model on rows of one length."""

    type: str
    parameters: int
    has_experts: bool
    max_length: int
    flops_per_row: float


def model_cost(config: PlanConfig, estimated: EstimatedRows | None) -> ModelCost:
    """Returns the size and cost of the model of a configuration, on its datasets or on `estimated` rows.

    Raises:
        UsageError: If there is no such model, or it does not fit the data.
    """
    config = replace(config, model=resolve_init_from(config.model))
    if estimated is None:
        rows = rows_of_dataset(config)
    else:
        rows = rows_without_dataset(config, vocab_size=estimated.vocab_size, max_length=estimated.max_length)
    architecture = configure(
        config.model, objective=config.objective, vocabulary=rows.vocabulary, max_length=rows.max_length
    ).architecture
    predicted = rows.max_length
    if config.objective == "mlm":
        masking = Masking(
            vocabulary=rows.vocabulary,
            max_length=rows.max_length,
            probability=config.mlm.probability,
            unit=config.mlm.unit,
        )
        predicted = masking.max_targets
    return ModelCost(
        type=config.model.type,
        parameters=sum(math.prod(spec.shape) for spec in weight_specs(architecture).values()),
        has_experts=bool(architecture.mlp.experts),
        max_length=rows.max_length,
        flops_per_row=training_flops_per_row(architecture, max_length=rows.max_length, predicted=predicted),
    )
