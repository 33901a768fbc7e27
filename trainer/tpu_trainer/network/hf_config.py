"""The Hugging Face configuration of a network, made from the trainer's options."""

from __future__ import annotations

from transformers import CONFIG_MAPPING, TF_MODEL_FOR_MASKED_LM_MAPPING, PretrainedConfig

from tokenmill_reader.console.spelling import suggestion
from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.config_values import heads_error, value_error
from tpu_trainer.network.model_types import CONFIG_VALUES, EXPORTABLE, WITHOUT_EFFECT, unsupported_reason
from tpu_trainer.support.errors import UsageError

# Without an attention mask, they treat every token with the id `pad_index` as padding.
INFER_PADDING = frozenset(("flaubert", "xlm"))
_KINDS = {"mlm": "masked-LM", "clm": "causal-LM"}
# They are causal only with is_decoder in their configuration.
_ENCODERS = frozenset(cls.model_type for cls in TF_MODEL_FOR_MASKED_LM_MAPPING)
# Their positions count from the padding id: a row's first token has the position pad_id + 1.
_POSITIONS_FROM_PADDING = frozenset(("camembert", "roberta", "roberta-prelayernorm", "xlm-roberta"))
_DERIVED_VALUES = frozenset(("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"))


def check_model(config: ModelConfig, objective: ObjectiveName) -> PretrainedConfig:
    """Checks the type of a model and the values of its configuration that do not depend on a dataset.

    Returns:
        The defaults of the type.

    Raises:
        UsageError: If the type or a value is not supported.
    """
    types = EXPORTABLE[objective]
    if config.type not in types:
        meant = suggestion(config.type or "", types)
        raise UsageError(
            f"--model.type is {config.type!r}: not a supported {_KINDS[objective]} model; must be one of "
            f"{', '.join(sorted(types))}{meant}"
        )
    defaults = CONFIG_MAPPING[config.type]()
    _check_values(config, defaults)
    return defaults


def network_config(
    config: ModelConfig, *, objective: ObjectiveName, vocabulary: Vocabulary, max_length: int
) -> PretrainedConfig:
    """Returns the Hugging Face configuration of the model, its vocabulary padded to `vocabulary.padded_size`.

    Raises:
        UsageError: If a type or value is not supported, or the model has too few positions for `max_length` tokens.
    """
    defaults = check_model(config, objective)
    if config.type in _POSITIONS_FROM_PADDING and vocabulary.pad_id is None:
        raise UsageError(
            f"--model.type is {config.type!r}, which needs a tokenizer with a pad token: its positions count from "
            "that token's id"
        )
    config_values = {defaults.attribute_map.get(name, name): value for name, value in config.config.items()}
    positions = defaults.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    needed_positions = max_length + first_position(config.type, vocabulary)
    values = {positions: needed_positions} | config_values
    if values[positions] < needed_positions:
        raise UsageError(
            f"--model.config.{positions} is {values[positions]}: rows of {max_length} tokens need {needed_positions} "
            f"in a model of type {config.type!r}"
        )
    window = values.get("sliding_window", getattr(defaults, "sliding_window", None))
    if window is not None and window < max_length:
        raise UsageError(
            f"--model.config.sliding_window is {window}: {config.type} in TensorFlow ignores it, so with rows of "
            f"{max_length} tokens the model would differ from PyTorch's; set it to null or to the row length"
        )
    if objective == "clm" and config.type in _ENCODERS:
        values["is_decoder"] = True
    if config.type in INFER_PADDING and vocabulary.pad_id is not None:
        values["pad_index"] = vocabulary.pad_id
    hf_config = CONFIG_MAPPING[config.type](
        vocab_size=vocabulary.padded_size,
        pad_token_id=vocabulary.pad_id,
        bos_token_id=vocabulary.bos_id,
        eos_token_id=vocabulary.eos_id,
        **values,
    )
    if reason := heads_error(hf_config):
        raise UsageError(f"--model.config of a model of type {config.type!r}: {reason}")
    return hf_config


def _check_values(config: ModelConfig, defaults: PretrainedConfig) -> None:
    """Checks the values of `config.config`, under their own names or Hugging Face's aliases of them."""
    for name, value in config.config.items():
        if not isinstance(name, str):
            raise UsageError(f"--model.config has {name!r}, which is not a name")
        if name in _DERIVED_VALUES:
            raise UsageError(f"--model.config.{name}: the tokenizer determines it, so it cannot be set")
        attribute = defaults.attribute_map.get(name, name)
        if not hasattr(defaults, attribute) and attribute not in CONFIG_VALUES[config.type] | WITHOUT_EFFECT:
            meant = suggestion(name, CONFIG_VALUES[config.type])
            raise UsageError(
                f"--model.config.{name}: configurations of type {config.type!r} have no such value{meant}"
            )
        default = getattr(defaults, attribute, None)
        reason = value_error(attribute, value, default) if attribute in CONFIG_VALUES[config.type] else None
        if reason is None and value != default:
            reason = unsupported_reason(config.type, attribute, value)
        if reason is not None:
            location = "" if config.init_from is None else f" (see also config.json in {config.init_from})"
            raise UsageError(f"--model.config.{name} is {value!r}{location}: {reason}")


def first_position(model_type: str, vocabulary: Vocabulary) -> int:
    """Returns the model's position of a row's first token."""
    return vocabulary.pad_id + 1 if model_type in _POSITIONS_FROM_PADDING else 0
