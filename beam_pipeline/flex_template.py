"""The Flex Template: `prepare` with its options as the template's parameters.

`python -m beam_pipeline.flex_template` prints the template's metadata, made from the options of `prepare`:
deploy/template-metadata.json is its output. `launch` is what the template's launcher runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from beam_pipeline.errors import UsageError
from beam_pipeline.options import prepare_parser

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.]*"
_SHARE = r"(0?\.[0-9]+|1(\.0+)?)"
_FOLDER = r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]/.+"

# What the values of the options must match that are neither numbers nor of a few choices. A template's workers see no
# local files.
_PATTERNS = {
    "input": r"gs://[^,\s]+(,gs://[^,\s]+)*",
    "mix": r"gs://[^,]+\*[0-9.]+(,\s*gs://[^,]+\*[0-9.]+)*",
    "dataset_name": r"(gs://.+|[\w.-]+(/[\w.-]+)?)",
    "dataset_config": r"\S+",
    "dataset_split": r"[^\s,]+",
    "dataset_revision": r"\S+",
    "dataset_cache": _FOLDER,
    "text_key": r".+",
    "tokenizer": r"(gs://.+|[\w.-]+(/[\w.-]+)?)",
    "output": _FOLDER,
    "split": _NAME,
    "splits": rf"{_NAME}={_SHARE}(,{_NAME}={_SHARE})*",
    "pad_token": r".+",
}
_GCS_FOLDERS = {"output": "GCS_WRITE_FOLDER", "dataset_cache": "GCS_WRITE_FOLDER"}
# Templates are not waited for: their launcher ends when the job is described. Nor do they run in its memory.
_LEFT_OUT = ("help", "skip_memory_check", "wait")


def metadata() -> dict:
    """The template's metadata, in the form of Dataflow's TemplateMetadata."""
    image = {
        "name": "sdk_container_image",
        "label": "Image of the workers",
        "helpText": "The image built from deploy/pipeline.Dockerfile, by digest; the template's own, if left out.",
        "isOptional": True,
        "paramType": "TEXT",
        "regexes": [r"^\S+/\S+(:[\w.-]+|@sha256:[0-9a-f]{64})$"],
    }
    return {
        "name": "tokenmill prepare",
        "description": prepare_parser().description,
        "streaming": False,
        "parameters": [*map(_parameter, _actions()), image],
    }


def arguments(given: Sequence[str]) -> list[str]:
    """What a launcher passes, as `prepare` takes it.

    A template's parameters are all strings: `--resume=true` is the flag, `--input=a,b` are two patterns, and an empty
    value is none.

    Raises:
      UsageError: where a flag's value is neither true nor false.
    """
    ours = {action.dest: action for action in _actions()}
    made = []
    for word in given:
        name, _, value = word.removeprefix("--").partition("=")
        action = ours.get(name)
        if action is None or "=" not in word:
            made.append(word)
        elif _is_flag(action):
            if value.lower() not in ("true", "false", ""):
                raise UsageError(f"--{name} {value}: must be true or false")
            made += [f"--{name}"] if value.lower() == "true" else []
        elif action.nargs == "+":
            made += [f"--{name}", *filter(None, value.split(","))] if value else []
        elif value:
            made.append(word)
    if not any(word.startswith("--runner") for word in made):
        made.append("--runner=DataflowRunner")
    return made


def launch(given: Sequence[str]) -> int:
    """Runs `prepare` in a template's launcher; returns the exit status.

    Options that neither this program nor Beam knows are left out, with a word: Dataflow has checked the parameters
    already, and its launcher may add options of a newer Beam.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipeline import __main__, beam_options

    try:
        made = arguments(given)
    except UsageError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    _, rest = prepare_parser().parse_known_args(made)
    unknown = beam_options.unknown_names(PipelineOptions(rest))
    for name in unknown:
        print(f"prepare: WARNING: the launcher's --{name} is left out: nobody knows it", file=sys.stderr)
    known = [word for word in made if word.removeprefix("--").partition("=")[0] not in unknown]
    return __main__.run("prepare", known)


def _actions() -> list[argparse.Action]:
    return [action for action in prepare_parser()._actions if action.dest not in _LEFT_OUT]


def _is_flag(action: argparse.Action) -> bool:
    return action.nargs == 0


def _parameter(action: argparse.Action) -> dict:
    """An option as a parameter, in the form of Dataflow's ParameterMetadata."""
    made = {
        "name": action.dest,
        "label": action.dest.replace("_", " ").capitalize(),
        "helpText": _help(action),
        "isOptional": not action.required,
    }
    if _is_flag(action):
        return {**made, "paramType": "BOOLEAN", "regexes": ["^(true|false)$"], "defaultValue": "false"}
    if action.choices:
        options = [{"value": choice, "label": choice} for choice in action.choices]
        regexes = [f"^({'|'.join(action.choices)})$"]
        return {**made, "paramType": "ENUM", "enumOptions": options, "regexes": regexes} | _default(action)
    if action.type in (int, float):
        number = r"^[0-9]+$" if action.type is int else r"^[0-9]*\.?[0-9]+$"
        return {**made, "paramType": "NUMBER", "regexes": [number]} | _default(action)
    kind = _GCS_FOLDERS.get(action.dest, "TEXT")
    return {**made, "paramType": kind, "regexes": [f"^{_PATTERNS[action.dest]}$"]} | _default(action)


def _help(action: argparse.Action) -> str:
    text = action.help.replace("%%", "%")
    text = text[0].upper() + text[1:]
    if action.nargs == "+":
        text += "; several are separated by commas"
    if action.dest in ("input", "mix", "dataset_name"):
        text += ". One of input, mix and dataset_name is needed"
    return text + "."


def _default(action: argparse.Action) -> dict:
    """Its default, if it has one; not that of options of which only one may be given, since the console would give
    them all."""
    exclusive = {
        of.dest for group in prepare_parser()._mutually_exclusive_groups for of in group._group_actions
    }
    return {} if action.default is None or action.dest in exclusive else {"defaultValue": str(action.default)}


if __name__ == "__main__":
    print(json.dumps(metadata(), indent=2, ensure_ascii=False))
