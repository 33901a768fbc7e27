"""The configuration of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from tokenmill_reader.tracking import NAMES, names_of
from tpu_trainer.config.data import DataConfig
from tpu_trainer.config.devices import TpuConfig, TrainingStrategyName
from tpu_trainer.config.mesh import MeshConfig, check_mesh
from tpu_trainer.config.model import MlmConfig, ModelConfig, ObjectiveName
from tpu_trainer.config.optimization import OptimizerConfig, ScheduleConfig
from tpu_trainer.config.ranges import SEED, check_ranges, require
from tpu_trainer.config.training import ProfileConfig, TrainConfig

_Config = TypeVar("_Config", bound="FitConfig")


@dataclass(frozen=True)
class FitConfig:
    """Trains a model, or continues the run in the output folder.

    Examples:
        tokenmill-trainer fit --config tiny-clm --data.train dataset/train --output_dir run
        tokenmill-trainer fit --config model.yaml --data.train A/train --data.validation A/validation --output_dir run
        tokenmill-trainer fit --config run/config.yaml --train.steps 20000
    """

    output_dir: str
    """Folder of the run: config.yaml, metrics.jsonl, checkpoints/, tokenizer/, summary.json, …"""
    data: DataConfig
    objective: ObjectiveName = "mlm"
    """What to learn. mlm: masked tokens, from both sides; clm: each next token."""
    model: ModelConfig = field(default_factory=ModelConfig)
    mlm: MlmConfig = field(default_factory=MlmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    strategy: TrainingStrategyName = "auto"
    """Devices to use. auto: a TPU if there is one, else GPUs, else the CPU. pjrt: the devices of one or several hosts
    that JAX finds, which can also divide weights and optimizer (docs/sharding.md)."""
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tpu: TpuConfig = field(default_factory=TpuConfig)
    hub_model_id: str | None = None
    """Repository on the Hugging Face Hub, such as me/my-model, to push the exported model to: in the background at
    checkpoints, and at the end. Log in first (`hf auth login`, or HF_TOKEN). null: none."""
    hub_private: bool = False
    """Make the repository private if it does not exist yet."""
    track: str | None = None
    """Trackers that also get the figures, such as wandb,mlflow: wandb, mlflow, trackio or otlp. Each is an extra of
    tokenmill-reader (docs/training.md#trackers). null: none."""
    strict: bool = False
    """End with an error if a checkpoint is damaged, instead of continuing from the newest one that is whole."""
    seed: int = 0
    """Determines the initial weights, the order of the rows, the masks and the dropout."""

    @property
    def training_strategy(self) -> TrainingStrategyName:
        """The strategy of `fit`. `launch` knows the TPU, and chooses one of its strategies."""
        return self.strategy

    def resolved(self: _Config) -> _Config:
        """Returns the configuration with the objective's default model type if there is none, and no `init_from`."""
        if self.model.type is not None or self.model.init_from is not None:
            return self
        default = {"mlm": "roberta", "clm": "gpt2"}[self.objective]
        return replace(self, model=replace(self.model, type=default))

    def __post_init__(self) -> None:
        check_ranges(self, seed=SEED)
        require(
            set(names_of(self.track)) <= set(NAMES),
            "track",
            self.track,
            f"must be some of {', '.join(NAMES)}, with commas between them",
        )
        check_mesh(self.mesh, self.training_strategy)
        require(
            not self.data.choices or self.objective == "clm",
            "data.choices",
            self.data.choices,
            "only causal models give a text's likelihood; omit it, or use --objective clm",
        )
        require(
            self.schedule.warmup_steps < self.train.steps,
            "schedule.warmup_steps",
            self.schedule.warmup_steps,
            f"must be less than --train.steps, {self.train.steps}",
        )
        if self.schedule.name == "wsd":
            room = self.train.steps - self.schedule.warmup(self.train.steps)
            require(
                round(self.schedule.decay_share * self.train.steps) <= room,
                "schedule.decay_share",
                self.schedule.decay_share,
                f"the decay does not fit into the {room} steps after the warm-up",
            )
