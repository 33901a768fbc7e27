"""The command line and the YAML files: one parser per verb, made from the verb's dataclass."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml
from docstring_parser import parse_from_object
from jsonargparse import ArgumentParser, set_parsing_settings

from tpu_trainer import files
from tpu_trainer.cloud.config import HostServerConfig, LaunchConfig
from tpu_trainer.config import (
    CompileCheckConfig,
    EvaluateConfig,
    ExportConfig,
    FillMaskConfig,
    FitConfig,
    GenerateConfig,
)
from tpu_trainer.errors import UsageError

set_parsing_settings(docstring_parse_attribute_docstrings=True)

_Config = TypeVar("_Config")

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
    _add_options(parser, config_class)
    return parser


def _add_options(parser: ArgumentParser, config_class: type) -> None:
    """An option for each field; those with "argument" in their metadata are argparse's own kind: flags and pairs."""
    plain = {
        field.name: field.metadata["argument"]
        for field in dataclasses.fields(config_class)
        if "argument" in field.metadata
    }
    parser.add_class_arguments(config_class, skip=set(plain))
    if plain:
        helps = {param.arg_name: param.description for param in parse_from_object(config_class).params}
        for name, options in plain.items():
            parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}", help=helps[name], **options)


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


def dump_fit_config(config: FitConfig) -> str:
    """`config` as YAML that `--config` reads back to the same value."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)


def load_fit_config(path: str) -> FitConfig:
    """The config that `dump_fit_config` wrote to `path`; UsageError where it is not one."""
    return _load(path, FitConfig)


def load_compile_check_config(path: str) -> CompileCheckConfig:
    """A configuration of `fit`, which need not name data or an output folder; UsageError where it is not one."""
    return _load(path, CompileCheckConfig)


def _load(path: str, config_class: type[_Config]) -> _Config:
    parser = ArgumentParser(exit_on_error=False)
    _add_options(parser, config_class)
    try:
        namespace = parser.instantiate(parser.parse_string(files.read_text(path)))
    except Exception as error:  # jsonargparse passes on many kinds: YAML's, argparse's, its own
        raise UsageError(f"{path}: not a configuration of `fit`: {error}") from error
    return config_class(**vars(namespace))
