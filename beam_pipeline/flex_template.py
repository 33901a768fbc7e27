"""The Flex Template: `prepare` with its options as the parameters of a template.

`python -m beam_pipeline.flex_template` generates the template's metadata from the options of `prepare`; its output is
deploy/template-metadata.json. The template's launcher runs `launch`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence

from beam_pipeline.options.command_line import parser_of
from beam_pipeline.options.option_fields import Option, options_of
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console import streams
from tokenmill_reader.console.logs import log_to_stderr
from tokenmill_reader.format.names import SPLIT_NAME

_log = logging.getLogger("beam_pipeline")

_SHARE = r"(0?\.[0-9]+|1(\.0+)?)"
_FOLDER = r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]/.+"

# Patterns for values other than numbers and choices. A template's workers cannot read local files.
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
    "split": SPLIT_NAME.pattern,
    "splits": rf"{SPLIT_NAME.pattern}={_SHARE}(,{SPLIT_NAME.pattern}={_SHARE})*",
}
_GCS_FOLDERS = {"output": "GCS_WRITE_FOLDER", "dataset_cache": "GCS_WRITE_FOLDER"}
# A template's launcher neither runs the pipeline nor waits for it: it only describes the job to Dataflow.
_OMITTED = ("estimate", "prices", "skip_memory_check", "wait", "track", "json", "quiet")


def metadata() -> dict:
    """Returns the template's metadata in the format of Dataflow's TemplateMetadata."""
    image = {
        "name": "sdk_container_image",
        "label": "Image of the workers",
        "helpText": "The image built from deploy/pipeline.Dockerfile, by digest. Default: the template's own image.",
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


def arguments(words: Sequence[str]) -> list[str]:
    """Converts a launcher's arguments to those of `prepare`.

    A template's parameters are all strings: `--resume=true` stands for a flag, `--input=a,b` for two patterns, and an
    empty value for an omitted option.

    Raises:
        UsageError: If a flag's value is neither true nor false.
    """
    own_options = {option.flag: option for option in _options()}
    converted = []
    for word in words:
        flag, _, value = word.removeprefix("--").partition("=")
        option = own_options.get(flag)
        if option is None or "=" not in word:
            converted.append(word)
        elif option.kind is bool:
            if value.lower() not in ("true", "false", ""):
                raise UsageError(f"--{flag} {value}: must be true or false")
            converted += [f"--{flag}"] if value.lower() == "true" else []
        elif option.is_list:
            converted += [f"--{flag}", *filter(None, value.split(","))] if value else []
        elif value:
            converted.append(word)
    if not any(word.startswith("--runner") for word in converted):
        converted.append("--runner=DataflowRunner")
    return converted


def launch(words: Sequence[str]) -> int:
    """Runs `prepare` in a template's launcher, and returns the exit status.

    Options that are unknown to this program and to Beam are ignored with a warning. Dataflow has already checked the
    parameters, and its launcher may add options of a newer Beam.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipeline import __main__
    from beam_pipeline.options.beam_names import unknown_names

    streams.harden(shows=False)
    log_to_stderr("beam_pipeline")
    try:
        converted = arguments(words)
        _, beam_args = parser_of(PrepareConfig, with_help=False).parse_known_args(converted)
    except UsageError as error:
        _log.error("prepare: %s", error)
        return 2
    unknown = unknown_names(PipelineOptions(beam_args))
    for name in unknown:
        _log.warning("prepare: WARNING: ignores the launcher's unknown option --%s", name)
    supported = [word for word in converted if word.removeprefix("--").partition("=")[0] not in unknown]
    return __main__.run("prepare", supported)


def _options() -> list[Option]:
    return [option for option in options_of(PrepareConfig) if option.name not in _OMITTED]


def _parameter(option: Option) -> dict:
    """Returns an option as a parameter in the format of Dataflow's ParameterMetadata."""
    common = {
        "name": option.flag,
        "label": option.flag.replace("_", " ").capitalize(),
        "helpText": _help(option),
        "isOptional": not option.required or bool(option.exclusive),
    }
    if option.kind is bool:
        return {**common, "paramType": "BOOLEAN", "regexes": ["^(true|false)$"], "defaultValue": "false"}
    if option.choices:
        options = [{"value": choice, "label": choice} for choice in option.choices]
        regexes = [f"^({'|'.join(map(re.escape, option.choices))})$"]
        return {**common, "paramType": "ENUM", "enumOptions": options, "regexes": regexes} | _default(option)
    if option.kind in (int, float):
        number = r"^[0-9]+$" if option.kind is int else r"^[0-9]*\.?[0-9]+$"
        return {**common, "paramType": "NUMBER", "regexes": [number]} | _default(option)
    kind, pattern = _GCS_FOLDERS.get(option.name, "TEXT"), _PATTERNS.get(option.name, ".+")
    return {**common, "paramType": kind, "regexes": [f"^{pattern}$"]} | _default(option)


def _help(option: Option) -> str:
    text = option.help
    if option.is_list:
        text += " Separate several by commas."
    if option.exclusive == "source":
        text += " One of input, mix and dataset_name is required."
    return text


def _default(option: Option) -> dict:
    """Returns the default, if any. Mutually exclusive options have none, since the console would pass all of them."""
    return {} if option.default is None or option.exclusive else {"defaultValue": str(option.default)}


if __name__ == "__main__":
    print(json.dumps(metadata(), indent=2, ensure_ascii=False))
