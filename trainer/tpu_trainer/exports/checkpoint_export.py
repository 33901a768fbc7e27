"""Exports a run's checkpoint as a folder that Hugging Face's libraries load.

model.safetensors has PyTorch's names and layouts, which transformers 4 and 5 read; tf_model.h5 has TensorFlow's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, PretrainedConfig, TFPreTrainedModel

from tpu_trainer.config import ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary, load_tokenizer
from tpu_trainer.exports.model_card import model_card
from tpu_trainer.exports.pytorch_layout import pytorch_weights
from tpu_trainer.network.hf_config import network_config
from tpu_trainer.network.model import build_network
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder


def export_checkpoint(folder: RunFolder, step: int, target: Path) -> None:
    """Writes the model of checkpoint `step`, its tokenizer and its model card into the local folder `target`."""
    run = folder.config()
    checkpoints = Checkpoints(folder.checkpoints)
    max_length = checkpoints.metadata(step)["max_length"]
    tokenizer = load_tokenizer(folder.tokenizer)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, folder.tokenizer, run.objective)
    with tf.device("CPU:0"):  # training may occupy the accelerator's memory
        network = build_network(
            network_config(run.model, objective=run.objective, vocabulary=vocabulary, max_length=max_length),
            run.objective,
        )
        checkpoints.restore(step, **{run.optimizer.evaluated: network})
        network = trim_vocabulary(network, vocabulary, run.objective)
    tokenizer.model_max_length = max_length
    if run.objective == "clm":
        drop_end_token(tokenizer)
    save_tokenizer(tokenizer, target, network.config)
    write_network(network, target)
    card = model_card(run, folder=folder, step=step, parameters=network.count_params(), vocabulary=vocabulary)
    (target / "README.md").write_text(card, encoding="utf-8")


def save_tokenizer(tokenizer: Any, target: Path, config: PretrainedConfig) -> None:
    """Writes `tokenizer` into the folder `target`, such that it returns the inputs that `config` was trained on.

    Training passes no token types. Models without an embedding for them, such as GPT-2, CTRL and XLM, look them up as
    token ids if a tokenizer returns them: type 0 would add the first token's embedding to every token's.

    Some classes of transformers 5, such as AlbertTokenizer, replace the normalizer of tokenizer.json with their own
    default, which converts to lower case. PreTrainedTokenizerFast leaves the normalizer unchanged in versions 4 and 5.
    """
    tokenizer.save_pretrained(target)
    if not tokenizer.is_fast:
        return
    path = target / "tokenizer_config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["tokenizer_class"] = "PreTrainedTokenizerFast"
    names = tokenizer.model_input_names
    if not getattr(config, "type_vocab_size", 0):
        names = [name for name in names if name != "token_type_ids"]
    values["model_input_names"] = list(names)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def drop_end_token(tokenizer: Any) -> None:
    """Stops the tokenizer from appending tokens to a text, because a prompt must not end with the end token.

    Tokens that it prepends are kept. Slow tokenizers are not changed.
    """
    text_ids = tokenizer("a", add_special_tokens=False)["input_ids"]
    ids = tokenizer("a")["input_ids"]
    prefix_length = next(
        length for length in range(len(ids) + 1) if ids[length : length + len(text_ids)] == text_ids
    )
    if prefix_length + len(text_ids) == len(ids) or not tokenizer.is_fast:
        return
    prefix = tokenizer.convert_ids_to_tokens(ids[:prefix_length])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=[*prefix, "$A"],
        pair=[*prefix, "$A", "$B"],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in dict.fromkeys(prefix)],
    )


def trim_vocabulary(
    network: TFPreTrainedModel, vocabulary: Vocabulary, objective: ObjectiveName = "mlm"
) -> TFPreTrainedModel:
    """Returns a copy of the network without the ids that pad the vocabulary."""
    config = type(network.config).from_dict(network.config.to_dict() | {"vocab_size": vocabulary.size})
    trimmed = build_network(config, objective)
    for target, source in zip(trimmed.weights, network.weights, strict=True):
        value = source.numpy()
        for axis in np.flatnonzero(np.array(target.shape) != np.array(source.shape)):
            value = np.take(value, np.arange(target.shape[axis]), axis=axis)
        target.assign(value)
    return trimmed


def write_network(network: TFPreTrainedModel, folder: Path) -> None:
    """Writes config.json, model.safetensors and tf_model.h5, and generation_config.json if the model generates."""
    network.config.architectures = [type(network).__name__.removeprefix("TF")]
    network.config.save_pretrained(folder)
    if network.can_generate():
        pad = network.config.pad_token_id
        GenerationConfig(
            bos_token_id=network.config.bos_token_id,
            eos_token_id=network.config.eos_token_id,
            pad_token_id=network.config.eos_token_id if pad is None else pad,
        ).save_pretrained(folder)
    save_file(pytorch_weights(network), folder / "model.safetensors", metadata={"format": "pt"})
    network.save_weights(str(folder / "tf_model.h5"))
