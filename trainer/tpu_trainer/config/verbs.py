"""The configurations of the verbs other than fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpu_trainer.config.data import DataConfig
from tpu_trainer.config.devices import TrainingStrategyName
from tpu_trainer.config.fit import FitConfig
from tpu_trainer.config.mesh import MeshConfig, check_mesh
from tpu_trainer.config.ranges import (
    ABOVE_0_TO_1,
    AT_LEAST_1,
    NOT_NEGATIVE,
    SEED,
    check_ranges,
    require,
)
from tpu_trainer.config.training import Precision
from tpu_trainer.support.errors import UsageError

MOST_RUNS = 12
"""Runs that a comparison shows: six colours, with full and with dashed lines."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluates a run's checkpoint on a whole split, or a model on tasks.

    Examples:
        tokenmill-trainer evaluate --run run
        tokenmill-trainer evaluate --run run --data other/validation --output other.json
        tokenmill-trainer evaluate --run run --checkpoint best
        tokenmill-trainer evaluate --run run --strategy pjrt --mesh.fsdp true
        tokenmill-trainer evaluate --run run --tasks hellaswag,arc_easy --task_folder tasks
        tokenmill-trainer evaluate --model model --tasks agreement.jsonl
    """

    run: str | None = None
    """Folder that `fit` wrote."""
    checkpoint: str = "latest"
    """The run's checkpoint: latest, best (lowest validation loss), or the step of one that the run has kept."""
    model: str | None = None
    """Instead of run, with tasks: folder that `export` wrote."""
    data: str | dict[str, str] | None = None
    """Folder of the split, or a mapping of names to folders; default: the run's data.validation."""
    tasks: str | None = None
    """Instead of data: tasks to score, separated by commas (docs/training.md). Names of tasks or groups of lm-eval, and
    paths of task files (YAML), for causal models; files of minimal pairs (.jsonl) with sentence_good and sentence_bad
    in each line, for all. The scores are added to evaluations.jsonl in the run's folder."""
    task_folder: str | None = None
    """Local folder with further task files of lm-eval, and with the data of tasks: folder/Rowan/hellaswag is a copy of
    that dataset. Functions in Python that the task files name are executed."""
    download: bool = False
    """Let lm-eval download the data of tasks from the Hugging Face Hub. false: nothing is downloaded."""
    shots: int | None = None
    """Solved examples before each item of lm-eval's tasks; default: as many as the task names, else none."""
    limit: int | None = None
    """Evaluate only the first items of each task."""
    batch_size: int | None = None
    """Rows in a step, over all replicas; default: the run's batch size, or with model 8 for each replica. The figures
    do not depend on it."""
    precision: Precision | None = None
    """Precision of the computation; default: the run's, or float32 with model."""
    output: str | None = None
    """JSON file to write; default: evaluation.json in the run's folder, or none with tasks."""
    strategy: TrainingStrategyName = "auto"
    """Devices to use. auto: a TPU if there is one, else GPUs, else the CPU. pjrt: a mesh of those that JAX finds."""
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        check_ranges(self, batch_size=AT_LEAST_1, shots=NOT_NEGATIVE, limit=AT_LEAST_1)
        check_mesh(self.mesh, self.strategy)
        _check_checkpoint(self.checkpoint)
        require(
            self.model is None or self.checkpoint == "latest",
            "checkpoint",
            self.checkpoint,
            "an exported model has none; remove it, or give --run",
        )
        require(
            self.run is None or self.model is None,
            "model",
            self.model,
            "there is --run, too; remove one of both",
        )
        require(
            self.run is not None or self.model is not None,
            "run",
            self.run,
            "give the folder of a run, or an exported model with --model",
        )
        if self.tasks is None:
            require(self.model is None, "model", self.model, "only for tasks; set --tasks, too")
            for name in ("task_folder", "shots", "limit"):
                require(
                    getattr(self, name) is None, name, getattr(self, name), "only for tasks; set --tasks, too"
                )
        else:
            require(self.data is None, "data", self.data, "there is --tasks, too; remove one of both")
            require(all(map(str.strip, self.tasks.split(","))), "tasks", self.tasks, "has an empty name")


@dataclass(frozen=True)
class CompareConfig:
    """Compares runs, finished or not, or shows one: writes a page with losses, scores, options, data and speed.

    Examples:
        tokenmill-trainer compare runs/a runs/b --output comparison.html
        tokenmill-trainer compare gs://bucket/runs/a runs/b --json
    """

    runs: list[str] = field(metadata={"positional": True, "argument": {"nargs": "+", "metavar": "RUN"}})
    """Folders that `fit` wrote."""
    output: str = "comparison.html"
    """The page to write."""
    json: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Print the figures and differences as a JSON document."""

    def __post_init__(self) -> None:
        if len(self.runs) > MOST_RUNS:
            raise UsageError(f"{len(self.runs)} runs: give the folders of at most {MOST_RUNS}")


@dataclass(frozen=True)
class ExportConfig:
    """Writes a run's checkpoint as a Hugging Face model folder.

    Examples:
        tokenmill-trainer export --run run --output model
        tokenmill-trainer export --run run --output model --checkpoint best
    """

    run: str
    """Folder that `fit` wrote."""
    output: str
    """Folder to write: config.json, model.safetensors, README.md and the tokenizer's files."""
    checkpoint: str = "latest"
    """The checkpoint: latest, best (lowest validation loss), or the step of one that the run has kept."""
    json: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Print the result as a JSON document."""

    def __post_init__(self) -> None:
        _check_checkpoint(self.checkpoint)


@dataclass(frozen=True)
class FillMaskConfig:
    """Predicts the tokens at the mask tokens of a text.

    Examples:
        tokenmill-trainer fill-mask --model model --text 'A list of strings in a <mask>.'
        tokenmill-trainer fill-mask --model model --top_k 3 < texts.txt
    """

    model: str
    """Folder that `export` wrote."""
    text: str | None = None
    """Text with one or more mask tokens; default: the lines of standard input, a text each."""
    top_k: int = 5
    """Predictions for each mask token."""
    json: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Read a JSON object per line, its text under "text"; print it with the predictions under "masks"."""

    def __post_init__(self) -> None:
        check_ranges(self, top_k=AT_LEAST_1)


@dataclass(frozen=True)
class GenerateConfig:
    """Continues texts with an exported causal model.

    Examples:
        tokenmill-trainer generate --model model --text 'def main'
        tokenmill-trainer generate --model model --chat --text 'Who are you?'
        tokenmill-trainer generate --model model --temperature 0.8 --top_p 0.95 < prompts.txt
    """

    model: str
    """Folder that `export` wrote."""
    text: str | None = None
    """Text to continue; default: the lines of standard input, a text each."""
    chat: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """The text is a user's message: write it by the tokenizer's chat template, and print the answer, which ends with
    the token that ends a turn."""
    max_new_tokens: int | None = None
    """Most tokens to add; the model may end the text earlier. Default: 50, or as many as fit into the model."""
    temperature: float = 0.0
    """0: the likeliest token. Above 0: sample; 1 samples from the model's distribution, higher values more evenly."""
    top_k: int | None = None
    """Sample only from this many of the likeliest tokens."""
    top_p: float | None = None
    """Sample only from the likeliest tokens whose probabilities sum up to this value."""
    seed: int = 0
    """Determines the samples, together with the line's number."""
    batch_size: int = 8
    """Lines to continue at a time. The texts do not depend on it."""
    json: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Read a JSON object per line, its text under "text"; print it with the new text under "continuation"."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            max_new_tokens=AT_LEAST_1,
            temperature=NOT_NEGATIVE,
            top_k=AT_LEAST_1,
            top_p=ABOVE_0_TO_1,
            seed=SEED,
            batch_size=AT_LEAST_1,
        )
        for name in ("top_k", "top_p"):
            value = getattr(self, name)
            rule = "nothing is sampled with --temperature 0; set a temperature"
            require(value is None or self.temperature > 0, name, value, rule)


@dataclass(frozen=True)
class PlanConfig(FitConfig):
    """Shows what a run would read, how good its model can be, and what it would take: tokens and epochs of each source
    in each stage, the loss and the best size by scaling laws, hours and dollars.

    Examples:
        tokenmill-trainer plan --config tiny-clm --data.train '{A/train: 3, B/train: 1}' --train.steps 5000
        tokenmill-trainer plan --config run/config.yaml --train.steps 20000 --topology v5e:2x4
        tokenmill-trainer plan --config gpt2-small --estimate estimate.json --topology H100:8 --mfu '[0.35, 0.5]'
    """

    output_dir: str = ""
    """Not used. Configurations of `fit` may contain it."""
    data: DataConfig = field(default_factory=lambda: DataConfig(train=""))
    """The datasets in data.train, or none with --estimate."""
    estimate: str | None = None
    """JSON that `tokenmill prepare --estimate --json` printed: the rows of a corpus that is not prepared yet, instead
    of data.train."""
    topology: str | None = None
    """What to rent: TPU chips, such as v5e:2x4, or GPUs, such as H100:8. Default: one of each kind, to compare."""
    report: str | None = None
    """JSON that `compile-check --output` wrote for this configuration: its least step time gives the shortest time. Of
    --find_mesh, give the options that it printed, too."""
    mfu: tuple[float, float] = (0.3, 0.6)
    """Lowest and highest share of the peak operations per second that training reaches, such as '[0.35, 0.5]'."""
    prices: dict[str, float] = field(default_factory=dict)
    """Dollars per hour of a chip or GPU, such as '{v5e: 0.6}', instead of the table's."""
    json: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Print the figures as a JSON document."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = bool(self.data.train)
        require(given or self.estimate is not None, "data.train", "", "give datasets, or --estimate")
        require(
            not (given and self.estimate),
            "estimate",
            self.estimate,
            "--data.train has the tokens; remove one",
        )
        low, high = self.mfu
        require(0 < low <= high <= 1, "mfu", list(self.mfu), "give two ascending shares above 0, at most 1")


@dataclass(frozen=True)
class CompileCheckConfig(FitConfig):
    """Compiles the training step for a TPU, without one, and reports whether it fits and what it costs.

    With --strategy pjrt, the step of a mesh of devices; with the other strategies, that of a replica.

    Examples:
        tokenmill-trainer compile-check --config roberta-base --topology v5e:2x4
        tokenmill-trainer compile-check --config gpt2-small --topology v4:2x2x1 --find_batch_size
        tokenmill-trainer compile-check --config gpt2-small --strategy pjrt --mesh.fsdp true
        tokenmill-trainer compile-check --config gpt2-small --strategy pjrt --find_mesh
        tokenmill-trainer compile-check --compare a.yaml b.yaml
    """

    output_dir: str = ""
    """Not used. Configurations of `fit` may contain it."""
    data: DataConfig = field(default_factory=lambda: DataConfig(train=""))
    """Optional. data.train determines the vocabulary and the shape of the rows."""
    topology: str = "v5e:2x4"
    """Generation and chips per side: v3, v5e and v6e have two sides (v5e:2x4), v4, v5p and tpu7x three
    (v4:2x2x1)."""
    vocab_size: int | None = None
    """Without data.train: tokens in the vocabulary. Default: the model type's, such as RoBERTa's 50265."""
    max_length: int | None = None
    """Without data.train: tokens in a row. Default: the positions of the model type's configuration."""
    find_batch_size: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Find the largest batch of a replica (of a row of the mesh) that fits, instead of checking train.batch_size."""
    batch_multiple: int = 8
    """find_batch_size tries only multiples of this; TPUs pad arrays to multiples of 8 rows."""
    find_mesh: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """With --strategy pjrt: find the mesh of all devices that fits and has the most tokens per second by its least step
    time, with train.batch_size rows in any number of micro-batches (docs/sharding.md). It keeps mesh.expert and
    mesh.sequence. With find_batch_size, also find the batch, in powers of two, with the configured number of
    micro-batches."""
    find_recompute: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """find_mesh also finds which train.recompute is best."""
    compare: list[str] | None = field(
        default=None, metadata={"argument": {"nargs": 2, "metavar": ("A", "B")}}
    )
    """Two configurations to check side by side, instead of --config: `--compare a.yaml b.yaml`. These files have the
    options of `fit`; only the other options can be combined with --compare."""
    output: str | None = None
    """JSON file to write the figures to; default: only print the table."""
    json: bool = field(default=False, metadata={"argument": {"action": "store_true"}})
    """Print the figures as one JSON document, as in the file of --output, and all else to stderr."""
    hlo: str | None = None
    """Folder to write the compiled programs to (XLA's optimized HLO, as text); default: none."""
    cache: str | None = None
    """Folder that caches the compiler's results. Default: tokenmill/compile-check in the user's cache folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, batch_multiple=AT_LEAST_1)
        require(
            self.find_mesh or not self.find_recompute,
            "find_recompute",
            True,
            "it is an option of --find_mesh; add it",
        )
        for name in ("vocab_size", "max_length"):
            value = getattr(self, name)
            # Less has no room for the special tokens and one to predict.
            require(value is None or value >= 8, name, value, "must be at least 8")
            rule = "--data.train determines it; remove one of the two"
            require(value is None or not self.data.train, name, value, rule)


def _check_checkpoint(value: str) -> None:
    """Raises UsageError if the value of --checkpoint cannot name one."""
    valid = value in ("latest", "best") or value.isdecimal()
    require(valid, "checkpoint", value, "must be latest, best or a step")
