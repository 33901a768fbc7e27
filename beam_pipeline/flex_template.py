"""The Flex Template: `prepare` with its options as the template's parameters.

`python -m beam_pipeline.flex_template` prints the template's metadata, made from the options of `prepare`:
deploy/template-metadata.json is its output. `launch` is what the template's launcher runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from beam_pipeline.errors import UsageError
from beam_pipeline.option_fields import Option, options_of, parser_of
from beam_pipeline.options import PrepareConfig

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.]*"
_SHARE = r"(0?\.[0-9]+|1(\.0+)?)"
_FOLDER = r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]/.+"

# What other values than numbers and choices must match. A template's workers see no local files.
_PATTERNS = {
    "input": r"gs://[^,\s]+(,gs://[^,\s]+)*",
    "mix": r"gs://[^,]+\*[0-9.]+(,\s*gs://[^,]+\*[0-9.]+)*",
    "dataset_name": r"(gs://.+|[\w.-]+(/[\w.-]+)?)",
    "dataset_config": r"\S+",
    "dataset_split": r"[^\s,]+",
    "dataset_revision": r"\S+",
    "dataset_cache": _FOLDER,
    "tokenizer": r"(gs://.+|[\w.-]+(/[\w.-]+)?)",
    "output": _FOLDER,
    "split": _NAME,
    "splits": rf"{_NAME}={_SHARE}(,{_NAME}={_SHARE})*",
}
_GCS_FOLDERS = {"output": "GCS_WRITE_FOLDER", "dataset_cache": "GCS_WRITE_FOLDER"}
# Templates are not waited for: their launcher ends when the job is described. Nor do they run in its memory.
_LEFT_OUT = ("skip_memory_check", "wait")


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
        "description": PrepareConfig.summary(),
        "streaming": False,
        "parameters": [*map(_parameter, _options()), image],
    }


def arguments(given: Sequence[str]) -> list[str]:
    """What a launcher passes, as `prepare` takes it.

    A template's parameters are all strings: `--resume=true` is the flag, `--input=a,b` are two patterns, and an empty
    value is none.

    Raises:
      UsageError: where a flag's value is neither true nor false.
    """
    ours = {option.flag: option for option in _options()}
    made = []
    for word in given:
        flag, _, value = word.removeprefix("--").partition("=")
        option = ours.get(flag)
        if option is None or "=" not in word:
            made.append(word)
        elif option.kind is bool:
            if value.lower() not in ("true", "false", ""):
                raise UsageError(f"--{flag} {value}: must be true or false")
            made += [f"--{flag}"] if value.lower() == "true" else []
        elif option.many:
            made += [f"--{flag}", *filter(None, value.split(","))] if value else []
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
    _, rest = parser_of(PrepareConfig).parse_known_args(made)
    unknown = beam_options.unknown_names(PipelineOptions(rest))
    for name in unknown:
        print(f"prepare: WARNING: the launcher's --{name} is left out: nobody knows it", file=sys.stderr)
    known = [word for word in made if word.removeprefix("--").partition("=")[0] not in unknown]
    return __main__.run("prepare", known)


def _options() -> list[Option]:
    return [option for option in options_of(PrepareConfig) if option.name not in _LEFT_OUT]


def _parameter(option: Option) -> dict:
    """An option as a parameter, in the form of Dataflow's ParameterMetadata."""
    made = {
        "name": option.flag,
        "label": option.flag.replace("_", " ").capitalize(),
        "helpText": _help(option),
        "isOptional": not option.required or bool(option.exclusive),
    }
    if option.kind is bool:
        return {**made, "paramType": "BOOLEAN", "regexes": ["^(true|false)$"], "defaultValue": "false"}
    if option.choices:
        options = [{"value": choice, "label": choice} for choice in option.choices]
        regexes = [f"^({'|'.join(option.choices)})$"]
        return {**made, "paramType": "ENUM", "enumOptions": options, "regexes": regexes} | _default(option)
    if option.kind in (int, float):
        number = r"^[0-9]+$" if option.kind is int else r"^[0-9]*\.?[0-9]+$"
        return {**made, "paramType": "NUMBER", "regexes": [number]} | _default(option)
    kind, pattern = _GCS_FOLDERS.get(option.name, "TEXT"), _PATTERNS.get(option.name, ".+")
    return {**made, "paramType": kind, "regexes": [f"^{pattern}$"]} | _default(option)


def _help(option: Option) -> str:
    text = option.help
    if option.many:
        text += " Separate several by commas."
    if option.exclusive == "source":
        text += " One of input, mix and dataset_name is required."
    return text


def _default(option: Option) -> dict:
    """Its default, if any. Options that exclude each other have none, since the console would pass all of them."""
    return {} if option.default is None or option.exclusive else {"defaultValue": str(option.default)}


if __name__ == "__main__":
    print(json.dumps(metadata(), indent=2, ensure_ascii=False))
