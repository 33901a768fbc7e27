"""A run from gs:// shards to a gs:// folder, killed and continued: the same as a run on a local disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.cloud.storage.retry import DEFAULT_RETRY

from tests.google_cloud.fake_gcs_server import PROGRAM
from tests.google_cloud.gcs import Faults, Gcs
from tests.tpu_trainer.on_gcs import run_all_on_gcs, skip_where_not_permitted
from tests.tpu_trainer.small_runs import fit_arguments, learnt, metrics, weights
from tests.tpu_trainer.tiny import sequences, write_split
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

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


@pytest.mark.parametrize("server", ["stand-in", "fake-gcs-server"])
def test_killed_and_continued_on_cloud_storage(tmp_path: Path, dataset: Path, server: str) -> None:
    skip_where_not_permitted()
    is_fake_gcs_server = server == "fake-gcs-server"
    if is_fake_gcs_server and not PROGRAM.exists():
        pytest.skip("`make test-engines` installs fake-gcs-server")
    command, local_run = fit_arguments(dataset, RUN, OPTIONS | IN_BUCKET), tmp_path / "local"
    short_lease = {"renewed_every": 0.5}
    chains = [
        [(command, {"kill_in_write_of": 8} | short_lease), (command, short_lease)],
        [(fit_arguments(dataset, local_run, OPTIONS), {})],
    ]
    [[(killed_status, _), (status, log)], [(status_of_local, _)]], bucket, requests = run_all_on_gcs(
        tmp_path / "gcs", dataset, chains, FAULTS, fake_gcs_server=is_fake_gcs_server
    )
    assert (killed_status, status, status_of_local) == (-9, 0, 0), log
    assert "steps 5 to 12" in log  # from the checkpoint before the one that was half written
    assert "run.lock: another `fit` (process" in log
    assert not (bucket / "runs" / "one" / "run.lock").exists()
    assert any(request.startswith("POST /upload/") for request in requests)

    run = bucket / "runs" / "one"
    assert learnt(metrics(run)) == learnt(metrics(local_run))
    expected, actual = weights(local_run), weights(run)
    assert expected.keys() == actual.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)
    for name in ("config.yaml", "summary.json", "loss.svg", "tokenizer/tokenizer.json"):
        assert (run / name).is_file(), name


@pytest.mark.parametrize("manifest", [True, pytest.param(False, marks=pytest.mark.wide)])
def test_a_run_starts_without_a_request_for_each_shard(
    tmp_path: Path, tokenizer_folder: Path, manifest: bool
) -> None:
    skip_where_not_permitted()
    write_split(
        tmp_path / "bucket" / "train",
        sequences(300, 1),
        tokenizer=tokenizer_folder if manifest else None,
        shard_rows=1,
    )
    values = {"data.train": "gs://bucket/train", "data.tokenizer": tokenizer_folder, "train.steps": 1}
    command = fit_arguments(tmp_path, tmp_path / "run", OPTIONS | values)
    command = (
        command[: command.index("--data.validation")] + command[command.index("--data.validation") + 2 :]
    )
    [[(status, log)]], _, requests = run_all_on_gcs(
        tmp_path / "gcs", tmp_path / "bucket", [[(command, {})]], {}, page_size=100
    )
    assert status == 0, log
    requested_shards = [
        match[1] for match in (re.search(r"train-(\d+)-1\.tfrecord", each) for each in requests) if match
    ]
    # One batch of 8 rows, and the windows of 2 shards that are read ahead: 3, and what the pipeline holds.
    assert 8 <= len(set(requested_shards)) < 40
    # Pages of the listing, and what does not depend on the number of shards.
    assert len(requests) - len(requested_shards) < 40, requests


def test_a_listing_takes_a_request_for_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setattr(DEFAULT_RETRY, "_initial", 0.01)
    with Gcs("bucket", page_size=100, faults=Faults(error_every=3)) as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        for number in range(250):
            gcs.put(f"gs://bucket/data/train/{number:05d}", bytes(number))
        gcs.put("gs://bucket/data/train/", b"")
        gcs.put("gs://bucket/data/train/below/file", b"1")
        listing = files.list_files("gs://bucket/data/train/")
        assert {name: each.size for name, each in listing.items()} == {f"{n:05d}": n for n in range(250)}
        assert len(gcs.requests) - gcs.failures == 3
        assert files.list_files("gs://bucket/nothing") == {}
        with pytest.raises(
            UsageError, match=r"gs://other/data: cannot list the folder: 404 GET .*no bucket other"
        ):
            files.list_files("gs://other/data")
