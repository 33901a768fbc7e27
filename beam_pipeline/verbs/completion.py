"""The verb `completion`: prints a shell's script that completes verbs, options, their values and files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import shtab

from beam_pipeline.options.command_line import Parsed, parse, parser_of
from beam_pipeline.options.option_fields import Options, options_of
from beam_pipeline.options.verbs import VERBS, CompletionConfig
from tokenmill_reader.console.streams import print_data

_PATHS = {"GLOB": shtab.FILE, "FILE": shtab.FILE}
_PATHS |= dict.fromkeys(("DIR", "OUT", "DATASET"), shtab.DIRECTORY)


def main(argv: Sequence[str] | Parsed) -> None:
    """Prints the script of a shell."""
    config, _ = parse(CompletionConfig, argv)
    print_data(shtab.complete(_parser(), shell=config.shell))


def _parser() -> argparse.ArgumentParser:
    """Returns a parser of all verbs, of which only the names and values are used."""
    parser = argparse.ArgumentParser(prog="tokenmill")
    parser.add_argument("--version", action="store_true", help="Print the version.")
    verbs = parser.add_subparsers()
    for verb, config in VERBS.items():
        verbs.add_parser(verb, parents=[_annotated(config)], add_help=False, help=config.summary())
    return parser


def _annotated(config: type[Options]) -> argparse.ArgumentParser:
    """Returns the parser of a verb, with the values that its options complete to."""
    parser = parser_of(config)
    choices = {option.name: option.choices for option in options_of(config)}
    for action in parser._actions:
        if choices.get(action.dest):
            action.choices = choices[action.dest]
        elif action.metavar in _PATHS:
            action.complete = _PATHS[action.metavar]
    return parser
