"""The size of a configured model and the operations of training it, without building it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenmill_reader import Mixture
from tpu_trainer.config import PlanConfig
from tpu_trainer.network.configuration import configure
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.weights import weight_specs
from tpu_trainer.planning.corpus import EstimatedRows
from tpu_trainer.tpu_check.step import Rows, rows_of_mixture, rows_without_dataset
from tpu_trainer.training.model_flops import training_flops_per_row


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """A model on rows of one length."""

    rows: Rows
    type: str
    parameters: int
    has_experts: bool
    flops_per_row: float


def model_cost(config: PlanConfig, data: Mixture | EstimatedRows) -> ModelCost:
    """Returns the size and cost of the model of a configuration on these rows.

    Raises:
        UsageError: If there is no such model, or it does not fit the data.
    """
    if isinstance(data, EstimatedRows):
        rows = rows_without_dataset(config, vocab_size=data.vocab_size, max_length=data.max_length)
    else:
        rows = rows_of_mixture(config, data)
    vocabulary = rows.vocabulary
    architecture = configure(
        config.model, objective=config.objective, vocabulary=vocabulary, max_length=data.max_length
    ).architecture
    predicted = data.max_length
    if config.objective == "mlm":
        masking = Masking(
            vocabulary=vocabulary,
            max_length=data.max_length,
            probability=config.mlm.probability,
            unit=config.mlm.unit,
        )
        predicted = masking.max_targets
    return ModelCost(
        rows=rows,
        type=config.model.type,
        parameters=sum(math.prod(spec.shape) for spec in weight_specs(architecture).values()),
        has_experts=bool(architecture.mlp.experts),
        flops_per_row=training_flops_per_row(architecture, max_length=data.max_length, predicted=predicted),
    )
