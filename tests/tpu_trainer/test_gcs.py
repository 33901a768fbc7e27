"""A run from gs:// shards to a gs:// folder, killed and continued: the same as a run on a local disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.tpu_trainer.on_gcs import run_all_on_gcs, skip_where_not_permitted
from tests.tpu_trainer.small_runs import fit_arguments, learnt, metrics, weights

OPTIONS: dict[str, Any] = {
    "model.config.hidden_size": 16,
    "model.config.num_hidden_layers": 1,
    "model.config.num_attention_heads": 2,
    "model.config.intermediate_size": 24,
    "data.window_shards": 2,
    "train.steps": 12,
    "train.batch_size": 8,
    "train.log_every": 1,
    "train.checkpoint_every": 4,
    "train.deterministic": True,
}
RUN = "gs://bucket/runs/one"
IN_BUCKET = {"data.train": "gs://bucket/train", "data.validation": "gs://bucket/validation"}
FAULTS = {"error_every": 101, "cut_download_every": 31}


def test_killed_and_continued_on_cloud_storage(tmp_path: Path, dataset: Path) -> None:
    skip_where_not_permitted()
    command, local = fit_arguments(dataset, RUN, OPTIONS | IN_BUCKET), tmp_path / "local"
    chains = [
        [(command, {"kill_in_write_of": 8}), (command, {})],
        [(fit_arguments(dataset, local, OPTIONS), {})],
    ]
    [[(killed, _), (status, log)], [(status_of_local, _)]], bucket, requests = run_all_on_gcs(
        tmp_path / "gcs", dataset, chains, FAULTS
    )
    assert (killed, status, status_of_local) == (-9, 0, 0), log
    assert "steps 5 to 12" in log  # from the checkpoint before the one that was half written
    assert any(request.startswith("POST /upload/") for request in requests)

    run = bucket / "runs" / "one"
    assert learnt(metrics(run)) == learnt(metrics(local))
    expected, found = weights(local), weights(run)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    for name in ("config.yaml", "summary.json", "loss.svg", "tokenizer/tokenizer.json"):
        assert (run / name).is_file(), name
