"""Configuration and initial weights from the Hugging Face folder in --model.init_from."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpu_trainer.config import ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.config_file import CONFIG, read_config
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    from tpu_trainer.exports.weight_files import WeightFiles
    from tpu_trainer.network.architecture import Architecture
    from tpu_trainer.network.families.family import Family
    from tpu_trainer.network.initial_values import InitialValues
    from tpu_trainer.network.weights import Network

# Values common to all types, in transformers 4 and 5, that do not change the network: for generation, other heads, or
# determined by the tokenizer and the machine.
_NOT_KEPT = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "cls_token_id",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label",
    "label2id", "length_penalty", "mask_token_id", "max_length", "min_length", "model_type", "n_ctx", "n_words",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config",
    "transformers_version", "typical_p", "use_bfloat16", "use_cache", "vocab_size",
))  # fmt: skip
# transformers 4 has these for all types.
_OFF = frozenset(("add_cross_attention", "is_decoder", "is_encoder_decoder", "pruned_heads"))


def resolve_init_from(config: ModelConfig) -> ModelConfig:
    """Returns `config` with the type and configuration of the model in `init_from`; values in `config` take precedence.

    Raises:
        UsageError: If the folder has no model, or one of another type than `config.type`.
    """
    if config.init_from is None:
        return config
    values = read_config(config.init_from)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError(
            f"{files.join(config.init_from, CONFIG)}: model_type is {model_type!r}; use a folder written by `export`"
        )
    if config.type not in (None, model_type):
        raise UsageError(
            f"--model.type is {config.type!r}, but {config.init_from} has a model of type {model_type!r}; omit "
            "--model.type"
        )
    if values.get("quantization_config"):
        raise UsageError(f"{config.init_from}: the model is quantized; dequantize it and save it again")
    return replace(config, type=model_type, config=_network_values(model_type, values) | config.config)


def _network_values(model_type: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a config.json that configure the network, in transformers 5's terms."""
    from tpu_trainer.network.configuration import complete_values  # seconds to import
    from tpu_trainer.network.families.registry import FAMILIES

    if model_type not in FAMILIES:
        return {}  # the type is refused later, with those that are supported
    values = {
        name: value for name, value in values.items() if name not in _NOT_KEPT and (value or name not in _OFF)
    }
    complete, defaults, positions = complete_values(model_type, values)
    dropped = _NOT_KEPT | FAMILIES[model_type].without_effect - {positions}
    return {
        name: value
        for name, value in complete.items()
        if name not in dropped and (name == positions or name not in defaults or value != defaults[name])
    }


def load_weights(
    network: Network,
    folder: str,
    *,
    family: Family,
    vocabulary: Vocabulary,
    initial: InitialValues | None = None,
) -> None:
    """Assigns the weights in `folder`, of PyTorch's class, to `network`.

    Args:
        network: Of the padded vocabulary.
        folder: Local or a URL.
        family: The network's.
        vocabulary: The tokenizer's.
        initial: Has the network's initial values.

    Raises:
        UsageError: If weights are missing, superfluous or of another shape, or the vocabulary has another size.
    """
    from tpu_trainer.exports.pytorch_weights import from_pytorch
    from tpu_trainer.exports.weight_files import WeightFiles
    from tpu_trainer.network.initial_values import InitialValues  # imports TensorFlow

    initial = initial or InitialValues()
    size = read_config(folder).get("vocab_size")
    # Published models are often padded to some multiple.
    surplus = size - vocabulary.size if type(size) is int else -1
    if size != vocabulary.padded_size and not 0 <= surplus <= vocabulary.size // 100:
        raise UsageError(
            f"--model.init_from is {folder!r}: the model's vocabulary has {size} tokens, but the dataset's tokenizer "
            f"{vocabulary.size}; prepare the dataset with the model's tokenizer"
        )
    architecture = replace(network.architecture, vocabulary=size)
    with files.local_copy(folder) as local:
        weights = WeightFiles(Path(local), folder)
        stored = _check_weights(weights, family, architecture, folder)
        for name, variable in network.weights.items():
            make = partial(
                _value,
                name,
                variable.shape,
                partial(from_pytorch, family, architecture, _Reader(weights, stored)),
            )
            # A copy of a remote folder is deleted.
            initial.assign(variable, partial(np.asarray, make()) if files.is_url(folder) else make)


class _Reader:
    """Reads a weight by PyTorch's name."""

    def __init__(self, weights: WeightFiles, stored: dict[str, str]) -> None:
        self._weights = weights
        self._stored = stored

    def __call__(self, name: str) -> np.ndarray:
        return self._weights.read(self._stored[name])


def _value(name: str, shape: Any, read: Any) -> np.ndarray:
    """Returns a weight whose vocabulary is that of the network: cut, or padded with zeros."""
    value = read(name)
    if value.shape == tuple(shape):
        return value
    rows = shape[0]
    return np.pad(value[:rows], [(0, max(0, rows - len(value)))] + [(0, 0)] * (value.ndim - 1))


def _check_weights(
    weights: WeightFiles, family: Family, architecture: Architecture, folder: str
) -> dict[str, str]:
    """Returns PyTorch's name → name in the files."""
    from tpu_trainer.exports.pytorch_weights import stored_shapes

    shapes = stored_shapes(family, architecture)
    stored = {_current_name(name, shapes): name for name in weights.shapes}
    remedy = "check --model.type and the values of --model.config"
    if missing := [name for name in shapes if name not in stored]:
        raise UsageError(f"{folder}: no weights for {_shown(missing)}; {remedy}")
    for name, shape in shapes.items():
        actual = weights.shapes[stored[name]]
        if actual != shape:
            raise UsageError(
                f"{folder}: {stored[name]} has the shape {list(actual)}, but the model's has {list(shape)}; remove "
                "values of --model.config that change it"
            )
    ignored = [re.compile(pattern) for pattern in family.ignored_weights]
    copies = tuple(f"{module}.{part}" for module in family.copies for part in ("weight", "bias"))
    superfluous = [
        stored[name]
        for name in stored.keys() - shapes.keys()
        if name not in copies and not any(pattern.search(name) for pattern in ignored)
    ]
    if superfluous:
        raise UsageError(f"{folder}: the model here has no place for {_shown(sorted(superfluous))}; {remedy}")
    return stored


def _current_name(name: str, expected: Collection[str]) -> str:
    """Returns the name that PyTorch's class gives to a weight today.

    Some published files have those of a model without its head, such as GPT-2's wte.weight, or BERT's
    LayerNorm.gamma.
    """
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    prefix = next(iter(expected)).partition(".")[0]
    longer = f"{prefix}.{name}"
    return longer if name not in expected and longer in expected else name


def _shown(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
