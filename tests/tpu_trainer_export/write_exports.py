"""Writes a small export of every model type with TensorFlow's logits. Runs in the trainer's environment.

    python write_exports.py TARGET

TARGET/<objective>-<type>/ is an export with reference.npz (input_ids, attention_mask, logits) and answers.json
(results of the verbs fill-mask and generate by text). TARGET/<objective>-<type>-from-pytorch/ is the same for a model
that starts from TARGET/pytorch/<objective>-<type>, which PyTorch saved. TARGET/<objective>-<type>-other… are exports of
models with other values than the type's defaults; their training.json has the standard deviation of each initial weight
and, by the name of each dropout rate, whether it changes the logits in training. TARGET/activations.npz has each
activation's values for `inputs`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import tensorflow as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.activations_tf import get_tf_activation

from tests.tpu_trainer.model_types import ALL, DROPOUT, other_configs, small_config
from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.checkpoint_export import save_tokenizer, trim_vocabulary, write_network
from tpu_trainer.exports.exported import open_model, open_tokenizer
from tpu_trainer.exports.initial_weights import load_weights, resolve_init_from
from tpu_trainer.exports.pytorch_layout import pytorch_name
from tpu_trainer.exports.sampling import Sampling
from tpu_trainer.network.call_context import CallValues
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.model_types import ACTIVATIONS
from tpu_trainer.verbs.fill_mask import MaskFiller
from tpu_trainer.verbs.generate import Generator

LENGTH, WORDS = 16, 45
DROPOUT_KEY = (tf.constant(1, tf.uint32), tf.constant(2, tf.uint32))


def make_tokenizer(objective: ObjectiveName) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of five special tokens and the words w0 to w44; rows of masked models are <s> … </s>."""
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ids = {token: index for index, token in enumerate([*special, *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if objective == "mlm":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    names = ("bos", "pad", "eos", "unk", "mask")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LENGTH,
        **{f"{name}_token": token for name, token in zip(names, special, strict=True)},
    )


def write_export(
    objective: ObjectiveName, config: ModelConfig, folder: Path, *, other_values: bool = False
) -> None:
    """Writes one export and its reference. No weight is 0, so that mistakes show."""
    tokenizer = make_tokenizer(objective)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, "tokenizer", objective)
    model = LanguageModel.create(
        resolve_init_from(config), objective=objective, vocabulary=vocabulary, max_length=LENGTH, seed=0
    )
    model_type = model.network.config.model_type
    spreads = {
        pytorch_name(variable, model_type)[0]: float(np.std(variable.numpy()))
        for variable in model.network.weights
        if variable.shape.num_elements() >= 128
    }
    rng = np.random.default_rng(0)
    if config.init_from is not None:
        load_weights(model.network, config.init_from, vocabulary)
    else:
        for variable in model.network.trainable_variables:
            variable.assign_add(rng.normal(scale=0.1, size=variable.shape).astype(np.float32))
    ids = rng.integers(5, len(tokenizer), size=(3, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    ids[2, 10:], mask[2, 10:] = vocabulary.pad_id, 0
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (3, 1))
    rows = {"input_ids": ids, "attention_mask": mask, "positions": positions}
    logits = model.logits_at(**rows).numpy()
    folder.mkdir()
    if other_values:
        dropouts = {
            name: _drops(model, rows, logits, config.config, name)
            for name in DROPOUT
            if name in config.config
        }
        (folder / "training.json").write_text(json.dumps({"spreads": spreads, "dropouts": dropouts}))
    save_tokenizer(tokenizer, folder, model.network.config)
    write_network(trim_vocabulary(model.network, vocabulary, objective), folder)
    np.savez(
        folder / "reference.npz", input_ids=ids, attention_mask=mask, logits=logits[..., : len(tokenizer)]
    )


def _drops(
    model: LanguageModel, rows: dict[str, np.ndarray], logits: np.ndarray, config: dict[str, Any], name: str
) -> bool:
    """Returns whether the dropout rate `name` alone changes the logits in training."""
    model_of_one = LanguageModel.create(
        ModelConfig(
            type=model.network.config.model_type,
            config=config | {other: 0.0 for other in DROPOUT if other in config and other != name},
        ),
        objective=model.objective,
        vocabulary=model.vocabulary,
        max_length=LENGTH,
        seed=0,
    )
    for variable, value in zip(model_of_one.network.weights, model.network.weights, strict=True):
        variable.assign(value)
    with model_of_one.context.using(CallValues(dropout_key=DROPOUT_KEY, row=tf.range(3))):
        return bool(np.abs(model_of_one.logits_at(**rows, training=True) - logits).max() > 1e-3)


def write_answers(folder: Path, objective: ObjectiveName) -> None:
    """Writes the results of the verbs for the export in `folder`."""
    tokenizer, vocabulary = open_tokenizer(str(folder), objective)
    model = open_model(str(folder), vocabulary, objective)
    if objective == "mlm":
        filler = MaskFiller(model, tokenizer)
        answers = {
            text: [[prediction.token, prediction.probability] for prediction in next(filler.fill(text, 5))]
            for text in ("w1 <mask> w3", "<mask> w9 w9")
        }
    else:
        greedy = Sampling(temperature=0.0, top_k=None, top_p=None, seed=0)
        texts = ["w1 w2 w3", "w40", "w7 w7 w30"]
        continuations = Generator(model, tokenizer, greedy).continued(
            texts, lines=[0, 1, 2], max_new_tokens=8
        )
        answers = dict(zip(texts, continuations, strict=True))
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    inputs = np.linspace(-6, 6, 241, dtype=np.float32)
    np.savez(
        target / "activations.npz",
        inputs=inputs,
        **{name: get_tf_activation(name)(inputs).numpy() for name in sorted(ACTIVATIONS)},
    )
    for objective, model_type in ALL:
        folder = target / f"{objective}-{model_type}"
        write_export(objective, ModelConfig(type=model_type, config=small_config(model_type)), folder)
        write_answers(folder, objective)
        for number, values in enumerate(other_configs(model_type)):
            config = ModelConfig(type=model_type, config=values)
            write_export(objective, config, Path(f"{folder}-other{number}"), other_values=True)
        if (source := target / "pytorch" / folder.name).is_dir():
            continued = Path(f"{folder}-from-pytorch")
            write_export(objective, ModelConfig(init_from=str(source)), continued)
            write_answers(continued, objective)
