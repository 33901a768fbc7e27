"""MLflow: to the server of MLFLOW_TRACKING_URI, else to an SQLite file, mlflow.db."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tokenmill_reader.tracking.parameters import without_secrets
from tokenmill_reader.tracking.trackers import Record

_ID = "tokenmill.id"
"""The tag that has the record's id; MLflow gives its runs ids of its own."""
_MOST_PARAMETERS = 100  # in a request
_MOST_CHARACTERS = 6000  # of a parameter
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowRecord:
    """A run of MLflow."""

    def __init__(self, record: Record) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI")
        folder = Path(record.folder).absolute()
        self._client = MlflowClient(address or f"sqlite:///{folder / 'mlflow.db'}")
        experiment = self._experiment(None if address else (folder / "mlartifacts").as_uri())
        runs = self._client.search_runs([experiment], f"tags.`{_ID}` = '{record.id}'", max_results=1)
        if runs:
            run = runs[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
        else:
            run = self._client.create_run(experiment, run_name=record.name, tags={_ID: record.id})
        self._run = run.info.run_id
        self._log_parameters(record, known=run.data.params)
        where = address or f"sqlite:///{folder / 'mlflow.db'}"
        self.place = f"run {self._run} in {without_secrets(where)}"
        if not address:
            self.place += f"; show it with `mlflow ui --backend-store-uri {where}`"

    def _experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "tokenmill")
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return experiment.experiment_id
        try:
            return self._client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:  # another process was faster
            return self._client.get_experiment_by_name(name).experiment_id

    def _log_parameters(self, record: Record, *, known: dict[str, str]) -> None:
        """Logs parameters. MLflow allows no change of one: a run that continues with another value gets a tag."""
        values = {name: str(value)[:_MOST_CHARACTERS] for name, value in record.parameters.items()}
        new = [Param(_valid(name), value) for name, value in values.items() if _valid(name) not in known]
        for first in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=new[first : first + _MOST_PARAMETERS])
        for name, value in values.items():
            if known.get(_valid(name), value) != value:
                self._client.set_tag(self._run, f"changed.{_valid(name)}", value)

    def log(self, step: int, figures: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_valid(name), value, now, step) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, *, succeeded: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if succeeded else "FAILED")


def _valid(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


open_record = MlflowRecord
