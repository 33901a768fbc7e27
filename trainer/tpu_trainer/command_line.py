"""The command line: one parser per verb, generated from the verb's dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jsonargparse import ArgumentParser

from tpu_trainer.cloud.config import HostServerConfig, LaunchConfig
from tpu_trainer.config import (
    CompileCheckConfig,
    EvaluateConfig,
    ExportConfig,
    FillMaskConfig,
    FitConfig,
    GenerateConfig,
)
from tpu_trainer.config_files import add_options

VERBS: dict[str, type] = {
    "fit": FitConfig,
    "evaluate": EvaluateConfig,
    "fill-mask": FillMaskConfig,
    "generate": GenerateConfig,
    "export": ExportConfig,
    "compile-check": CompileCheckConfig,
    "launch": LaunchConfig,
    "host-server": HostServerConfig,
}


def _verb_parser(config_class: type) -> ArgumentParser:
    parser = ArgumentParser(description=config_class.__doc__, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="A YAML file of these options; later options win.")
    add_options(parser, config_class)
    return parser


def parse(arguments: Sequence[str] | None = None) -> tuple[str, Any]:
    """The verb and its config from a command line (default: the process's own).

    Raises UsageError where values do not fit together; prints usage and exits with status 2 where an option is
    unknown, missing or of the wrong type.
    """
    parser = ArgumentParser(
        prog="tpu_trainer", description="Trains language models from shards of token rows."
    )
    verbs = parser.add_subcommands(dest="verb")
    for verb, config_class in VERBS.items():
        verbs.add_subcommand(verb, _verb_parser(config_class), help=config_class.__doc__)
    namespace = parser.instantiate(parser.parse_args(arguments))
    verb = namespace["verb"]
    values = vars(namespace[verb])
    values.pop("config")
    return verb, VERBS[verb](**values)
