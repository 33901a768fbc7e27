"""The command line: one parser per verb, generated from the verb's dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from argparse import SUPPRESS, Action, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ActionConfigFile, DefaultHelpFormatter

from tokenmill_reader.console.escaping import message
from tokenmill_reader.console.logs import log_to_stderr
from tokenmill_reader.console.spelling import suggestion, underscored
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.config import (
    CompareConfig,
    CompileCheckConfig,
    EvaluateConfig,
    ExportConfig,
    FillMaskConfig,
    FitConfig,
    GenerateConfig,
    PlanConfig,
)
from tpu_trainer.config.files import add_options
from tpu_trainer.config.packaged import ConfigFile
from tpu_trainer.config.parser import Parser
from tpu_trainer.support.errors import ExitStatus

VERBS: dict[str, type] = {
    "plan": PlanConfig,
    "fit": FitConfig,
    "evaluate": EvaluateConfig,
    "fill-mask": FillMaskConfig,
    "generate": GenerateConfig,
    "compare": CompareConfig,
    "export": ExportConfig,
    "compile-check": CompileCheckConfig,
    "launch": LaunchConfig,
}


SHELLS = ("bash", "zsh", "fish")
"""The shells of `completion`, which is no verb with a configuration."""


def program() -> str:
    """The name that the program was called by."""
    return "tokenmill-trainer" if Path(sys.argv[0]).name == "tokenmill-trainer" else "tpu_trainer"


def overview() -> str:
    """The verbs, one per line."""
    summaries = {verb: summary(config_class) for verb, config_class in VERBS.items()}
    summaries["completion"] = f"Prints a script that completes commands in a shell: {', '.join(SHELLS)}."
    lines = "\n".join(f"  {verb:<14} {text}" for verb, text in summaries.items())
    notes = "VERB --help lists the options of a verb. --quiet shows only results and errors."
    return f"usage: {program()} VERB [options]\n\n{lines}\n\n{notes}"


def summary(config_class: type) -> str:
    """The first line of the docstring."""
    return inspect.cleandoc(config_class.__doc__).partition("\n")[0]


class _HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Shows an option's help with its default, without its Python type, and the examples as they are written."""

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        if action.required:
            text += " Required."
        if isinstance(action.default, bool):
            text += f" Default: {str(action.default).lower()}."
        elif action.default not in (None, SUPPRESS, "", {}, []) and not isinstance(action, ActionConfigFile):
            text += " Default: %(default)s."
        return text


def _positional(config_class: type) -> str:
    """Returns what follows the options: arguments without names."""
    fields = [field for field in dataclasses.fields(config_class) if "positional" in field.metadata]
    return "".join(f" {field.metadata['argument']['metavar']} …" for field in fields)


def _verb_parser(verb: str) -> Parser:
    config_class = VERBS[verb]
    parser = Parser(
        prog=f"{program()} {verb}",
        usage="%(prog)s [options]" + _positional(config_class),
        description=inspect.cleandoc(config_class.__doc__),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        action=ConfigFile,
        help="YAML file of these options, or the name of a packaged one, such as tiny-clm; later options override it.",
    )
    add_options(parser, config_class)
    sections = {field.name for field in dataclasses.fields(config_class)}
    for action in parser._actions:
        # A file for one section, --train FILE: --config FILE does the same.
        if action.dest in sections and action.metavar == "CONFIG":
            action.help = SUPPRESS
    return parser


def _no_verb(arguments: Sequence[str]) -> NoReturn:
    print(overview(), file=sys.stderr)
    if arguments:
        meant = suggestion(arguments[0], [*VERBS, "completion"])
        print(message(f"{program()}: error: {arguments[0]!r} is not a verb{meant}"), file=sys.stderr)
    raise SystemExit(ExitStatus.USAGE)


def completion_script(shell: str) -> str:
    """Returns a script that completes verbs, options and their values in a shell."""
    parser = Parser(prog="tokenmill-trainer")
    verbs = parser.add_subcommands()
    for verb, config_class in VERBS.items():
        verbs.add_subcommand(verb, _verb_parser(verb), help=summary(config_class))
    return parser.get_completion_script(f"shtab-{shell}")


def parse(arguments: Sequence[str] | None = None) -> tuple[str, Any]:
    """Returns the verb and its config.

    Args:
        arguments: The command line; default: the process's.

    Raises:
        UsageError: If values are invalid or inconsistent.
        SystemExit: With status 2, after printing the usage, if an option is unknown, missing or of the wrong type.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] not in VERBS:
        _no_verb(arguments)
    verb, *options = underscored(arguments)
    if "--quiet" in options:  # no option of the parser, or --print_config would print it
        options.remove("--quiet")
        log_to_stderr("tpu_trainer", quiet=True)
    parser = _verb_parser(verb)
    values = vars(parser.values(parser.parse_args(options)))
    values.pop("config")
    config = VERBS[verb](**values)
    return verb, config.resolved() if isinstance(config, FitConfig) else config
