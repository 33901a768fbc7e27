"""Configuration and initial weights from the Hugging Face folder in --model.init_from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpu_trainer.config import ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.exported import CONFIG, read_config
WITHOUT_EFFECT = {}
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf
    from transformers import TFPreTrainedModel

    from tpu_trainer.network.initial_values import InitialValues

_PYTORCH, _TENSORFLOW = "model.safetensors", "tf_model.h5"
# Values common to all model types that change the network. The others are for generation or other heads.
_COMMON_KEPT = frozenset(("add_cross_attention", "is_encoder_decoder", "pruned_heads", "tie_word_embeddings"))
# Values that are determined by the tokenizer, the objective and the machine.
_NOT_KEPT = frozenset(
    ("model_type", "is_decoder", "vocab_size", "n_words", "pad_token_id", "bos_token_id", "eos_token_id",
     "_attn_implementation", "_attn_implementation_autoset", "_name_or_path")
)  # fmt: skip


def resolve_init_from(config: ModelConfig) -> ModelConfig:
    """Returns `config` with the type and configuration of the model in `init_from`; values in `config` take precedence.

    Raises:
        UsageError: If the folder has no model, or one of another type than `config.type`.
    """
    if config.init_from is None:
        return config
    values = _read_config(config.init_from)
    model_type = values["model_type"]
    if config.type not in (None, model_type):
        raise UsageError(
            f"--model.type is {config.type!r}, but {config.init_from} has a model of type {model_type!r}; omit "
            "--model.type"
        )
    from transformers import CONFIG_MAPPING, PretrainedConfig  # seconds to import

    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise UsageError(
            f"{config.init_from}: transformers has no model type {model_type!r}; start from another model"
        )
    values = _to_transformers_4(values, config.init_from)
    dropped = (PretrainedConfig().to_dict().keys() - _COMMON_KEPT) | _NOT_KEPT | WITHOUT_EFFECT
    values = {name: value for name, value in values.items() if name not in dropped}
    config_values: dict[str, Any] = CONFIG_MAPPING[model_type](**values).to_diff_dict()
    config_values = {name: value for name, value in config_values.items() if name not in dropped}
    return replace(config, type=model_type, config=config_values | config.config)


def _read_config(folder: str) -> dict[str, Any]:
    path = files.join(folder, CONFIG)
    if not files.is_file(path):
        raise UsageError(
            f"--model.init_from is {folder!r}: no {CONFIG} there; use a folder written by `export`"
        )
    values = read_config(folder)
    if "model_type" not in values:
        raise UsageError(f"{path}: model_type is missing; use a folder written by `export`")
    return values


def _to_transformers_4(values: dict[str, Any], folder: str) -> dict[str, Any]:
    """Converts values of a config.json from transformers 5; raises UsageError if version 4 has no equivalent."""
    values = dict(values)
    rope = values.pop("rope_parameters", None)
    if rope is not None:
        plain = isinstance(rope, dict) and rope.keys() <= {"rope_type", "rope_theta"}
        if not plain or rope.get("rope_type", "default") != "default":
            raise UsageError(
                f"{files.join(folder, CONFIG)}: rope_parameters is {rope}, but TensorFlow's class supports only "
                "rope_type 'default'; start from another model"
            )
        values |= {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    # TensorFlow's classes compute this head size. network_config rejects any other, as it does all ignored values.
    sizes = [values.get(name) for name in ("head_dim", "num_attention_heads", "hidden_size")]
    if all(type(size) is int for size in sizes) and sizes[0] * sizes[1] == sizes[2]:
        del values["head_dim"]
    return values


def load_weights(
    network: TFPreTrainedModel, folder: str, vocabulary: Vocabulary, initial: InitialValues | None = None
) -> None:
    """Assigns the weights in `folder` to `network`, from model.safetensors in PyTorch's layout, else from tf_model.h5.

    `initial` has the network's initial values.

    Raises:
        UsageError: If a weight is missing or has another shape, or the vocabulary has another size.
    """
    from tpu_trainer.network.initial_values import InitialValues  # imports TensorFlow

    initial = initial or InitialValues()
    size = _read_config(folder).get("vocab_size")
    if size not in (vocabulary.size, vocabulary.padded_size):
        raise UsageError(
            f"--model.init_from is {folder!r}: the model's vocabulary has {size} tokens, but the dataset's tokenizer "
            f"{vocabulary.size}; prepare the dataset with the model's tokenizer"
        )
    with files.local_copy(folder) as local:
        weights = _read_weights(network, Path(local), folder)
        for variable in network.weights:
            if variable.name not in weights:
                raise UsageError(f"{folder}: no weights for {variable.name}")
            make = partial(
                _padded, weights.pop(variable.name), variable.shape, size=size, vocabulary=vocabulary
            )
            value = make()
            if value.shape != variable.shape:
                raise UsageError(
                    f"{folder}: {variable.name} has the shape {list(value.shape)}, but the model's has "
                    f"{variable.shape.as_list()}; remove values of --model.config that change it"
                )
            # A copy of a remote folder is deleted.
            initial.assign(
                variable, partial(np.asarray, value) if files.is_url(folder) else make, value=value
            )


def _padded(
    read: Callable[[], np.ndarray], shape: tf.TensorShape, *, size: int, vocabulary: Vocabulary
) -> np.ndarray:
    """Returns a weight of a vocabulary of `size`, with zeros for the ids that pad the vocabulary."""
    value = read()
    if value.ndim != len(shape):
        return value
    surplus = {(size, vocabulary.padded_size): vocabulary.padded_size - size}
    return np.pad(
        value, [(0, surplus.get(have_want, 0)) for have_want in zip(value.shape, shape, strict=True)]
    )


def _read_weights(
    network: TFPreTrainedModel, local: Path, folder: str
) -> dict[str, Callable[[], np.ndarray]]:
    """Returns name of a variable of `network` → function that reads its array, in TensorFlow's layout."""
    if (local / _PYTORCH).is_file():
        return _read_pytorch(network, local / _PYTORCH)
    if (local / _TENSORFLOW).is_file():
        return _read_tensorflow(network, local, folder)
    raise UsageError(
        f"--model.init_from is {folder!r}: neither {_PYTORCH} nor {_TENSORFLOW} there; use a folder written by `export`"
    )


def _read_pytorch(network: TFPreTrainedModel, path: Path) -> dict[str, Callable[[], np.ndarray]]:
    from safetensors import safe_open

    from tpu_trainer.exports.pytorch_layout import pytorch_name

    weights = {}
    with safe_open(path, "np") as file:
        if (file.metadata() or {}).get("format") != "pt":
            raise UsageError(
                f"{path}: its format is {(file.metadata() or {}).get('format')!r}, not 'pt' (PyTorch); save it again "
                "in PyTorch"
            )
        names = set(file.keys())
        for variable in network.weights:
            name, transposed = pytorch_name(variable, network.config.model_type)
            if name in names:
                weights[variable.name] = partial(_read_tensor, path, name, transposed, len(variable.shape))
    return weights


def _read_tensor(path: Path, name: str, transposed: Any, rank: int) -> np.ndarray:
    from safetensors import safe_open
    from transformers.modeling_tf_pytorch_utils import apply_transpose

    with safe_open(path, "np") as file:
        value = file.get_tensor(name).astype(np.float32)
    value = apply_transpose(transposed, value, pt_to_tf=True)
    # PyTorch's biases are vectors; some of TensorFlow's have a leading axis of size 1.
    return value.reshape((1,) * (rank - value.ndim) + value.shape)


def _read_tensorflow(
    network: TFPreTrainedModel, local: Path, folder: str
) -> dict[str, Callable[[], np.ndarray]]:
    source, report = type(network).from_pretrained(
        local, local_files_only=True, use_safetensors=False, output_loading_info=True
    )
    if report["missing_keys"]:
        raise UsageError(f"{folder}: no weights for {', '.join(sorted(report['missing_keys']))}")
    if len(source.weights) != len(network.weights):
        raise UsageError(
            f"{folder}: the model has {len(source.weights)} weights instead of {len(network.weights)}; remove values "
            "of --model.config that change them"
        )
    return {
        variable.name: stored.numpy for variable, stored in zip(network.weights, source.weights, strict=True)
    }
