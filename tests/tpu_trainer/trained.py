"""Networks and runs without training, as input of exports and pushes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.tpu_trainer.model_types import model_of, small_config
from tests.tpu_trainer.tiny import MAX_LENGTH
from tpu_trainer.config import DataConfig, FitConfig, ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import write_model
from tpu_trainer.network.configuration import Configuration, configure
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.runs.checkpoint import Checkpoints, State, named_variables
from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.runs.parts import Parts, whole_parts
from tpu_trainer.runs.run_folder import RunFolder

GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
ROBERTA = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def configuration_of(model_type: str, vocabulary: Vocabulary, **values: Any) -> Configuration:
    """Returns the configuration of `model_of` for rows of MAX_LENGTH tokens."""
    return configure(
        ModelConfig(type=model_type, config=small_config(model_type) | values),
        objective=FAMILIES[model_type].objective,
        vocabulary=vocabulary,
        max_length=MAX_LENGTH,
    )


def export_of(model_type: str, vocabulary: Vocabulary, folder: Path, **values: Any) -> LanguageModel:
    """Writes a model, in which no weight is 0, into a folder; returns it."""
    model = model_of(model_type, vocabulary, length=MAX_LENGTH, noise=0.2, **values)
    weights = {name: variable.numpy() for name, variable in model.network.weights.items()}
    write_model(configuration_of(model_type, vocabulary, **values), weights, folder, vocabulary=vocabulary)
    return model


def snapshot(state: State) -> dict[str, np.ndarray]:
    """Copies the values of a state; returns them by name in checkpoints."""
    return {name: variable.numpy() for name, variable in named_variables(state).items()}


def joined(parts: Parts) -> dict[str, np.ndarray]:
    """Returns the arrays of which these are all parts."""
    arrays = {}
    for name, each in parts.items():
        arrays[name] = np.full(each[0].shape, -99, each[0].values.dtype)
        for part in each:
            place = tuple(
                slice(first, first + size) for first, size in zip(part.start, part.values.shape, strict=True)
            )
            arrays[name][place] = part.values
        assert sum(part.values.size for part in each) == arrays[name].size
    return arrays


def run_of(path: Path, tokenizer_folder: Path, vocabulary: Vocabulary) -> RunFolder:
    """Writes a run of a causal model, with checkpoints of steps 10, 20 and 30."""
    config = FitConfig(
        output_dir=str(path),
        data=DataConfig(train="OUT/train"),
        objective="clm",
        model=ModelConfig(type="gpt2", config=GPT2),
    )
    folder = RunFolder(config.output_dir)
    folder.start(config, str(tokenizer_folder))
    entry = {
        "share": None,
        "max_length": MAX_LENGTH,
        "fingerprint": "f",
        "documents": 12,
        "inputs": ["a.txt"],
        "further_inputs": 1200,
    }
    folder.write_data(
        [
            entry | {"name": "OUT/train", "use": "training", "rows": 300, "tokens": 4792},
            entry | {"name": "OUT/validation", "use": "validation", "rows": 67, "tokens": None},
        ]
    )
    network = model_of("gpt2", vocabulary, length=MAX_LENGTH, noise=0.2, **GPT2).network
    checkpoints = Checkpoints(folder.checkpoints, keep=3)
    log = MetricsLog(folder, last_step=0, tensorboard=False)
    for step, loss in ((10, 3.0), (20, 1.5), (30, 2.0)):
        values = whole_parts(snapshot({"network": network.weights}))
        checkpoints.write(step, values, metadata={"max_length": MAX_LENGTH, "data": "f"})
        if step < 30:
            checkpoints.record(step, validation_loss=loss)
        log.append({"step": step, "loss": loss + 0.1, "accuracy": 0.5})
        log.append({"step": step, "eval": {"loss": loss, "perplexity": np.exp(loss), "accuracy": 0.4}})
    return folder
