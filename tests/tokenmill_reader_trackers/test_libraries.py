"""The trackers with their real libraries: what arrives, in one record over two processes."""

from __future__ import annotations

import gzip
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tokenmill_reader.tracking import Record, Trackers, problem, trackers

VARIABLES = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID")


@pytest.fixture(autouse=True)
def without_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setattr(trackers, "SECONDS_TO_FINISH", 120.0)


def track(name: str, folder: Path, steps: range, *, size: int = 1, succeeded: bool = True) -> list[str]:
    """Logs steps; returns what the tracker reports."""
    assert problem(name, folder=str(folder)) is None
    notes = []

    def report(is_problem: bool, text: str) -> None:
        assert not is_problem, text
        notes.append(text)

    parameters = {"train.size": size, "train.name": "ä", "none": None}
    record = Record(id="0123456789abcdef", name="run", folder=str(folder), parameters=parameters)
    opened = Trackers([name], record, report=report)
    for step in steps:
        opened.log(step, {"train/loss": step / 2, "eval/a=b ü/loss": float("nan") if step == 2 else 1.0})
    opened.finish(succeeded=succeeded)
    return notes


def test_mlflow_continues_a_run_whose_options_change(tmp_path: Path) -> None:
    track("mlflow", tmp_path, range(1, 4), succeeded=False)
    database = sqlite3.connect(tmp_path / "mlflow.db")
    assert database.execute("select name, status from runs").fetchall() == [("run", "FAILED")]
    (note,) = track("mlflow", tmp_path, range(4, 6), size=2)
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db" in note
    assert database.execute("select name, status from runs").fetchall() == [("run", "FINISHED")]
    losses = "select step, value from metrics where key = 'train/loss' order by step"
    assert database.execute(losses).fetchall() == [(step, step / 2) for step in range(1, 6)]
    names = database.execute("select distinct key from metrics").fetchall()
    assert sorted(names) == [("eval/a_b ü/loss",), ("train/loss",)]
    assert ("train.size", "1") in database.execute("select key, value from params").fetchall()
    assert ("changed.train.size", "2") in database.execute("select key, value from tags").fetchall()


def test_trackio_continues_a_run(tmp_path: Path) -> None:
    track("trackio", tmp_path, range(1, 4))
    (note,) = track("trackio", tmp_path, range(4, 6))
    assert note == "trackio: run run-0123456789abcdef; show it with `trackio show --project tokenmill`"
    database = sqlite3.connect(tmp_path / "trackio" / "tokenmill.db")
    steps = database.execute("select run_name, step from metrics order by step").fetchall()
    assert steps == [("run-0123456789abcdef", step) for step in range(1, 6)]


def test_wandb_writes_files_of_one_run_without_a_login(tmp_path: Path) -> None:
    track("wandb", tmp_path, range(1, 4))
    (note,) = track("wandb", tmp_path, range(4, 6))
    files = sorted(tmp_path.glob("wandb/offline-run-*-0123456789abcdef/run-0123456789abcdef.wandb"))
    contents = [file.read_bytes() for file in files]
    assert [
        content.count(b"train/loss") >= steps for content, steps in zip(contents, (3, 2), strict=True)
    ] == [True] * 2
    assert all(b"train.size" in content for content in contents)
    assert note.endswith(f"send it with `wandb sync {files[1].parent}`")
    # Neither the code nor the console nor the packages.
    names = {path.name for path in tmp_path.glob("wandb/offline-run-*/**/*") if path.is_file()}
    assert names <= {
        "run-0123456789abcdef.wandb",
        "debug.log",
        "debug-internal.log",
        "debug-core.log",
        "config.yaml",
    }


class Collector(BaseHTTPRequestHandler):
    """A collector of OpenTelemetry."""

    requests: list[ExportMetricsServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/metrics"
        self.requests.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    Collector.requests = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_otlp_sends_gauges(tmp_path: Path, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    track("otlp", tmp_path, range(1, 4))
    steps = []
    for request in Collector.requests:
        (resource,) = request.resource_metrics
        attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert attributes["service.name"] == "tokenmill"
        assert attributes["service.instance.id"] == "0123456789abcdef"
        (scope,) = resource.scope_metrics
        assert "tokenmill.eval.a_b__.loss" in {metric.name for metric in scope.metrics}
        gauges = {metric.name: metric.gauge.data_points[0] for metric in scope.metrics}
        steps.append((gauges["tokenmill.step"].as_int, gauges["tokenmill.train.loss"].as_double))
    assert steps == [(1, 0.5), (2, 1.0), (3, 1.5)]


def test_otlp_without_a_server_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with pytest.raises(AssertionError, match="otlp: cannot log figures"):
        track("otlp", tmp_path, range(1, 3))
