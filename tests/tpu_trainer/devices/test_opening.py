"""Opening the devices of a run."""

from __future__ import annotations

import pytest

from tpu_trainer.config import DataConfig, FitConfig
from tpu_trainer.devices.opening import met_processes
from tpu_trainer.support.errors import UsageError


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}', "lists 2 tasks"),
        ("[1]", r"TF_CONFIG is '\[1\]': not a cluster"),
    ],
)
def test_a_cluster_of_tensorflow_is_refused_instead_of_trained_by_each_task_alone(
    monkeypatch: pytest.MonkeyPatch, cluster: str, message: str
) -> None:
    config = FitConfig(data=DataConfig(train="TRAIN"), output_dir="RUN")
    monkeypatch.setenv("TF_CONFIG", cluster)
    with pytest.raises(UsageError, match=message), met_processes(config, run={}):
        pass
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "environment": "cloud"}')  # Vertex AI's
    with met_processes(config, run={}) as peers:
        assert peers.count == 1
