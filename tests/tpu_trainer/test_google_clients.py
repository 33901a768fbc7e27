"""The interpretation of responses and failures of Google's services, whichever client sends the request."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from google.auth.compute_engine import Credentials as MachineCredentials
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1, container_v1, tpu_v2
from google.oauth2.credentials import Credentials as UserCredentials

from tests.google_cloud.loopback import Loopback, Request, Response
from tpu_trainer.cloud import google as clients
from tpu_trainer.cloud.google import Google, RefusedError, RestApi, UnansweredError, send
from tpu_trainer.cloud.objects import Objects

RATE = Response.error(403, "Rate Limit Exceeded", "rateLimitExceeded")
PROXY = Response(200, b"<html>Log in</html>", {"Content-Type": "text/html"})
REQUESTS: dict[str, Callable[[Google], object]] = {
    "tpu": lambda google: send(
        google.client(tpu_v2.TpuClient).get_node, name="projects/p/locations/z/nodes/n"
    ),
    "tpu creates": lambda google: send(
        google.client(tpu_v2.TpuClient).create_queued_resource, parent="projects/p/locations/z"
    ),
    "compute": lambda google: send(
        google.client(compute_v1.ZoneOperationsClient).get,
        request={"project": "p", "zone": "z", "operation": "o"},
    ),
    "compute creates": lambda google: send(
        google.client(compute_v1.InstanceGroupManagersClient).insert_unary,
        request={"project": "p", "zone": "z", "instance_group_manager_resource": {"name": "n"}},
    ),
    "gke": lambda google: send(
        google.client(container_v1.ClusterManagerClient).get_cluster,
        name="projects/p/locations/l/clusters/c",
    ),
    "rest": lambda google: RestApi(google=google, url=google.endpoint).call("POST", "v1/jobs", {}),
    "list": lambda google: Objects(google.credentials, google.storage).list("gs://bucket/a"),
    "write": lambda google: Objects(google.credentials, google.storage).write(
        "gs://bucket/a", {}, generation=1
    ),
}


class Answers(Loopback):
    """Gives the same answer to all requests, or closes the connection; `count` is their number."""

    def __init__(self, answer: Response | None):
        super().__init__()
        self._answer = answer
        self.count = 0

    def serve(self, request: Request) -> Response:
        self.count += 1
        if self._answer is None:
            raise ConnectionResetError
        return self._answer


@contextlib.contextmanager
def client_and_server(answer: Response | None) -> Iterator[tuple[Google, Answers]]:
    with Answers(answer) as server:
        yield Google(credentials=AnonymousCredentials(), endpoint=server.url, storage=server.url), server


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_may_have_been_executed_is_unanswered_and_sent_once(name: str) -> None:
    errors = [Response.error(status, "come again") for status in (408, 429, 500, 502, 503, 504)]
    cut = Response(200, b'{"name": "projects/p"}', {"Content-Type": "application/json"}, cut=True)
    for answer in (None, *errors, RATE, PROXY, cut):
        with client_and_server(answer) as (google, server):
            with pytest.raises(UnansweredError):
                REQUESTS[name](google)
            assert server.count == 1, answer


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_without_a_server_or_an_answer_in_time_is_unanswered(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "TIMEOUT", 0.2)
    monkeypatch.setattr("tpu_trainer.cloud.objects.TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        url = f"http://localhost:{silent_server.getsockname()[1]}"
        for reachable in (url, "http://localhost:9"):
            with pytest.raises(UnansweredError):
                REQUESTS[name](
                    Google(credentials=AnonymousCredentials(), endpoint=reachable, storage=reachable)
                )


@pytest.mark.parametrize("kind", ["account", "machine"])
@pytest.mark.parametrize("name", ["tpu", "rest", "write"])
def test_without_a_network_to_renew_the_token_a_request_is_unanswered(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", "localhost:9")
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)
    secrets = {"client_id": "c", "client_secret": "s", "token_uri": "http://localhost:9"}
    account = UserCredentials(None, refresh_token="r", **secrets)
    machine = MachineCredentials(universe_domain="googleapis.com")
    with client_and_server(None) as (google, server):
        expired = replace(google, credentials={"account": account, "machine": machine}[kind])
        with pytest.raises(UnansweredError):
            REQUESTS[name](expired)
        assert server.count == 0


@pytest.mark.parametrize("name", REQUESTS)
def test_a_refusal_has_the_message_and_the_names_of_the_error(name: str) -> None:
    answer = Response.error(403, "Quota 'TPUS' exceeded. See https://x/y?z: limit 8", "quotaExceeded")
    with client_and_server(answer) as (google, server), pytest.raises(RefusedError) as error:
        REQUESTS[name](google)
    assert (error.value.code, error.value.reasons) == (403, {"quotaExceeded"}) and server.count == 1
    assert str(error.value).endswith(": Quota 'TPUS' exceeded. See https://x/y?z: limit 8")
    assert str(error.value).startswith("403 ") and "enum-encoding" not in str(error.value)
