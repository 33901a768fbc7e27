"""The Flex Template: its metadata as Dataflow's types, and the arguments of its launcher."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google.cloud import dataflow_v1beta3 as api

from beam_pipeline import flex_template
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.option_fields import options_of
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.support.errors import UsageError

FILE = Path(__file__).resolve().parents[2] / "deploy" / "template-metadata.json"

GOOD = {
    "input": ["gs://b/a.txt", "gs://b/*.jsonl,gs://c/x-*.gz"],
    "mix": ["gs://b/a.jsonl*1,gs://b/*.txt*0.5"],
    "dataset_name": ["wikitext", "Salesforce/wikitext", "gs://b/saved"],
    "tokenizer": ["gs://b/tokenizer", "roberta-base", "openai-community/gpt2"],
    "output": ["gs://bucket/sets/a"],
    "split": ["train"],
    "splits": ["train=0.98,validation=0.02", "a=1"],
    "max_length": ["512"],
    "max_bad_ratio": ["0.01", "1", ".5"],
    "packing": ["concat"],
    "segment_ids": ["true", "false"],
    "dataset_split": ["train[:10%]", "train+validation"],
    "dataset_cache": ["gs://bucket/cache"],
    "sdk_container_image": ["europe-docker.pkg.dev/p/r/i:v1", "gcr.io/p/i@sha256:" + "a" * 64],
}
BAD = {
    "input": ["/local/a.txt", "gs://b/a b", ""],
    "mix": ["gs://b/a.jsonl"],
    "output": ["gs://bucket", "/tmp/out", "gs://bucket/"],
    "splits": ["train", "train=2", "train=0.5;validation=0.5"],
    "split": ["a b"],
    "max_length": ["-1", "many"],
    "packing": ["tight"],
    "segment_ids": ["yes"],
    "sdk_container_image": ["gcr.io/p/i", "image:v1"],
}


@pytest.fixture(scope="module")
def parameters() -> dict[str, api.ParameterMetadata]:
    template = api.TemplateMetadata.from_json(FILE.read_text())  # raises for unknown fields
    return {parameter.name: parameter for parameter in template.parameters}


def matches(parameter: api.ParameterMetadata, value: str) -> bool:
    return all(re.fullmatch(regex, value) for regex in parameter.regexes)


def test_the_file_is_up_to_date():
    expected = json.dumps(flex_template.metadata(), indent=2, ensure_ascii=False) + "\n"
    assert FILE.read_text() == expected, (
        "run: python -m beam_pipeline.flex_template > deploy/template-metadata.json"
    )


def test_every_option_is_a_parameter_with_a_label_a_help_text_and_a_pattern(parameters):
    options = {option.flag for option in options_of(PrepareConfig)}
    options -= {"estimate", "prices", "skip_memory_check", "wait", "track", "json", "quiet"}
    assert set(parameters) == options | {"sdk_container_image"}
    for parameter in parameters.values():
        assert parameter.label and parameter.regexes and parameter.help_text.endswith("."), parameter.name
        assert parameter.param_type != api.ParameterType.DEFAULT
        assert "%" not in parameter.help_text.replace("10%", "")
        if parameter.default_value:
            assert matches(parameter, parameter.default_value), parameter.name
    required = {name for name, parameter in parameters.items() if not parameter.is_optional}
    assert required == {"tokenizer", "output"}
    packing = parameters["packing"]
    assert [option.value for option in packing.enum_options] == ["concat", "best_fit", "pad", "none"]


def test_patterns_accept_valid_values_and_reject_invalid_ones(parameters):
    for name, values in GOOD.items():
        for value in values:
            assert matches(parameters[name], value), (name, value)
    for name, values in BAD.items():
        for value in values:
            assert not matches(parameters[name], value), (name, value)


def test_prepare_accepts_the_arguments_of_a_launcher(parameters):
    """The parameters of a valid launch request are parsed after the launcher has made arguments of them."""
    request = api.LaunchFlexTemplateRequest.from_json(
        json.dumps(
            {
                "projectId": "a-project",
                "location": "europe-west4",
                "launchParameter": {
                    "jobName": "prepare-wiki",
                    "containerSpecGcsPath": "gs://bucket/templates/prepare.json",
                    "parameters": {
                        "input": "gs://b/a.txt,gs://b/b.txt",
                        "tokenizer": "gs://b/tokenizer",
                        "output": "gs://bucket/sets/wiki",
                        "splits": "train=0.98,validation=0.02",
                        "segment_ids": "true",
                        "resume": "false",
                        "pad_token": "",
                        "max_length": "128",
                    },
                    "environment": {
                        "maxWorkers": 8,
                        "serviceAccountEmail": "tokenmill-pipeline@a-project.iam.gserviceaccount.com",
                        "ipConfiguration": "WORKER_IP_PRIVATE",
                        "sdkContainerImage": "europe-docker.pkg.dev/p/r/i:v1",
                        "additionalUserLabels": {"commit": "abc"},
                    },
                },
            }
        )
    )
    values = request.launch_parameter.parameters
    for name, value in values.items():
        assert not value or matches(parameters[name], value)
    argv = flex_template.arguments(
        [f"--{name}={value}" for name, value in values.items()] + ["--project=a-project"]
    )
    config, beam = parse(PrepareConfig, argv)
    assert config.input.input == ("gs://b/a.txt", "gs://b/b.txt")
    assert (config.segment_ids, config.resume) == (True, False)
    assert (config.pad_token, config.max_length) == (None, 128)
    assert beam == ["--project=a-project", "--runner=DataflowRunner"]
    with pytest.raises(UsageError, match="--resume perhaps: must be true or false"):
        flex_template.arguments(["--resume=perhaps"])
