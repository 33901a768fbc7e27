"""Hashes of the training steps of small models."""

from __future__ import annotations

import tensorflow as tf

from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.pjrt.executor import train_step
from tpu_trainer.devices.pjrt.stablehlo import Program
from tpu_trainer.training.build import build_task

_BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
_LENGTH = 8
CONFIGS = {
    name: FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(type=name, config=config),
        train=TrainConfig(steps=20, batch_size=4, recompute="all" if name == "gpt2" else "nothing"),
    )
    for name, objective, config in (
        ("roberta", "mlm", _BERT),
        ("gpt2", "clm", {"n_embd": 16, "n_layer": 1, "n_head": 2}),
    )
}


def step_digest(config: FitConfig, vocabulary: Vocabulary) -> str:
    """Returns the hash of the training step of a new model."""
    task = build_task(config, vocabulary=vocabulary, max_length=_LENGTH)
    tokens = tf.TensorSpec([4, _LENGTH], tf.int32)
    specs = {"input_ids": tokens, "attention_mask": tokens, "row": tf.TensorSpec([4], tf.int32)}
    return Program(train_step(task), specs).digest()
