"""The options: frozen dataclasses that define both the YAML file and the command line.

A field `data.train` is `data: {train: …}` in YAML and `--data.train …` on the command line; the docstring of a field is
its help. Values are validated here, before slow imports.
"""

from tpu_trainer.config.data import DataConfig
from tpu_trainer.config.devices import StrategyName, TpuConfig, TrainingStrategyName
from tpu_trainer.config.fit import FitConfig
from tpu_trainer.config.mesh import MeshConfig
from tpu_trainer.config.model import MaskingUnit, MlmConfig, ModelConfig, ObjectiveName
from tpu_trainer.config.optimization import OptimizerConfig, ScheduleConfig
from tpu_trainer.config.training import Precision, ProfileConfig, Recompute, TrainConfig
from tpu_trainer.config.verbs import (
    CompareConfig,
    CompileCheckConfig,
    EvaluateConfig,
    ExportConfig,
    FillMaskConfig,
    GenerateConfig,
    PlanConfig,
)

__all__ = [
    "CompareConfig",
    "CompileCheckConfig",
    "DataConfig",
    "EvaluateConfig",
    "ExportConfig",
    "FillMaskConfig",
    "FitConfig",
    "GenerateConfig",
    "MaskingUnit",
    "MeshConfig",
    "MlmConfig",
    "ModelConfig",
    "ObjectiveName",
    "OptimizerConfig",
    "PlanConfig",
    "Precision",
    "ProfileConfig",
    "Recompute",
    "ScheduleConfig",
    "StrategyName",
    "TpuConfig",
    "TrainConfig",
    "TrainingStrategyName",
]
