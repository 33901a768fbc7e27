"""Cloud Build's files are accepted by its API, and their steps do what they should."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from google.cloud.devtools import cloudbuild_v1

from tests.deploy.builds import BUILT_IN, FILES, ROOT, VARIABLE, Machine, load, resolve, run_trainer

Option = cloudbuild_v1.BuildOptions
REGISTRY = "europe-west4-docker.pkg.dev/my-project/tokenmill"
DIGEST = "sha256:" + "ab" * 32
LAUNCH, IMAGES, CLEAN_UP, PULL_REQUEST = (
    next(path for path in FILES if path.name == name)
    for name in ("cloudbuild.yaml", "images.yaml", "clean-up.yaml", "pull-request.yaml")
)
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
each_step = pytest.mark.parametrize(
    ("path", "number"),
    [
        pytest.param(path, number, id=f"{path.name}-{step['id']}")
        for path in FILES
        for number, step in enumerate(yaml.safe_load(path.read_text())["steps"])
    ],
)


@each_file
def test_options_timeouts_and_accounts(path: Path) -> None:
    build = load(path)
    assert build.options.logging == Option.LoggingMode.CLOUD_LOGGING_ONLY
    assert build.options.substitution_option == Option.SubstitutionOption.MUST_MATCH
    assert 0 < build.timeout.total_seconds() <= 24 * 3600  # Cloud Build's limit
    for step in build.steps:
        assert 0 < step.timeout.total_seconds() <= build.timeout.total_seconds(), step.id
    account = resolve(build.service_account, BUILT_IN)
    assert re.fullmatch(
        r"projects/my-project/serviceAccounts/tokenmill-[a-z-]+@my-project\.iam\.gserviceaccount\.com",
        account,
    )


def test_each_file_has_its_own_account() -> None:
    assert len({load(path).service_account for path in FILES}) == len(FILES)


def after(path: Path) -> dict[str, set[str]]:
    """Returns, for each step, the steps that have ended when it starts."""
    earlier_steps: dict[str, set[str]] = {}
    for step in load(path).steps:
        steps_by_name = {"-": set()}
        direct_steps = [
            steps_by_name.get(name, {name} | earlier_steps.get(name, set())) for name in step.wait_for
        ]
        # Without waitFor, a step waits for all previous ones.
        earlier_steps[step.id] = set().union(*direct_steps) if step.wait_for else set(earlier_steps)
    return earlier_steps


@each_file
def test_steps_wait_for_steps_before_them(path: Path) -> None:
    earlier_steps: set[str] = set()
    for step in load(path).steps:
        assert step.id and step.id not in earlier_steps
        assert set(step.wait_for) <= earlier_steps | {"-"}, step.id
        earlier_steps.add(step.id)


def test_independent_steps_run_in_parallel() -> None:
    assert after(PULL_REQUEST) == {
        "set-up": set(),
        **{step: {"set-up"} for step in ("lint", "test-pipeline", "test-trainer")},
    }
    images = {step: set() for step in ("pipeline", "trainer", "trainer-pjrt")}
    assert after(IMAGES) == {**images, "template": {"pipeline"}}
    assert after(CLEAN_UP) == {step: set() for step in ("dataflow", "tpu", "gke", "vertex")}
    order = ["check", "images", "dataset", "verify", "provenance", "train"]
    assert after(LAUNCH) == {step: set(order[:number]) for number, step in enumerate(order)}


@each_file
def test_every_substitution_is_defined_and_used(path: Path) -> None:
    build = load(path)
    step_texts = [
        build.service_account,
        *(text for step in build.steps for text in (step.name, *step.env, *step.args)),
    ]
    values = list(build.substitutions.values())
    used_names = {match[1] or match[2] for text in step_texts + values for match in VARIABLE.finditer(text)}
    assert used_names <= set(BUILT_IN) | set(build.substitutions)
    names_used_in_steps = {match[1] or match[2] for text in step_texts for match in VARIABLE.finditer(text)}
    assert set(build.substitutions) <= names_used_in_steps  # MUST_MATCH may not count uses in other values
    assert all(name.startswith("_") for name in build.substitutions)
    is_nested = any(VARIABLE.search(text) for text in values)
    assert not is_nested or build.options.dynamic_substitutions
    for step in build.steps:
        for text in step.env:
            resolve(text, {**BUILT_IN, **build.substitutions})


@each_step
def test_scripts_pass_shellcheck(path: Path, number: int) -> None:
    step = load(path).steps[number]
    lines = step.script.splitlines()
    assert lines[:2] == ["#!/usr/bin/env bash", "set -euo pipefail"]
    # Cloud Build does not substitute in scripts: a substitution would be an unset variable, and $$ the process id.
    assert "$$" not in step.script
    assert not re.search(r"\$\{?_", step.script)
    environment_names = {text.split("=")[0] for text in step.env}
    for name in re.findall(r"\$\{?([A-Z][A-Z_]*)\b", step.script):
        assert name in environment_names, f"{name} is not in the step's env"
    for name in environment_names:
        assert re.search(rf"\b{name}\b", step.script), f"{name} is in the step's env but not used"
    subprocess.run(["bash", "-n"], input=step.script, text=True, check=True)
    # SC2016 warns about '$' in single quotes, which is intended.
    command = [shutil.which("shellcheck", path=str(Path(sys.executable).parent)), "--exclude", "SC2016", "-"]
    result = subprocess.run(command, input=step.script, text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_hosts_start_script_passes_shellcheck() -> None:
    command = [shutil.which("shellcheck", path=str(Path(sys.executable).parent))]
    script = ROOT / "trainer" / "tpu_trainer" / "cloud" / "host_start.sh"
    result = subprocess.run([*command, script], text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout


MANIFEST = json.dumps({"fingerprint": "feed", "split": "train"})
ANSWERS = [
    *(
        (rf"^docker inspect .*/{name}:", 0, f"{REGISTRY}/{name}@{DIGEST}\n")
        for name in ("pipeline", "trainer", "trainer-pjrt")
    ),
    (r"^gcloud storage cat .*/train/manifest.json", 0, MANIFEST),
]


def test_a_tag_goes_from_images_to_training(tmp_path: Path) -> None:
    outcome = Machine(tmp_path, ANSWERS).run(load(LAUNCH), _PREPARE_OPTIONS="--max_length 128 --seed 7")
    assert outcome.failed_step is None, outcome.error
    pipeline, trainer = (f"{REGISTRY}/{name}@{DIGEST}" for name in ("pipeline", "trainer"))
    assert [call[-1] for call in outcome.calls_of("docker", "pull")] == [
        f"{REGISTRY}/{name}:{BUILT_IN['COMMIT_SHA']}" for name in ("pipeline", "trainer")
    ]
    prepare, verify, launch = (call[call.index("run") :] for call in outcome.calls_of("docker", "run"))

    words = prepare[prepare.index(pipeline) + 1 :]
    assert words[:5] == ["--", "python", "-m", "beam_pipeline", "prepare"]
    assert words[-4:] == ["--max_length", "128", "--seed", "7"]
    assert words[words.index("--sdk_container_image") + 1] == pipeline
    assert words[words.index("--output") + 1] == "gs://my-project-tokenmill/datasets/v1-0"
    assert words[words.index("--input") + 1] == "gs://my-project-tokenmill/corpus/*"
    words = verify[verify.index(pipeline) + 1 :]
    assert words[:5] == ["--", "python", "-m", "beam_pipeline", "verify"]
    assert words[5] == "gs://my-project-tokenmill/datasets/v1-0"
    assert words[words.index("--runner") + 1] == "DataflowRunner"
    assert words[words.index("--sdk_container_image") + 1] == pipeline
    words = launch[launch.index(trainer) + 1 :]
    assert words[words.index("--cloud.image") + 1] == trainer
    assert words[words.index("--data.fingerprint") + 1] == "feed"

    provenance = json.loads((outcome.workspace / "provenance.json").read_text())
    assert provenance["commit"] == BUILT_IN["COMMIT_SHA"] and provenance["dataset_fingerprint"] == "feed"
    assert (provenance["pipeline_image"], provenance["trainer_image"]) == (pipeline, trainer)
    copy_call = outcome.calls_of("gcloud", "storage", "cp")[0]
    assert copy_call[-1] == "gs://my-project-tokenmill/runs/v1-0/launch/provenance.json"


def test_the_programs_accept_the_options_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

    from beam_pipeline.options.command_line import parse
    from beam_pipeline.options.dataset_options import VerifyConfig
    from beam_pipeline.options.prepare_options import PrepareConfig
    from beam_pipeline.runners.dataflow.job_options import complete
    from tests.google_cloud.clients import redirect_google_cloud
    from tests.google_cloud.gcs import Gcs

    outcome = Machine(tmp_path, ANSWERS).run(load(LAUNCH))
    prepare, verify, launch = outcome.calls_of("docker", "run")
    words = prepare[prepare.index("prepare", prepare.index("-m")) + 1 :]
    config, beam_arguments = parse(PrepareConfig, words)
    assert config.split_names == ("train", "validation")
    options = PipelineOptions(beam_arguments)
    with Gcs("my-project-tokenmill") as gcs:
        redirect_google_cloud(gcs, tmp_path, monkeypatch)
        complete(options, verb="prepare", output=config.output)
        verify_config, beam_arguments = parse(
            VerifyConfig, verify[verify.index("verify", verify.index("-m")) + 1 :]
        )
        verify_options = PipelineOptions(beam_arguments)
        complete(verify_options, verb="verify", output=verify_config.dataset)
    assert verify_config.dataset == config.output
    for beam_options in (options, verify_options):
        assert f"build={BUILT_IN['BUILD_ID']}" in beam_options.view_as(GoogleCloudOptions).labels

    words = [*launch[launch.index("launch", launch.index("launch") + 1) :], "--cloud.dry_run", "true"]
    node = json.loads(run_trainer("-m", "tpu_trainer", *words))["tpu"]["nodeSpec"][0]["node"]
    assert node["labels"] == {"run": "v1-0", "build": BUILT_IN["BUILD_ID"], "commit": BUILT_IN["COMMIT_SHA"]}
    assert yaml.safe_load(node["metadata"]["tokenmill-config"])["data"]["fingerprint"] == "feed"


@pytest.mark.parametrize(
    "values",
    [
        {"_SERVICE": "gke", "_CLUSTER": "c", "_ACCELERATOR_TYPE": "v6e-16"},
        {"_FIT_OPTIONS": "--strategy pjrt --seed 1"},
        {"_FIT_OPTIONS": "--seed 1 --strategy=pjrt"},
        {"_ACCELERATOR_TYPE": "v5litepod-16"},
    ],
)
def test_a_tag_can_train_with_pjrt(tmp_path: Path, values: dict[str, str]) -> None:
    outcome = Machine(tmp_path, ANSWERS).run(load(LAUNCH), **values)
    assert outcome.failed_step is None, outcome.error
    image = f"{REGISTRY}/trainer-pjrt@{DIGEST}"
    assert [call[-1].partition(":")[0] for call in outcome.calls_of("docker", "pull")] == [
        f"{REGISTRY}/pipeline",
        f"{REGISTRY}/trainer-pjrt",
    ]
    launch = outcome.calls_of("docker", "run")[-1]
    assert json.loads((outcome.workspace / "provenance.json").read_text())["trainer_image"] == image
    words = launch[launch.index(image) + 1 :]
    body = json.loads(run_trainer("-m", "tpu_trainer", *words, "--cloud.dry_run", "true"))
    if "_SERVICE" not in values:
        assert body["tpu"]["nodeSpec"][0]["node"]["metadata"]["tokenmill-strategy"] == "pjrt"
        return
    assert (body["kind"], body["metadata"]["namespace"]) == ("JobSet", "tokenmill")
    assert body["metadata"]["labels"]["build"] == BUILT_IN["BUILD_ID"]
    pod = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["image"], pod["serviceAccountName"]) == (image, "tokenmill-trainer")


@pytest.mark.parametrize(
    ("values", "answers", "failed_step", "message"),
    [
        ({"_SERVICE": "gke"}, [], "images", "_SERVICE is gke: set _CLUSTER"),
        ({"TAG_NAME": "2024"}, [], "check", "tag '2024' of commit"),
        ({"COMMIT_SHA": ""}, [], "check", "of commit ''"),
        ({}, [(r"^docker pull .*/trainer:", 1, "")], "images", "trainer has no image of commit 1234567890"),
        ({}, [(r"beam_pipeline prepare", 1, "")], "dataset", ""),
        ({}, [(r"beam_pipeline verify", 1, "")], "verify", ""),
        ({}, [(r"launch --config", 69, "")], "train", ""),
    ],
)
def test_a_step_that_fails_ends_the_build(
    tmp_path: Path, values: dict[str, str], answers: list, failed_step: str, message: str
) -> None:
    outcome = Machine(tmp_path, [*answers, *ANSWERS]).run(load(LAUNCH), **values)
    assert outcome.failed_step == failed_step
    assert message in outcome.error


@pytest.mark.parametrize("seconds_to_start", [0, 1])
@pytest.mark.parametrize(
    ("step", "container"), [("dataset", "prepare"), ("verify", "verify"), ("train", "launch")]
)
def test_a_step_stops_its_container_on_sigterm(
    tmp_path: Path, step: str, container: str, seconds_to_start: int
) -> None:
    machine = Machine(tmp_path, [(rf"^docker run .*--name {container} ", 0, "until stopped"), *ANSWERS])
    build = load(LAUNCH)
    for name in ("name", "pipeline-image", "trainer-image", "fingerprint"):
        (machine.workspace / name).write_text("x\n")
    tested_step = next(each for each in build.steps if each.id == step)
    process = machine.start(
        tested_step, {**BUILT_IN, **build.substitutions}, SECONDS_TO_START=str(seconds_to_start)
    )
    while not machine.outcome(None, "").calls_of("docker", "run"):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    stops = machine.outcome(None, "").calls_of("docker", "stop")
    assert {tuple(call) for call in stops} == {("docker", "stop", "-t", "60", container)}


def test_a_push_to_main_builds_and_pushes_by_digest(tmp_path: Path) -> None:
    outcome = Machine(tmp_path, ANSWERS).run(load(IMAGES))
    assert outcome.failed_step is None, outcome.error
    names = ("pipeline", "trainer", "trainer-pjrt")
    image_tags = [f"{REGISTRY}/{name}:{BUILT_IN['COMMIT_SHA']}" for name in names]
    assert [call[2] for call in outcome.calls_of("docker", "push")] == image_tags
    for call in outcome.calls_of("docker", "build"):
        assert (ROOT / call[call.index("--file") + 1]).is_file()
    [template] = outcome.calls_of("gcloud", "dataflow", "flex-template", "build")
    assert template[template.index("--image") + 1] == f"{REGISTRY}/pipeline@{DIGEST}"
    assert (ROOT / template[template.index("--metadata-file") + 1]).is_file()


def test_clean_up_ends_only_the_jobs_of_the_build(tmp_path: Path) -> None:
    answers = [
        (r"dataflow jobs list", 0, "job-1\njob-2\njob-3\n"),
        (r"dataflow jobs describe job-1", 0, "another\n"),
        (r"dataflow jobs describe job-2", 0, "the-build\n"),
        (r"dataflow jobs describe job-3", 0, "\n"),
        (r"queued-resources list", 0, "v1-0\tACTIVE\nv1-1\tDELETING\n"),
        (r"custom-jobs list", 0, "projects/1/7\tJOB_STATE_RUNNING\nprojects/1/8\tJOB_STATE_SUCCEEDED\n"),
    ]
    outcome = Machine(tmp_path, answers).run(load(CLEAN_UP), _BUILD="the-build", _CLUSTER="c")
    assert outcome.failed_step is None, outcome.error
    [jobset] = outcome.calls_of("kubectl", "delete")
    assert jobset[3:] == ["--selector", "build=the-build", "--namespace", "tokenmill", "--wait=false"]
    assert outcome.calls_of("gcloud", "container", "clusters", "get-credentials")[0][4] == "c"
    assert [call[4] for call in outcome.calls_of("gcloud", "dataflow", "jobs", "cancel")] == ["job-2"]
    [delete_call] = outcome.calls_of("gcloud", "compute", "tpus", "queued-resources", "delete")
    assert delete_call[5] == "v1-0" and "--force" in delete_call
    assert [call[4] for call in outcome.calls_of("gcloud", "ai", "custom-jobs", "cancel")] == ["projects/1/7"]


def test_clean_up_without_a_build_touches_nothing(tmp_path: Path) -> None:
    build = load(CLEAN_UP)
    for number, step in enumerate(build.steps):
        folder = tmp_path / str(number)
        folder.mkdir()
        machine = Machine(folder, [(r"dataflow jobs (list|describe)", 0, "\n")])
        process = machine.start(step, {**BUILT_IN, **build.substitutions})
        _, error = process.communicate(timeout=30)
        assert process.returncode != 0 and "BUILD" in error
        assert machine.outcome(None, "").calls == []


def test_clean_up_without_a_cluster_does_not_look_for_jobsets(tmp_path: Path) -> None:
    outcome = Machine(tmp_path, []).run(load(CLEAN_UP), _BUILD="the-build")
    assert outcome.failed_step is None, outcome.error
    assert outcome.calls_of("kubectl") == []


def test_the_cluster_gives_accounts_the_rights_that_are_used_and_no_others() -> None:
    objects = list(yaml.safe_load_all((ROOT / "deploy" / "gke-launch.yaml").read_text()))
    roles = {each["metadata"]["name"]: each["rules"] for each in objects if each["kind"] == "Role"}
    bound = {
        each["roleRef"]["name"]: each["subjects"][0]["name"]
        for each in objects
        if each["kind"] == "RoleBinding"
    }
    assert bound == {role: f"{role}@PROJECT.iam.gserviceaccount.com" for role in roles}
    granted_rights = {
        (verb, group, resource)
        for rule in roles["tokenmill-launch"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    code = "import json; from tpu_trainer.cloud.gke import RIGHTS; print(json.dumps(RIGHTS))"
    used_rights = {
        (verb, group, f"{resource}/{part}" if part else resource)
        for verb, group, resource, part in json.loads(run_trainer("-c", code))
    }
    assert granted_rights == used_rights
