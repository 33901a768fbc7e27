"""Runs `tpu_trainer` commands on gs:// paths through TensorFlow's client, which connects only to Google's hosts.

`run_all_on_gcs` starts this module in a private mount and network namespace, whose /etc/hosts maps Google's hosts to
this machine. There, the stand-in for Cloud Storage listens on port 443, with a certificate of a temporary authority
that the client trusts. Nothing outside the namespace can be reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.google_cloud.fake_gcs_server import serving
from tests.google_cloud.gcs import Faults, Gcs
from tests.google_cloud.private_network import bring_loopback_up, certificate, write_hosts
from tests.tpu_trainer.faults import Fault, run_all

_HOSTS = ("www.googleapis.com", "storage.googleapis.com", "oauth2.googleapis.com", "localhost")
_NAMESPACE = ["unshare", "--map-root-user", "--mount", "--net"]
_PORT = 443
BUCKET = "bucket"


def skip_where_not_permitted() -> None:
    """Skips the test if this machine does not permit namespaces or lacks a tool."""
    for tool in ("unshare", "mount", "openssl"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool} here")
    result = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip(f"private namespaces are not permitted here: {result.stderr.strip()}")


def run_all_on_gcs(
    folder: Path,
    objects: Path,
    chains: Sequence[Sequence[tuple[Sequence[Any], Fault]]],
    faults: dict[str, int],
    page_size: int = 1000,
    fake_gcs_server: bool = False,
) -> tuple[list[list[tuple[int, str]]], Path, list[str]]:
    """Like `faults.run_all`, with the files of `objects` as gs://bucket/…, listed in pages of `page_size`.

    With `fake_gcs_server`, that server serves the bucket, without faults and with pages of its own.

    Returns:
        The results of the runs, a folder with the bucket's final objects, and the requests to the bucket.
    """
    folder.mkdir()
    hosts, plan = folder / "hosts", folder / "plan.json"
    write_hosts(hosts, {"127.0.0.1": _HOSTS})
    plan_chains = [
        [[[str(item) for item in arguments], fault] for arguments, fault in chain] for chain in chains
    ]
    server = {"fake_gcs_server": fake_gcs_server}
    stand_in = {"faults": faults, "page_size": page_size}
    plan.write_text(json.dumps({"objects": str(objects), "chains": plan_chains} | server | stand_in))
    shell_command = (
        f'mount --bind "{hosts}" /etc/hosts && exec "{sys.executable}" -m tests.tpu_trainer.on_gcs "{folder}"'
    )
    result = subprocess.run(
        [*_NAMESPACE, "sh", "-c", shell_command],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert result.returncode == 0, result.stderr
    outcome = json.loads((folder / "outcome.json").read_text())
    runs = [[tuple(run) for run in chain] for chain in outcome["runs"]]
    return runs, folder / "bucket", outcome["requests"]


Served = tuple[list[str], Callable[[], dict[str, bytes]]]
"""The requests so far, and a function that returns the bucket's objects."""


@contextlib.contextmanager
def _stand_in(folder: Path, plan: dict[str, Any]) -> Iterator[Served]:
    settings = {"faults": Faults(**plan["faults"]), "page_size": plan["page_size"]}
    with Gcs(BUCKET, port=_PORT, tls=certificate(folder, _HOSTS), **settings) as gcs:
        objects = Path(plan["objects"])
        for path in objects.rglob("*"):
            if path.is_file():
                gcs.put(f"gs://{BUCKET}/{path.relative_to(objects)}", path.read_bytes())
        yield gcs.requests, lambda: {name: blob.data for (_, name), blob in gcs.objects.items()}


@contextlib.contextmanager
def _fake_gcs_server(folder: Path, plan: dict[str, Any]) -> Iterator[Served]:
    buckets = folder / "buckets"
    shutil.copytree(plan["objects"], buckets / BUCKET)
    host = "storage.googleapis.com"
    with serving(buckets, port=_PORT, tls=certificate(folder, _HOSTS), host=host) as relay:

        def objects() -> dict[str, bytes]:
            return {name: relay.read(f"gs://{BUCKET}/{name}") for name in relay.names(f"gs://{BUCKET}/")}

        yield relay.requests, objects


def main(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    bring_loopback_up()
    authority = str(folder / "ca.pem")
    os.environ |= {
        "CURL_CA_BUNDLE": authority,
        "REQUESTS_CA_BUNDLE": authority,
        "NO_GCE_CHECK": "true",
    }
    serve = _fake_gcs_server if plan["fake_gcs_server"] else _stand_in
    with serve(folder, plan) as (requests, objects):
        runs = run_all(folder / "runs", plan["chains"])
        for name, data in objects().items():
            path = folder / BUCKET / name
            if name.endswith("/"):  # TensorFlow's folders
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    (folder / "outcome.json").write_text(json.dumps({"runs": runs, "requests": requests}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
