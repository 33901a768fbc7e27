"""Pushing to the hub, with its real client, against a local test server."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.tokenization import hub

FILES = {"tokenizer.json": b'{"a": "\xc3\xa9"}', "tokenizer_config.json": b"{}"}


class StandIn(ThreadingHTTPServer):
    """Stores what is committed to it, and refuses commits to the repository `someone/else`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            name = json.loads(body)
            repo = "/".join(filter(None, [name.get("organization") or "me", name["name"]]))
            if repo == "someone/else":
                self._answer({"error": "You don't have the rights"}, 403)
                return
            self.server.repos.setdefault(repo, {})
            self._answer({"url": f"{self.server.url}/{repo}"})
            return
        repo, _, action = self.path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
        assert repo in self.server.repos
        if action == "preupload":
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self._answer({"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]})
            return
        assert action == "commit"
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.server.repos[repo][line["value"]["path"]] = content
        self._answer(
            {"commitUrl": f"{self.server.url}/{repo}/commit/abc", "commitOid": "abc", "hookOutput": ""}
        )

    def _answer(self, answer: dict, status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with StandIn() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)  # it reads HF_ENDPOINT when it is imported
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_files_are_committed(stand_in: StandIn):
    for repo, full_name in (("mine", "me/mine"), ("team/tokenizer", "team/tokenizer")):
        url = hub.push(FILES, repo, place="here")
        assert url == f"{stand_in.url}/{full_name}/commit/abc"
        assert stand_in.repos[full_name] == FILES


def test_a_hub_that_refuses_or_is_not_there(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch):
    message = "--push_to_hub {}: .*the tokenizer itself is finished, in out/dir; .* with --resume"
    with pytest.raises(DataError, match=message.format("someone/else")):
        hub.push(FILES, "someone/else", place="out/dir")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=message.format("me/mine")):
        hub.push(FILES, "me/mine", place="out/dir")


@pytest.mark.parametrize("repo", ["a/b/c", "spaces in it", "-dash", ""])
def test_names_the_hub_cannot_have(repo: str):
    with pytest.raises(UsageError, match="--push_to_hub"):
        hub.check_repo(repo)
