"""Config dataclasses as options of a parser and as YAML files."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import yaml
from docstring_parser import parse_from_object
from jsonargparse import ArgumentParser, set_parsing_settings

from tpu_trainer.config import CompileCheckConfig, FitConfig
from tpu_trainer.config.parser import Parser
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

set_parsing_settings(docstring_parse_attribute_docstrings=True)

_Config = TypeVar("_Config", bound=FitConfig)


def add_options(parser: ArgumentParser, config_class: type) -> None:
    """Adds an option for each field. One with "argument" in its metadata becomes a plain argument of argparse."""
    plain = {
        field.name: field.metadata
        for field in dataclasses.fields(config_class)
        if "argument" in field.metadata
    }
    parser.add_class_arguments(config_class, as_group=False, skip=set(plain))
    if plain:
        helps = {param.arg_name: param.description for param in parse_from_object(config_class).params}
        for name, metadata in plain.items():
            names = [name] if "positional" in metadata else [f"--{name}", f"--{name.replace('_', '-')}"]
            parser.add_argument(*dict.fromkeys(names), help=helps[name], **metadata["argument"])


def dump_fit_config(config: FitConfig) -> str:
    """Returns `config` as YAML that `--config` reads back to the same value."""
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False)


def option_values(config: FitConfig) -> dict[str, Any]:
    """Returns --name → value; sections are flat, so their options are named --section.option."""
    values: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if dataclasses.is_dataclass(getattr(config, name)):
            values |= {f"--{name}.{key}": option for key, option in value.items()}
        else:
            values[f"--{name}"] = value
    return values


def load_fit_config(path: str) -> FitConfig:
    """Reads a config of `fit`.

    Raises:
        UsageError: If the file has no valid config.
    """
    return _load(path, FitConfig)


def load_compile_check_config(path: str) -> CompileCheckConfig:
    """Reads a config of `fit` for compile-check: data and output folder are optional.

    Raises:
        UsageError: If the file has no valid config.
    """
    return _load(path, CompileCheckConfig)


def _load(path: str, config_class: type[_Config]) -> _Config:
    parser = Parser(exit_on_error=False)
    add_options(parser, config_class)
    try:
        namespace = parser.values(parser.parse_string(files.read_text(path), path))
    except Exception as error:  # jsonargparse raises those of argparse, and its own
        raise UsageError(f"{path}: not a configuration of `fit`: {error}") from error
    return config_class(**vars(namespace)).resolved()
