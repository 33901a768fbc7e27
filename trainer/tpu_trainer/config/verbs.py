"""The configurations of the verbs other than fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_trainer.config.data import DataConfig
from tpu_trainer.config.devices import StrategyName
from tpu_trainer.config.fit import FitConfig
from tpu_trainer.config.ranges import (
    ABOVE_0_TO_1,
    AT_LEAST_1,
    NOT_NEGATIVE_FINITE,
    SEED,
    check_ranges,
    require,
)


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluates a run's newest checkpoint on a whole split."""

    run: str
    """Folder that `fit` wrote."""
    data: str | None = None
    """Folder of the split; default: the run's own data.validation."""
    batch_size: int | None = None
    """Rows in a step, over all replicas; default: the run's. The figures do not depend on it."""
    output: str | None = None
    """JSON file to write; default: evaluation.json in the run's folder."""
    strategy: StrategyName = "auto"
    """Where to compute. auto: a TPU where there is one, else GPUs, else the CPU."""

    def __post_init__(self) -> None:
        check_ranges(self, batch_size=AT_LEAST_1)


@dataclass(frozen=True)
class ExportConfig:
    """Writes a run's checkpoint as a Hugging Face model folder, for PyTorch and TensorFlow."""

    run: str
    """Folder that `fit` wrote."""
    output: str
    """Folder to write: config.json, model.safetensors, tf_model.h5, README.md and the tokenizer's files."""
    checkpoint: str = "latest"
    """Which one: latest, best (the one with the lowest validation loss), or a step that the run has kept."""

    def __post_init__(self) -> None:
        require(
            self.checkpoint in ("latest", "best") or self.checkpoint.isdecimal(),
            "checkpoint",
            self.checkpoint,
            "must be latest, best or a step",
        )


@dataclass(frozen=True)
class FillMaskConfig:
    """Predicts what stands at the mask tokens of a text."""

    model: str
    """Folder that `export` wrote."""
    text: str | None = None
    """Text with one or more mask tokens; default: one text per line of the standard input."""
    top_k: int = 5
    """Predictions for each mask token."""
    json: bool = False
    """Read a JSON object per line, its text under "text"; print it with the predictions under "masks"."""

    def __post_init__(self) -> None:
        check_ranges(self, top_k=AT_LEAST_1)


@dataclass(frozen=True)
class GenerateConfig:
    """Continues texts with an exported causal model."""

    model: str
    """Folder that `export` wrote."""
    text: str | None = None
    """What to continue; default: one text per line of the standard input."""
    max_new_tokens: int | None = None
    """Tokens to add at most; fewer where the model ends the text itself. Default: 50, or as many as the model holds."""
    temperature: float = 0.0
    """0: always the likeliest token. Above: drawn at random, the more evenly the higher it is; 1 as the model says."""
    top_k: int | None = None
    """Draw from the so many likeliest tokens only."""
    top_p: float | None = None
    """Draw from the likeliest tokens only, so many that their probabilities sum up to this."""
    seed: int = 0
    """Decides what is drawn, for each line of its own."""
    batch_size: int = 8
    """Lines that are read at a time; those of equally many tokens are continued together. The texts do not depend on
    it."""
    json: bool = False
    """Read a JSON object per line, its text under "text"; print it with the new text under "continuation"."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            max_new_tokens=AT_LEAST_1,
            temperature=NOT_NEGATIVE_FINITE,
            top_k=AT_LEAST_1,
            top_p=ABOVE_0_TO_1,
            seed=SEED,
            batch_size=AT_LEAST_1,
        )
        for name in ("top_k", "top_p"):
            value = getattr(self, name)
            rule = "nothing is drawn with --temperature 0; set that, too"
            require(value is None or self.temperature > 0, name, value, rule)


@dataclass(frozen=True)
class CompileCheckConfig(FitConfig):
    """Compiles the training step for a TPU, without one; says whether it fits and what it costs. Runs nothing."""

    output_dir: str = ""
    """Not used: nothing is trained. A configuration of `fit` may hold it."""
    data: DataConfig = field(default_factory=lambda: DataConfig(train=""))
    """Not needed. With data.train, the vocabulary and the rows' shape are the dataset's."""
    topology: str = "v5e:2x4"
    """Generation and chips along each side: v3, v5e and v6e have two sides (v5e:2x4), v4 and v5p three (v4:2x2x1)."""
    vocab_size: int | None = None
    """Without data.train: tokens in the vocabulary. Default: the model type's own, such as RoBERTa's 50265."""
    max_length: int | None = None
    """Without data.train: tokens in a row. Default: the positions of the model type's own configuration."""
    find_batch_size: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Find the largest batch of a replica that fits, instead of checking train.batch_size."""
    batch_multiple: int = 8
    """find_batch_size tries multiples of this only; a TPU's arrays are padded to multiples of 8 rows."""
    compare: list[str] | None = field(
        default=None, metadata={"argument": {"nargs": 2, "metavar": ("A", "B")}}
    )
    """Configurations to check side by side, instead of --config: `--compare a.yaml b.yaml`. What they train with stands
    in them; only the options that no configuration of `fit` has may stand beside --compare."""
    output: str | None = None
    """JSON file to write; default: none, the figures are printed as a table only."""
    hlo: str | None = None
    """Folder for the compiled programs' text (XLA's optimized HLO); default: not written."""
    cache: str | None = None
    """Folder that keeps what the compiler said. Default: tokenmill/compile-check in the user's cache folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, batch_multiple=AT_LEAST_1)
        for name in ("vocab_size", "max_length"):
            value = getattr(self, name)
            # Below that there is no room for the special tokens and one to predict.
            require(value is None or value >= 8, name, value, "must be at least 8")
            require(
                value is None or not self.data.train, name, value, "it is the dataset's, with --data.train"
            )
