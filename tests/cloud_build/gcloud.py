"""The sandbox's `gcloud`: the commands of the builds, over the sandbox's services. It refuses others.

Standard library only.

$DATAFLOW is the address of the stand-in for Dataflow; the other services have their own hosts.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from tests.deploy.recorded_tool import check
from tests.google_cloud.metadata_server import TOKEN

_STORAGE = "https://storage.googleapis.com"


def main() -> int:
    words = sys.argv[1:]
    try:
        command = check("gcloud", words)
    except ValueError as error:
        print(f"gcloud: {error}", file=sys.stderr)
        return 64
    if command not in COMMANDS:
        print(f"gcloud: there is no command {command!r} here", file=sys.stderr)
        return 64
    places, flags = _parse(words[len(command.split()) :])
    try:
        for row in COMMANDS[command](places, flags):
            print(row)
    except HTTPError as error:
        print(f"ERROR: (gcloud.{command}) {error}: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    return 0


def _parse(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Returns positional arguments and flags of a command. `check` has accepted them."""
    places, flags = [], {}
    remaining_words = list(words)
    while remaining_words:
        word = remaining_words.pop(0)
        if not word.startswith("--"):
            places.append(word)
        elif word in ("--full", "--force", "--quiet", "--async"):
            flags[word] = ""
        else:
            flags[word] = remaining_words.pop(0)
    return places, flags


def cat(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    [url] = places
    bucket, _, name = url.removeprefix("gs://").partition("/")
    place = f"{_STORAGE}/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media"
    sys.stdout.buffer.write(_ask("GET", place))
    yield from ()


def copy(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    source, url = places
    bucket, _, name = url.removeprefix("gs://").partition("/")
    query = urlencode({"uploadType": "media", "name": name})
    _ask("POST", f"{_STORAGE}/upload/storage/v1/b/{bucket}/o?{query}", Path(source).read_bytes())
    yield from ()


def list_jobs(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    assert flags["--status"] == "active"
    for job in _json("GET", _jobs(flags)).get("jobs", []):
        # The API's listing has no labels, and so has gcloud's.
        yield _format({key: value for key, value in job.items() if key != "labels"}, flags)


def describe_job(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    assert "--full" in flags
    yield _format(_json("GET", f"{_jobs(flags)}/{places[0]}"), flags)


def cancel_job(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    body = json.dumps({"requestedState": "JOB_STATE_CANCELLED"}).encode()
    _ask("PUT", f"{_jobs(flags)}/{places[0]}", body)
    yield f"Cancelled job [{places[0]}]"


def list_queued_resources(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    for resource in _json("GET", _queued_resources(flags)).get("queuedResources", []):
        if _matches(resource, flags["--filter"]):
            yield _format(resource, flags)


def delete_queued_resource(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    assert {"--force", "--quiet", "--async"} <= flags.keys()
    _ask("DELETE", f"{_queued_resources(flags)}/{places[0]}?force=true")
    yield f"Delete request issued for: [{places[0]}]"


def list_custom_jobs(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    host, parent = _vertex(flags)
    token = ""
    while True:
        query = urlencode({"filter": flags["--filter"], "pageToken": token})
        page = _json("GET", f"{host}/v1/{parent}/customJobs?{query}")
        for job in page.get("customJobs", []):
            yield _format(job, flags)
        token = page.get("nextPageToken", "")
        if not token:
            return


def cancel_custom_job(places: list[str], flags: dict[str, str]) -> Iterator[str]:
    _ask("POST", f"{_vertex(flags)[0]}/v1/{places[0]}:cancel", b"{}")
    yield f"Request to cancel CustomJob [{places[0]}] has been sent"


def _jobs(flags: dict[str, str]) -> str:
    place = f"projects/{flags['--project']}/locations/{flags['--region']}"
    return f"{os.environ['DATAFLOW']}/v1b3/{place}/jobs"


def _queued_resources(flags: dict[str, str]) -> str:
    place = f"projects/{flags['--project']}/locations/{flags['--zone']}"
    return f"https://tpu.googleapis.com/v2/{place}/queuedResources"


def _vertex(flags: dict[str, str]) -> tuple[str, str]:
    region = flags["--region"]
    host = f"https://{region}-aiplatform.googleapis.com"
    return host, f"projects/{flags['--project']}/locations/{region}"


def _matches(resource: dict, condition: str) -> bool:
    """Returns whether a resource fulfils PATH=VALUE, in which `[]` stands for any element."""
    path, _, expected = condition.partition("=")
    values: list[Any] = [resource]
    for key in path.split("."):
        values = [value[key.removesuffix("[]")] for value in values if key.removesuffix("[]") in value]
        if key.endswith("[]"):
            values = [element for value in values for element in value]
    return expected in values


def _format(resource: dict, flags: dict[str, str]) -> str:
    """Returns the keys of `--format value(KEY,…)`, separated by tabs. A missing one is empty."""
    keys = re.fullmatch(r"value\((.*)\)", flags["--format"])[1].split(",")
    return "\t".join(_value(resource, key) for key in keys)


def _value(resource: dict, key: str) -> str:
    name = key.removesuffix(".basename()")
    value: Any = resource
    for part in name.split("."):
        value = value.get(part, {})
    text = value if isinstance(value, str) else ""
    return text.rpartition("/")[2] if name != key else text


def _json(method: str, url: str) -> dict:
    return json.loads(_ask(method, url))


def _ask(method: str, url: str, body: bytes | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    tls_context = ssl.create_default_context(cafile=f"{os.environ['SANDBOX']}/ca.pem")
    tls = {"context": tls_context} if url.startswith("https") else {}
    with urlopen(Request(url, body, headers, method=method), timeout=60, **tls) as answer:
        return answer.read()


COMMANDS: dict[str, Callable[[list[str], dict[str, str]], Iterator[str]]] = {
    "ai custom-jobs cancel": cancel_custom_job,
    "ai custom-jobs list": list_custom_jobs,
    "compute tpus queued-resources delete": delete_queued_resource,
    "compute tpus queued-resources list": list_queued_resources,
    "dataflow jobs cancel": cancel_job,
    "dataflow jobs describe": describe_job,
    "dataflow jobs list": list_jobs,
    "storage cat": cat,
    "storage cp": copy,
}


if __name__ == "__main__":
    sys.exit(main())
