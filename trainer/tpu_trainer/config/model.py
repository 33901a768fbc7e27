"""The model and its objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tpu_trainer.config.ranges import BETWEEN_0_AND_1, check_ranges, require

ObjectiveName = Literal["mlm", "clm"]
MaskingUnit = Literal["token", "word", "span"]


@dataclass(frozen=True)
class ModelConfig:
    """The model."""

    type: str | None = None
    """A Hugging Face model type of the objective: roberta, bert, … for mlm; llama, gpt2, … for clm. Default: the type
    of init_from, else roberta or gpt2."""
    init_from: str | None = None
    """Folder of a model to start from, as `export` and PyTorch's save_pretrained() write it: config.json, and
    model.safetensors or its parts with their index. Its tokenizer must be the dataset's. Default: random initial
    weights."""
    config: dict[str, Any] = field(default_factory=dict)
    """Values that differ from the type's defaults: hidden_size, num_hidden_layers, … The tokenizer determines the
    vocabulary's size and the special ids."""
    init_output_bias: bool = False
    """Initialize the output bias with the log frequencies of the training tokens (from statistics.json), which saves
    the first steps from learning them."""

    def __post_init__(self) -> None:
        require(
            not (self.init_output_bias and self.init_from),
            "model.init_output_bias",
            self.init_output_bias,
            "the model of --model.init_from already has an output bias; remove one of the two options",
        )


@dataclass(frozen=True)
class MlmConfig:
    """Masked language modelling (objective mlm)."""

    probability: float = 0.15
    """Share of a row's tokens to predict. Of these, 80% become the mask token, 10% a random token, and 10% stay."""
    unit: MaskingUnit = "token"
    """What to mask as a unit. word: all tokens of a word; span: spans of tokens with SpanBERT's geometric lengths
    (p = 0.2, at most 10). The share is exact: words of one token, or a shortened span, make up the remainder."""

    def __post_init__(self) -> None:
        check_ranges(self, "mlm", probability=BETWEEN_0_AND_1)
