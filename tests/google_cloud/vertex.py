"""A local stand-in for Vertex AI's custom jobs."""

from __future__ import annotations

import itertools
import json
import ssl
from typing import Any

from tests.google_cloud.loopback import Loopback, Request, Response

_ACTIVE = ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_CANCELLING")


class Vertex(Loopback):
    """The stand-in.

    Args:
        states: The states of a job in the answers to successive requests. The last one is repeated.
        page_size: Maximum number of jobs in a page of a listing.
        project: The only project that the stand-in serves.
        port: See `Loopback`.
        tls: See `Loopback`.
        address: See `Loopback`.

    Attributes:
        jobs: The jobs by name, in the format of the API.
    """

    def __init__(
        self,
        *states: str,
        page_size: int = 1,
        project: str = "p",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        address: str = "127.0.0.1",
    ):
        super().__init__(port, tls, address)
        self._place = f"/v1/projects/{project}/locations/europe-west4/customJobs"
        self._states, self._page_size = states, page_size
        self._numbers = itertools.count(7)
        self._next_states: dict[str, list[str]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}

    @property
    def active_jobs(self) -> list[str]:
        """The names of the active jobs."""
        return [name for name, job in self.jobs.items() if job["state"] in _ACTIVE]

    def serve(self, request: Request) -> Response:
        name = request.path.removeprefix("/v1/").removesuffix(":cancel")
        match request.method, request.path:
            case "POST", path if path == self._place:
                return self._create(json.loads(request.body))
            case "GET", path if path == self._place:
                return self._list(request)
            case _ if name not in self.jobs:
                return Response.error(404, f"no job {name}")
            case "GET", _:
                self._advance(name)
                return Response.of_json(self.jobs[name])
            case "POST", _:
                if name not in self.active_jobs:
                    return Response.error(400, "the job has ended")
                self.jobs[name]["state"] = "JOB_STATE_CANCELLED"
                return Response.of_json({})
        return Response.error(404, request.path)

    def _create(self, body: dict) -> Response:
        number = next(self._numbers)
        name = f"projects/1/locations/europe-west4/customJobs/{number}"
        self.jobs[name] = body | {"name": name, "createTime": f"2026-01-01T00:00:{number:02d}Z"}
        self._next_states[name] = list(self._states)
        self.jobs[name]["state"] = "JOB_STATE_PENDING"
        return Response.of_json(self.jobs[name])

    def _advance(self, name: str) -> None:
        if name in self.active_jobs and self._next_states[name]:
            self.jobs[name]["state"] = self._next_states[name].pop(0)
            if self.jobs[name]["state"] == "JOB_STATE_FAILED":
                self.jobs[name]["error"] = {"code": 3, "message": "exit status 2"}

    def _list(self, request: Request) -> Response:
        label, _, value = request.query["filter"].removeprefix("labels.").partition("=")
        names = sorted(name for name, job in self.jobs.items() if job["labels"].get(label) == value)
        first = int(request.query.get("pageToken") or 0)
        page_end = first + self._page_size
        page: dict[str, Any] = {"customJobs": [self.jobs[name] for name in names[first:page_end]]}
        return Response.of_json(page | ({"nextPageToken": str(page_end)} if page_end < len(names) else {}))
