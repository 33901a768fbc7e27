"""Training from a model that is there already: its configuration and its weights, from a Hugging Face folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tpu_trainer import files
from tpu_trainer.config import ModelConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.errors import UsageError
from tpu_trainer.exports.exported import CONFIG, read_config
from tpu_trainer.network.model_types import WITHOUT_EFFECT

if TYPE_CHECKING:
    from transformers import TFPreTrainedModel

_PYTORCH, _TENSORFLOW = "model.safetensors", "tf_model.h5"
# Values that all types of models have and that change the network; the others are of generation and of other heads.
_COMMON_KEPT = frozenset(("add_cross_attention", "is_encoder_decoder", "pruned_heads", "tie_word_embeddings"))
# Values that follow from tokenizer, objective and machine.
_NOT_KEPT = frozenset(
    ("model_type", "is_decoder", "vocab_size", "n_words", "pad_token_id", "bos_token_id", "eos_token_id",
     "_attn_implementation", "_attn_implementation_autoset", "_name_or_path")
)  # fmt: skip


def resolved(config: ModelConfig) -> ModelConfig:
    """`config` with the type and the configuration of the model it starts from; its own values win.

    Raises UsageError where the folder holds no model, or one of another type than asked for.
    """
    if config.init_from is None:
        return config
    values = _read_config(config.init_from)
    found = values["model_type"]
    if config.type not in (None, found):
        raise UsageError(
            f"--model.type is {config.type!r}, but {config.init_from} holds a model of type {found!r}; leave it out"
        )
    from transformers import CONFIG_MAPPING, PretrainedConfig  # seconds to import

    if not isinstance(found, str) or found not in CONFIG_MAPPING:
        raise UsageError(f"{config.init_from}: a model of type {found!r}, which transformers does not know")
    values = _as_in_transformers_4(values, config.init_from)
    dropped = (PretrainedConfig().to_dict().keys() - _COMMON_KEPT) | _NOT_KEPT | WITHOUT_EFFECT
    values = {name: value for name, value in values.items() if name not in dropped}
    kept: dict[str, Any] = CONFIG_MAPPING[found](**values).to_diff_dict()
    kept = {name: value for name, value in kept.items() if name not in dropped}
    return replace(config, type=found, config=kept | config.config)


def _read_config(folder: str) -> dict[str, Any]:
    path = files.join(folder, CONFIG)
    if not files.is_file(path):
        raise UsageError(
            f"--model.init_from is {folder!r}: no {CONFIG} there; give a folder that `export` has written"
        )
    values = read_config(folder)
    if "model_type" not in values:
        raise UsageError(f"{path}: it says no model_type")
    return values


def _as_in_transformers_4(values: dict[str, Any], folder: str) -> dict[str, Any]:
    """`values` of a config.json with what transformers 5 writes in another form; UsageError if there is no other."""
    values = dict(values)
    rope = values.pop("rope_parameters", None)
    if rope is not None:
        plain = isinstance(rope, dict) and rope.keys() <= {"rope_type", "rope_theta"}
        if not plain or rope.get("rope_type", "default") != "default":
            raise UsageError(
                f"{files.join(folder, CONFIG)}: rope_parameters is {rope}: TensorFlow's class has only positions of "
                "rope_type 'default'; start from another model"
            )
        values |= {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    # What TensorFlow's classes compute; any other is refused with the values that they ignore.
    sizes = [values.get(name) for name in ("head_dim", "num_attention_heads", "hidden_size")]
    if all(type(size) is int for size in sizes) and sizes[0] * sizes[1] == sizes[2]:
        del values["head_dim"]
    return values


def load_weights(network: TFPreTrainedModel, folder: str, vocabulary: Vocabulary) -> None:
    """Fills `network` with the weights in `folder`: those of model.safetensors in PyTorch's layout, else tf_model.h5.

    Raises UsageError where a weight is missing or of another shape, or where the vocabulary is another.
    """
    size = _read_config(folder).get("vocab_size")
    if size not in (vocabulary.size, vocabulary.padded_size):
        raise UsageError(
            f"--model.init_from is {folder!r}: a model of {size} tokens, but the dataset's tokenizer has "
            f"{vocabulary.size}; prepare the dataset with the model's own tokenizer"
        )
    with files.local_copy(folder) as local:
        weights = _read_weights(network, Path(local), folder)
    for variable in network.weights:
        if variable.name not in weights:
            raise UsageError(f"{folder}: no weights for {variable.name}")
        value = weights.pop(variable.name)
        if value.ndim == len(variable.shape):
            # Ids that do not exist: never predicted, never seen.
            surplus = {(size, vocabulary.padded_size): vocabulary.padded_size - size}
            value = np.pad(
                value,
                [
                    (0, surplus.get(have_want, 0))
                    for have_want in zip(value.shape, variable.shape, strict=True)
                ],
            )
        if value.shape != variable.shape:
            raise UsageError(
                f"{folder}: {variable.name} has the shape {list(value.shape)} where the model's is "
                f"{variable.shape.as_list()}; do values of --model.config change it?"
            )
        variable.assign(value)


def _read_weights(network: TFPreTrainedModel, local: Path, folder: str) -> dict[str, np.ndarray]:
    """Arrays in TensorFlow's layouts by the names of `network`'s variables."""
    if (local / _PYTORCH).is_file():
        return _read_pytorch(network, local / _PYTORCH)
    if (local / _TENSORFLOW).is_file():
        return _read_tensorflow(network, local, folder)
    raise UsageError(f"--model.init_from is {folder!r}: neither {_PYTORCH} nor {_TENSORFLOW} there")


def _read_pytorch(network: TFPreTrainedModel, path: Path) -> dict[str, np.ndarray]:
    from safetensors import safe_open
    from transformers.modeling_tf_pytorch_utils import apply_transpose

    from tpu_trainer.exports.pytorch_layout import pytorch_name

    weights = {}
    with safe_open(path, "np") as file:
        if (file.metadata() or {}).get("format") != "pt":
            raise UsageError(
                f"{path}: its format is {(file.metadata() or {}).get('format')!r}, not PyTorch's, 'pt'"
            )
        names = set(file.keys())
        for variable in network.weights:
            name, transposed = pytorch_name(variable, network.config.model_type)
            if name in names:
                value = file.get_tensor(name).astype(np.float32)
                value = apply_transpose(transposed, value, pt_to_tf=True)
                # PyTorch's biases are vectors; some of TensorFlow's have a leading axis of one.
                value = value.reshape((1,) * (len(variable.shape) - value.ndim) + value.shape)
                weights[variable.name] = value
    return weights


def _read_tensorflow(network: TFPreTrainedModel, local: Path, folder: str) -> dict[str, np.ndarray]:
    found, report = type(network).from_pretrained(
        local, local_files_only=True, use_safetensors=False, output_loading_info=True
    )
    if report["missing_keys"]:
        raise UsageError(f"{folder}: no weights for {', '.join(sorted(report['missing_keys']))}")
    if len(found.weights) != len(network.weights):
        raise UsageError(
            f"{folder}: a model of {len(found.weights)} weights where {len(network.weights)} are wanted; do values of "
            "--model.config change it?"
        )
    return {ours.name: theirs.numpy() for ours, theirs in zip(network.weights, found.weights, strict=True)}
