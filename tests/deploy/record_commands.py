"""Writes commands.json: the flags of the commands in deploy/ and the docs, as the tools list them.

Run it on a machine with gcloud and docker after adding a command:

    python -m tests.deploy.record_commands
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

RECORD = Path(__file__).with_name("commands.json")
GCLOUD = """
ai custom-jobs cancel
ai custom-jobs list
ai custom-jobs stream-logs
artifacts repositories add-iam-policy-binding
artifacts repositories create
auth application-default login
billing projects link
builds cancel
builds connections create github
builds list
builds log
builds repositories create
builds triggers create github
builds triggers create pubsub
builds triggers run
compute networks subnets update
compute tpus accelerator-types list
compute tpus queued-resources delete
compute tpus queued-resources list
compute tpus tpu-vm ssh
container clusters get-credentials
container clusters update
dataflow flex-template build
dataflow flex-template run
dataflow jobs cancel
dataflow jobs describe
dataflow jobs list
iam roles create
iam service-accounts add-iam-policy-binding
iam service-accounts create
logging read
projects add-iam-policy-binding
projects create
projects describe
pubsub topics create
services enable
storage buckets add-iam-policy-binding
storage buckets create
storage cat
storage cp
""".strip().splitlines()
KUBECTL = ("delete",)
DOCKER = ("build", "inspect", "pull", "push", "run", "stop")


def gcloud_flags() -> dict:
    """Returns {"version", "everywhere": flags, "commands": {command: flags}}.

    Flags map names to "bool", "value" or a list of values.
    """
    root = Path(shutil.which("gcloud")).resolve().parents[1]
    spec = importlib.util.spec_from_file_location("tree", root / "data" / "cli" / "gcloud_completions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    commands = {}
    for command in GCLOUD:
        node = module.STATIC_COMPLETION_CLI_TREE
        for word in command.split():
            node = node["commands"][word]
        commands[command] = node["flags"]
    global_flags = module.STATIC_COMPLETION_CLI_TREE["flags"]
    return {
        "version": (root / "VERSION").read_text().strip(),
        "everywhere": global_flags,
        "commands": commands,
    }


def docker_flags() -> dict:
    """Returns the same as `gcloud_flags` for docker, parsed from its help texts."""
    commands = {}
    for command in DOCKER:
        text = subprocess.run(
            ["docker", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        flags = {}
        for short_name, long_name, kind in re.findall(
            r"^\s+(?:(-\w), )?\s*(--[\w-]+)( [a-z]\w*)?(?:\s{2}|$)", text, re.MULTILINE
        ):
            flags |= {name: "value" if kind else "bool" for name in (short_name, long_name) if name}
        commands[command] = flags
    version = subprocess.run(["docker", "--version"], capture_output=True, text=True, check=True).stdout
    return {"version": re.search(r"[\d.]+\d", version)[0], "everywhere": {}, "commands": commands}


def kubectl_flags() -> dict:
    """Returns the same as `gcloud_flags` for kubectl, parsed from its help texts."""

    def flags(*words: str) -> dict:
        text = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=True).stdout
        flag_kinds = {}
        for short_name, long_name, default in re.findall(
            r"^\s+(?:(-\w), )?(--[\w-]+)=(.*):$", text, re.MULTILINE
        ):
            kind = "bool" if default in ("true", "false") else "value"
            # A flag that is on can only be turned off by a value.
            flag_kinds |= {
                name: "value" if default == "true" else kind for name in (short_name, long_name) if name
            }
        return flag_kinds

    version = subprocess.run(
        ["kubectl", "version", "--client"], capture_output=True, text=True, check=False
    ).stdout
    return {
        "version": re.search(r"v([\d.]+\d)", version)[1],
        "everywhere": flags("options"),
        "commands": {command: flags(command, "--help") for command in KUBECTL},
    }


if __name__ == "__main__":
    record = {"gcloud": gcloud_flags(), "kubectl": kubectl_flags(), "docker": docker_flags()}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
