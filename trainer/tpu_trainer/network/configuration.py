"""The configuration of a network: transformers' values, checked, and the architecture that they mean."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenmill_reader.console.spelling import suggestion
from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.families.family import ConfigValues, Family
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.support.errors import UsageError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_KINDS = {"mlm": "masked-LM", "clm": "causal-LM"}
# Determined by the tokenizer.
_DERIVED_VALUES = frozenset(
    ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
)
# ModernBERT's names for two of them.
_SAME = {"cls_token_id": "bos_token_id", "sep_token_id": "eos_token_id"}
_POSITIONS = "max_position_embeddings"
_MOST = 2**31 - 1
# Whole numbers that may be 0.
_MAY_BE_0 = frozenset(("max_window_layers",))


@dataclass(frozen=True)
class Configuration:
    """A network's configuration, in transformers' terms and in the trainer's."""

    family: Family
    values: dict[str, Any]
    """Of config.json, all keys of the type's."""
    architecture: Architecture

    @property
    def max_length(self) -> int:
        """The tokens that a row may have."""
        learned = self.architecture.positions
        if learned is None:
            return self.values[_position_key(self.values["model_type"])]
        return learned.count - learned.first


def check_model(config: ModelConfig, objective: ObjectiveName) -> Family:
    """Checks the type of a model and the values of its configuration that do not depend on a dataset.

    Raises:
        UsageError: If the type or a value is not supported.
    """
    types = sorted(name for name, family in FAMILIES.items() if family.objective == objective)
    if config.type not in types:
        meant = suggestion(config.type or "", types)
        raise UsageError(
            f"--model.type is {config.type!r}: not a supported {_KINDS[objective]} model; must be one of "
            f"{', '.join(types)}{meant}"
        )
    for name in config.config:
        if not isinstance(name, str):
            raise UsageError(f"--model.config has {name!r}, which is not a name")
        if name in _DERIVED_VALUES:
            raise UsageError(f"--model.config.{name}: the tokenizer determines it, so it cannot be set")
    _configuration(config, {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0})
    return FAMILIES[config.type]


def configure(
    config: ModelConfig, *, objective: ObjectiveName, vocabulary: Vocabulary, max_length: int
) -> Configuration:
    """Returns the configuration of the model, its vocabulary padded to `vocabulary.padded_size`.

    Raises:
        UsageError: If a type or value is not supported, or the model has too few positions for `max_length` tokens.
    """
    check_model(config, objective)
    derived = {
        "vocab_size": vocabulary.padded_size,
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.bos_id,
        "eos_token_id": vocabulary.eos_id,
    }
    key, default = _position_key(config.type), _configuration(config, derived)
    needed = max_length + default.values[key] - default.max_length
    configuration = _configuration(config, derived, positions=needed)
    if configuration.max_length < max_length:
        raise UsageError(
            f"--model.config.{key} is {configuration.values[key]}: rows of {max_length} tokens need {needed} in a "
            f"model of type {config.type!r}"
        )
    return configuration


def _position_key(model_type: str | None) -> str:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type].attribute_map.get(_POSITIONS, _POSITIONS)


def _configuration(
    config: ModelConfig, derived: dict[str, Any], *, positions: int | None = None
) -> Configuration:
    """Returns the configuration; raises UsageError for values that the family does not support."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    family, kind = FAMILIES[config.type], CONFIG_MAPPING[config.type]
    values = {kind.attribute_map.get(name, name): value for name, value in config.config.items()}
    if positions is not None:
        values = {_position_key(config.type): positions} | values
    try:
        defaults = kind().to_dict()
        same = {name: derived[other] for name, other in _SAME.items() if name in defaults}
        complete = _complete(kind, values | derived | same)
        read = ConfigValues(complete)
        architecture = family.architecture(read)
        _check(complete, {name: defaults[name] for name in read.read if name in defaults}, architecture)
    except (StrictDataclassError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"--model.config of a model of type {config.type!r}: {text}") from None
    for name, value in values.items():
        if name in read.read | family.without_effect or (name in defaults and value == defaults[name]):
            continue
        if name not in complete:
            continue  # transformers 5 converts keys of earlier releases, such as rope_theta
        reason = (
            "not supported; omit it" if name in defaults else "configurations of this type have no such value"
        )
        raise UsageError(
            f"--model.config.{name} is {value!r}: {reason}{suggestion(name, sorted(read.read))} (--model.type "
            f"{config.type})"
        )
    return Configuration(family, complete, architecture)


def complete_values(model_type: str, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Returns values of config.json with the type's defaults, these alone, and the name of the number of positions.

    Raises:
        UsageError: If transformers refuses a value.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    try:
        return _complete(kind, values), kind().to_dict(), _position_key(model_type)
    except (
        StrictDataclassError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
    ) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"config.json of a model of type {model_type!r}: {text}") from None


def _complete(kind: type[PretrainedConfig], values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with the type's defaults."""
    return kind(**copy.deepcopy(values)).to_dict()  # it changes what it is given


def _check(values: dict[str, Any], defaults: dict[str, Any], architecture: Architecture) -> None:
    """Checks the numbers of a configuration, which transformers does not.

    Raises:
        ValueError: If one is out of its range, or the heads do not fit.
    """
    for name, default in defaults.items():
        if isinstance(value := values.get(name), (int, float)) and not isinstance(value, bool):
            rule = _broken_rule(name, value, whole=isinstance(value, int) and not isinstance(default, float))
            if rule is not None:
                raise ValueError(f"{name} is {value!r}: must be {rule}")
    attention = architecture.attention
    if "head_dim" not in values and attention.heads * attention.head_size != architecture.width:
        raise ValueError(f"{attention.heads} heads do not divide the hidden size of {architecture.width}")
    if attention.heads % attention.key_heads:
        raise ValueError(
            f"{attention.heads} heads are no multiple of the {attention.key_heads} key-value heads"
        )


def _broken_rule(name: str, value: float, *, whole: bool) -> str | None:
    """Returns the rule that a value breaks; None: it breaks none."""
    if not math.isfinite(value) or value > _MOST:
        return f"a finite number of at most {_MOST}"
    if "dropout" in name or name.endswith("pdrop"):
        return None if 0 <= value < 1 else "at least 0 and below 1"
    if whole and not name.endswith("_token_id"):
        least = 0 if name in _MAY_BE_0 else 1
        return None if value >= least else f"a whole number of at least {least}"
    return None if value >= 0 else "a number and not negative"
