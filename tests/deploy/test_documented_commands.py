"""The commands, accounts and substitutions in the pages on Google Cloud exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.deploy.builds import BUILT_IN, FILES, load, resolve
from tests.deploy.recorded_tool import RECORD, check

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "docs" / "running-on-google-cloud.md"
BUILD = ROOT / "docs" / "cloud-build.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]


def commands() -> list[str]:
    """Returns all gcloud commands of the pages, from code blocks and inline code."""
    command_lines = []
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        inline_commands = re.findall(
            r"`(gcloud [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        )
        command_lines += [match[0] for line in lines for match in [re.search(r"\bgcloud .*", line)] if match]
        command_lines += [" ".join(command.split()) for command in inline_commands]
    return command_lines


def test_every_command_and_flag_exists() -> None:
    used_commands = {check("gcloud", shlex.split(command, comments=True)[1:]) for command in commands()}
    used_commands |= {
        command_name
        for path in FILES
        for step in load(path).steps
        for command_name in RECORD["gcloud"]["commands"]
        if f"gcloud {command_name} " in step.script
    }
    assert used_commands == set(RECORD["gcloud"]["commands"])  # nor are unused commands recorded


def test_every_account_of_a_build_is_made_and_granted_rights() -> None:
    text = PROJECT.read_text(encoding="utf-8")
    [created_accounts] = re.findall(r"for account in (.*); do\n  gcloud iam service-accounts create", text)
    for path in FILES:
        account = resolve(load(path).service_account, BUILT_IN).rpartition("/")[2].partition("@")[0]
        assert account.removeprefix("tokenmill-") in created_accounts.split()
        assert f"grant_project {account} logging.logWriter" in text  # what CLOUD_LOGGING_ONLY needs
        assert f"{account}@" in BUILD.read_text(encoding="utf-8")


def test_the_substitutions_that_are_documented_exist() -> None:
    text = BUILD.read_text(encoding="utf-8")
    table = text[text.index("| substitution | what it is |") : text.index("**A build lasts a day")]
    launch = next(path for path in FILES if path.name == "cloudbuild.yaml")
    assert set(re.findall(r"`(_[A-Z_]+)`", table)) == set(load(launch).substitutions)
