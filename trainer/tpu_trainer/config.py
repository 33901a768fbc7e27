"""What a user can set: frozen dataclasses that are the YAML file and the command line at once.

A field `data.train` is `data: {train: …}` in YAML and `--data.train …` on the command line; a field's text below
is its help. Values are checked here, before anything slow is imported.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tpu_trainer.errors import UsageError

StrategyName = Literal["auto", "cpu", "gpu", "tpu"]
ObjectiveName = Literal["mlm", "clm"]
MaskingUnit = Literal["token", "word", "span"]
Precision = Literal["float32", "mixed_bfloat16"]


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise UsageError(f"--{name} is {value!r}: {rule}")


@dataclass(frozen=True)
class DataConfig:
    """The rows to learn from."""

    train: str | dict[str, float] | list[str]
    """Folder of the training split: `<split>-<shard>-<count>.tfrecord` files, with or without manifest.json. A local
    path or a URL such as gs://bucket/dataset/train. Several: a list of folders, whose rows come equally often, or a
    mapping of folders to weights, {"A/train": 3, "B/train": 1}: three rows of A for each of B."""
    validation: str | None = None
    """Folder of the split that is evaluated during and after training; none: no evaluation."""
    tokenizer: str | None = None
    """Folder of the tokenizer. Default: the one the manifest names, else ../tokenizer beside the split."""
    fingerprint: str | None = None
    """Train on no other data than that whose manifest.json has this fingerprint; for one folder in data.train."""
    window_shards: int = 16
    """Shards read and shuffled together. More mix better and take more memory on the host."""

    def __post_init__(self) -> None:
        _require(self.window_shards >= 1, "data.window_shards", self.window_shards, "must be at least 1")
        if isinstance(self.train, str):
            return
        _require(bool(self.train), "data.train", self.train, "name at least one folder")
        if isinstance(self.train, list):
            _require(
                len(set(self.train)) == len(self.train), "data.train", self.train, "a folder comes twice"
            )
        else:
            rule = "weights must be positive numbers"
            _require(
                all(0 < weight < math.inf for weight in self.train.values()), "data.train", self.train, rule
            )

    @property
    def train_weights(self) -> dict[str, float | None]:
        """The folders of `train`; None: as much weight as the folder has rows."""
        if isinstance(self.train, dict):
            return dict(self.train)
        return dict.fromkeys([self.train] if isinstance(self.train, str) else self.train)


@dataclass(frozen=True)
class ModelConfig:
    """The model."""

    type: str | None = None
    """A Hugging Face model type with a TensorFlow class for the objective: roberta, bert, deberta-v2, … for mlm; gpt2,
    gptj, opt, … for clm. Default: that of init_from, else roberta or gpt2."""
    init_from: str | None = None
    """Folder of a model to start from, as `export` writes it: config.json with model.safetensors in PyTorch's layout,
    or with tf_model.h5. Its tokenizer must be the dataset's. Default: a model from scratch."""
    config: dict[str, Any] = field(default_factory=dict)
    """Values that differ from the type's own configuration: hidden_size, num_hidden_layers, … The vocabulary's size
    and the special ids come from the tokenizer."""
    init_output_bias: bool = False
    """Start the output bias at the log frequencies of the training tokens (from statistics.json), so that the first
    steps need not learn them."""

    def __post_init__(self) -> None:
        _require(
            not (self.init_output_bias and self.init_from),
            "model.init_output_bias",
            self.init_output_bias,
            "the model of --model.init_from has an output bias of its own",
        )


@dataclass(frozen=True)
class MlmConfig:
    """Masked language modelling (objective mlm)."""

    probability: float = 0.15
    """Share of a row's tokens to predict. Of these 80% become the mask token, 10% a random token, 10% stay."""
    unit: MaskingUnit = "token"
    """What is masked as one. word: all tokens of a word; span: spans of tokens, of geometric lengths (p = 0.2, at most
    10, SpanBERT's). The share is kept exactly: words of one token, or a span that is cut, make up what is missing."""

    def __post_init__(self) -> None:
        _require(0 < self.probability < 1, "mlm.probability", self.probability, "must lie between 0 and 1")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW."""

    learning_rate: float = 1e-4
    """The schedule's peak."""
    weight_decay: float = 0.01
    """Decoupled decay, not applied to biases and norms, which are told by their shape."""
    no_decay: list[str] = field(default_factory=list)
    """Regular expressions: weights with names that one of them is found in are not decayed, either. Names are such as
    network/roberta/embeddings/word_embeddings/weight."""
    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.999
    """Decay of the running mean of squared gradients."""
    epsilon: float = 1e-6
    """Added to the root of the mean square."""
    clip_norm: float | None = 1.0
    """The gradient is scaled down to this global norm where it is larger; null: never."""
    ema: float | None = None
    """Decay of a running mean of the weights, which is evaluated and exported in their place, such as 0.999; in the
    first steps it is less, so that the initial weights are forgotten. null: none."""

    @property
    def evaluated(self) -> Literal["network", "average"]:
        """Which of a checkpoint's two sets of weights is evaluated and exported."""
        return "network" if self.ema is None else "average"

    def __post_init__(self) -> None:
        for pattern in self.no_decay:
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(
                    f"--optimizer.no_decay: {pattern!r} is no regular expression: {error}"
                ) from None
        _require(
            self.ema is None or 0 < self.ema < 1,
            "optimizer.ema",
            self.ema,
            "must lie between 0 and 1, or null",
        )
        _require(self.learning_rate > 0, "optimizer.learning_rate", self.learning_rate, "must be positive")
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "must not be negative")
        _require(0 <= self.beta1 < 1, "optimizer.beta1", self.beta1, "must lie in [0, 1)")
        _require(0 <= self.beta2 < 1, "optimizer.beta2", self.beta2, "must lie in [0, 1)")
        _require(self.epsilon > 0, "optimizer.epsilon", self.epsilon, "must be positive")
        _require(
            self.clip_norm is None or self.clip_norm > 0,
            "optimizer.clip_norm",
            self.clip_norm,
            "must be positive, or null for no clipping",
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"] = "linear"
    """What follows the warm-up. linear, cosine: a descent to the last step; wsd (warmup-stable-decay): the peak, and a
    linear descent in the last `decay_share` of the steps; constant: the peak; inverse_sqrt: the peak times the root of
    warm-up ÷ step."""
    warmup_steps: int = 0
    """Steps of linear rise from 0 to the peak."""
    warmup_share: float = 0.0
    """The same as a share of --train.steps; one of the two."""
    decay_share: float = 0.1
    """wsd: the share of --train.steps that the descent takes."""
    final_ratio: float = 0.0
    """linear, cosine, wsd: the learning rate that the descent ends at, as a share of the peak."""

    def warmup(self, steps: int) -> int:
        """Steps of warm-up in a run of `steps`."""
        return self.warmup_steps or round(self.warmup_share * steps)

    def __post_init__(self) -> None:
        _require(0 <= self.warmup_share < 1, "schedule.warmup_share", self.warmup_share, "must lie in [0, 1)")
        _require(
            not (self.warmup_steps and self.warmup_share),
            "schedule.warmup_share",
            self.warmup_share,
            f"the warm-up is given in steps, too: {self.warmup_steps}; give one of the two",
        )
        _require(0 < self.decay_share <= 1, "schedule.decay_share", self.decay_share, "must lie in (0, 1]")
        _require(self.warmup_steps >= 0, "schedule.warmup_steps", self.warmup_steps, "must not be negative")
        _require(0 <= self.final_ratio <= 1, "schedule.final_ratio", self.final_ratio, "must lie in [0, 1]")


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and what to write on the way."""

    steps: int = 10_000
    """Optimizer steps."""
    batch_size: int = 128
    """Rows in a step, over all replicas and all its micro-batches."""
    accumulation: int = 1
    """Micro-batches that a replica takes one after the other in a step, where its rows do not fit into its memory at
    once. The step is the same whatever their number, to the precision of sums."""
    precision: Precision = "float32"
    """mixed_bfloat16: products, and the logits in training, in bfloat16; weights, sums, softmax and loss in float32."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of the model's blocks for the backward pass and compute the rest anew: less memory, about a
    third more operations."""
    steps_per_execution: int = 1
    """Steps taken in one call of the device, which saves time where steps are short. Whatever happens every so many
    steps happens at the next call's end."""
    evaluation_batch_size: int | None = None
    """Rows in a step of evaluation, over all replicas; default: batch_size. The figures do not depend on it."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    evaluate_every: int | None = None
    """Steps between evaluations of the validation split; there is always one at the end."""
    checkpoint_every: int = 1_000
    """Steps between checkpoints; there is always one at the end."""
    checkpoint_minutes: float | None = None
    """Minutes after which a checkpoint is written though `checkpoint_every` steps have not passed; null: never."""
    keep_checkpoints: int = 3
    """Checkpoints kept: the newest. The one with the lowest validation loss is kept besides."""
    recompute_attention: bool = False
    """Compute attention probabilities anew in the backward pass instead of keeping them: less memory, the same loss.
    Known for the types bert, roberta, camembert, electra and gpt2."""
    attention_kernel: bool = False
    """On a TPU: attention as a kernel that keeps every score on the chip, with much less traffic to memory and the
    same loss. Before the first step the device is to show that it gives what plain attention gives. For the
    types of recompute_attention, an even number of heads of 64 dimensions, and rows of 128, 256, 512, 1024 or 2048
    tokens. On other devices: recompute_attention."""
    skip_spikes: float | None = None
    """Leave out an update whose loss lies more than so many standard deviations above the mean of the last 64 or so
    steps, and count it in the log (6 is a usual value); null: leave out none. The step holds a second copy of model and
    optimizer then."""
    deterministic: bool = False
    """Only operations that give the same bits in every run, so that a run that was killed and continued ends with the
    very weights of one that was not. Costs time on GPUs."""
    tensorboard: bool = True
    """Write the figures for TensorBoard, too, into the run's tensorboard/."""

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "accumulation",
            "steps_per_execution",
            "log_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "must be at least 1")
        for name in ("evaluation_batch_size", "evaluate_every"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"train.{name}", value, "must be at least 1, or null")
        _require(
            self.skip_spikes is None or self.skip_spikes > 0,
            "train.skip_spikes",
            self.skip_spikes,
            "must be positive, or null",
        )
        _require(
            self.checkpoint_minutes is None or self.checkpoint_minutes > 0,
            "train.checkpoint_minutes",
            self.checkpoint_minutes,
            "must be positive, or null",
        )


@dataclass(frozen=True)
class TpuConfig:
    """The TPU to use."""

    name: str = "local"
    """local: the one of the TPU VM that this runs on; else a TPU's name, which is looked up."""
    zone: str | None = None
    """The Google Cloud zone of a named TPU."""
    project: str | None = None
    """The Google Cloud project of a named TPU."""
    accelerator_type: str | None = None
    """Its generation and size, such as v5litepod-8, for MFU and the attention kernel; default: what
    TPU_ACCELERATOR_TYPE or the machine's metadata server says."""
    connect_minutes: float = 10.0
    """How long to wait until every host of a TPU elsewhere serves its chips; after that the run ends."""

    def __post_init__(self) -> None:
        for field_name in ("zone", "project"):
            value = getattr(self, field_name)
            _require(
                value is None or self.name != "local",
                f"tpu.{field_name}",
                value,
                "give the TPU's name, too, with --tpu.name",
            )
        _require(
            0 < self.connect_minutes < math.inf,
            "tpu.connect_minutes",
            self.connect_minutes,
            "must be a positive number of minutes",
        )


@dataclass(frozen=True)
class ProfileConfig:
    """A profile of some steps, for TensorBoard's profile plugin."""

    steps: str | None = None
    """FIRST:LAST, such as 10:15: the steps to profile, both included, counted from 1; null: none."""

    def __post_init__(self) -> None:
        rule = "must be FIRST:LAST with 1 <= FIRST <= LAST, such as 10:15"
        _require(
            self.steps is None or re.fullmatch(r"\d+:\d+", self.steps) is not None,
            "profile.steps",
            self.steps,
            rule,
        )
        if (limits := self.range()) is not None:
            _require(1 <= limits[0] <= limits[1], "profile.steps", self.steps, rule)

    def range(self) -> tuple[int, int] | None:
        """The first and the last step."""
        if self.steps is None:
            return None
        first, last = self.steps.split(":")
        return int(first), int(last)


@dataclass(frozen=True)
class FitConfig:
    """Trains a model and writes its run to a folder; continues the run that the folder already holds."""

    output_dir: str
    """Folder of the run: config.yaml, metrics.jsonl, checkpoints/, tokenizer/, summary.json, …"""
    data: DataConfig
    objective: ObjectiveName = "mlm"
    """What is learnt. mlm: tokens that are masked, from both sides; clm: each next token."""
    model: ModelConfig = field(default_factory=ModelConfig)
    mlm: MlmConfig = field(default_factory=MlmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    strategy: StrategyName = "auto"
    """Where to compute. auto: a TPU where there is one, else GPUs, else the CPU. Several hosts with CPUs or GPUs train
    together where each has its TF_CONFIG."""
    tpu: TpuConfig = field(default_factory=TpuConfig)
    hub_model_id: str | None = None
    """Repository on the Hugging Face Hub, such as me/my-model, that the exported model is pushed to: at checkpoints, in
    the background, and at the end. Log in first (`hf auth login`, or HF_TOKEN). null: none."""
    hub_private: bool = False
    """Make that repository a private one, where it does not exist yet."""
    seed: int = 0
    """Decides the initial weights, the order of the rows, the masks and the dropout."""

    def __post_init__(self) -> None:
        if self.model.type is None and self.model.init_from is None:
            default = {"mlm": "roberta", "clm": "gpt2"}[self.objective]
            object.__setattr__(self, "model", replace(self.model, type=default))
        _require(0 <= self.seed < 2**32, "seed", self.seed, "must lie in [0, 2**32)")
        _require(
            self.schedule.warmup_steps < self.train.steps,
            "schedule.warmup_steps",
            self.schedule.warmup_steps,
            f"must be less than --train.steps, {self.train.steps}",
        )
        if self.schedule.name == "wsd":
            room = self.train.steps - self.schedule.warmup(self.train.steps)
            _require(
                round(self.schedule.decay_share * self.train.steps) <= room,
                "schedule.decay_share",
                self.schedule.decay_share,
                f"the descent does not fit into the {room} steps that the warm-up leaves",
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
        _require(
            self.batch_size is None or self.batch_size >= 1,
            "batch_size",
            self.batch_size,
            "must be at least 1",
        )


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
        _require(
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
        _require(self.top_k >= 1, "top_k", self.top_k, "must be at least 1")


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
        for name in ("max_new_tokens", "top_k", "batch_size"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "must be at least 1")
        _require(0 <= self.temperature < math.inf, "temperature", self.temperature, "must not be negative")
        _require(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "must lie in (0, 1]")
        _require(0 <= self.seed < 2**32, "seed", self.seed, "must lie in [0, 2**32)")
        for name in ("top_k", "top_p"):
            value = getattr(self, name)
            rule = "nothing is drawn with --temperature 0; set that, too"
            _require(value is None or self.temperature > 0, name, value, rule)


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
        for name in ("vocab_size", "max_length"):
            value = getattr(self, name)
            # Below that there is no room for the special tokens and one to predict.
            _require(value is None or value >= 8, name, value, "must be at least 8")
            _require(
                value is None or not self.data.train, name, value, "it is the dataset's, with --data.train"
            )
        _require(self.batch_multiple >= 1, "batch_multiple", self.batch_multiple, "must be at least 1")
