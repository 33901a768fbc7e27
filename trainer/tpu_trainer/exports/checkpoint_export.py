"""Exports a run's checkpoint as a folder that Hugging Face's libraries load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.chat import end_of_turn
from tpu_trainer.exports.config_file import CONFIG, config_text
from tpu_trainer.exports.model_card import model_card
from tpu_trainer.exports.pytorch_weights import stored_shapes, to_pytorch
from tpu_trainer.exports.saved_tokenizer import save_tokenizer
from tpu_trainer.exports.weight_files import write_weights
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.configuration import Configuration, configure
from tpu_trainer.network.weights import weight_specs
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder


def export_checkpoint(folder: RunFolder, step: int, target: Path) -> None:
    """Writes the model of checkpoint `step`, its tokenizer and its model card into the local folder `target`."""
    run = folder.config()
    checkpoints = Checkpoints(folder.checkpoints)
    max_length = checkpoints.metadata(step)["max_length"]
    tokenizer = load_tokenizer(folder.tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, folder.tokenizer, run.objective)
    configuration = configure(
        run.model, objective=run.objective, vocabulary=vocabulary, max_length=max_length
    )
    save_tokenizer(
        folder.tokenizer,
        target,
        max_length=max_length,
        token_types=configuration.architecture.token_types > 0,
        appends=run.objective == "mlm",
    )
    weights = CheckpointWeights(checkpoints, step, run.optimizer.evaluated, configuration.architecture)
    write_model(configuration, weights, target, vocabulary=vocabulary, end_of_turn=end_of_turn(tokenizer))
    card = model_card(
        run,
        folder=folder,
        step=step,
        parameters=sum(map(prod, _trimmed_shapes(configuration, vocabulary).values())),
        vocabulary=vocabulary,
    )
    (target / "README.md").write_text(card, encoding="utf-8")


class CheckpointWeights(Mapping[str, np.ndarray]):
    """The weights of a checkpoint, which are read when needed: a model may be larger than the memory."""

    def __init__(self, checkpoints: Checkpoints, step: int, part: str, architecture: Architecture) -> None:
        self._specs = weight_specs(architecture)
        # PyTorch's weights come module by module: of all layers, queries, keys and values together.
        self._read = lru_cache(maxsize=3)(
            lambda name: next(checkpoints.read(step, {f"{part}/{name}": self._specs[name].shape}))[1][...]
        )

    def __getitem__(self, name: str) -> np.ndarray:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def write_model(
    configuration: Configuration,
    weights: Mapping[str, np.ndarray],
    folder: Path,
    *,
    vocabulary: Vocabulary,
    end_of_turn: int | None = None,
) -> None:
    """Writes config.json, the weights, and generation_config.json if the model generates.

    Args:
        configuration: The network's.
        weights: The network's, by name.
        folder: An existing local folder.
        vocabulary: The tokenizer's. Ids that pad it are omitted.
        end_of_turn: The id that ends an answer in a conversation; None if there is none.
    """
    (folder / CONFIG).write_text(config_text(configuration, vocabulary=vocabulary.size), encoding="utf-8")
    family, values = configuration.family, configuration.values
    if family.objective == "clm":
        ids = {name: values.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if ids["pad_token_id"] is None:
            ids["pad_token_id"] = ids["eos_token_id"]
        if end_of_turn is not None and end_of_turn != ids["eos_token_id"]:
            ids["eos_token_id"] = [end for end in (ids["eos_token_id"], end_of_turn) if end is not None]
        (folder / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")
    write_weights(
        folder,
        to_pytorch(family, configuration.architecture, weights, vocabulary.size),
        _trimmed_shapes(configuration, vocabulary),
    )


def _trimmed_shapes(configuration: Configuration, vocabulary: Vocabulary) -> dict[str, tuple[int, ...]]:
    architecture = replace(configuration.architecture, vocabulary=vocabulary.size)
    return stored_shapes(configuration.family, architecture)
