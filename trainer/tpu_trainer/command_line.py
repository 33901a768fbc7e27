"""The command line: one parser per verb, generated from the verb's dataclass."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
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


def program() -> str:
    """The name that the program was called by."""
    return "tokenmill-trainer" if Path(sys.argv[0]).name == "tokenmill-trainer" else "tpu_trainer"


def overview() -> str:
    """The verbs, one per line."""
    lines = "\n".join(f"  {verb:<14} {config_class.__doc__}" for verb, config_class in VERBS.items())
    return f"usage: {program()} VERB [options]\n\n{lines}\n\nVERB --help lists the options of a verb."


def _verb_parser(config_class: type) -> ArgumentParser:
    parser = ArgumentParser(description=config_class.__doc__, allow_abbrev=False)
    parser.add_argument(
        "--config", action="config", help="YAML file of these options; later options override it."
    )
    add_options(parser, config_class)
    return parser


def parse(arguments: Sequence[str] | None = None) -> tuple[str, Any]:
    """Returns the verb and its config.

    Args:
        arguments: The command line; default: the process's.

    Raises:
        UsageError: If values are invalid or inconsistent.
        SystemExit: With status 2, after printing the usage, if an option is unknown, missing or of the wrong type.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = ArgumentParser(prog=program(), description="Trains language models from shards of token rows.")
    verbs = parser.add_subcommands(dest="verb")
    # Parsers are slow to build: build only the verb's, if there is one.
    for verb in [verb for verb in VERBS if verb in arguments[:1]] or VERBS:
        verbs.add_subcommand(verb, _verb_parser(VERBS[verb]), help=VERBS[verb].__doc__)
    namespace = parser.instantiate(parser.parse_args(arguments))
    verb = namespace["verb"]
    values = vars(namespace[verb])
    values.pop("config")
    return verb, VERBS[verb](**values)
