"""OpenTelemetry: gauges over HTTP, to OTEL_EXPORTER_OTLP_ENDPOINT, by default http://localhost:4318."""

from __future__ import annotations

import os
import re

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from tokenmill_reader.tracking.trackers import Record

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]")
_MOST_CHARACTERS = 245


class OtlpRecord:
    """Gauges named tokenmill.train.loss and so on. The record's id and name are attributes of the resource.

    OpenTelemetry has the present time in place of steps, so the step is a gauge, too. Parameters are not sent.
    """

    def __init__(self, record: Record) -> None:
        service = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "tokenmill")}
        names = {"service.instance.id": record.id, "tokenmill.run": record.name}
        self._reader = InMemoryMetricReader()
        provider = MeterProvider(
            [self._reader], resource=Resource.create(service | names), shutdown_on_exit=False
        )
        self._meter = provider.get_meter("tokenmill")
        self._exporter = OTLPMetricExporter()
        self._gauges = {}
        self.place = f"service.instance.id {record.id}"

    def log(self, step: int, figures: dict[str, float]) -> None:
        for name, value in ({"step": step} | figures).items():
            name = "tokenmill." + _NOT_IN_NAMES.sub("_", name.replace("/", "."))[:_MOST_CHARACTERS]
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(name)
            self._gauges[name].set(value)
        if self._exporter.export(self._reader.get_metrics_data()) is not MetricExportResult.SUCCESS:
            raise ConnectionError("the endpoint does not take the figures")

    def finish(self, *, succeeded: bool) -> None:
        self._exporter.shutdown()


open_record = OtlpRecord
