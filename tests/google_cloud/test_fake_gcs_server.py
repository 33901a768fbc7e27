"""Input and output in gs:// on fake-gcs-server, an independent server of Cloud Storage's API."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipeline import __main__
from beam_pipeline.dataset import manifest
from beam_pipeline.support import buckets, filesystem
from beam_pipeline.verbs import inspection, prepare, train_tokenizer
from tests.beam_pipeline.cloud_runs import MIXED, OUT, TRAINING, arguments, objects
from tests.beam_pipeline.runs import PROGRAM, content, defects
from tests.google_cloud.clients import redirect_google_cloud
from tests.google_cloud.fake_gcs_server import Relay, serving


@pytest.fixture
def bucket(
    corpus: Path,
    tokenizer_folder: Path,
    documents: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Relay]:
    """gs://data on the server, with a corpus and a tokenizer."""
    folder = tmp_path / "objects"
    for name, data in objects(corpus, tokenizer_folder, documents).items():
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_bytes(data)
    with serving(folder) as relay:
        redirect_google_cloud(relay, tmp_path, monkeypatch)
        yield relay


def objects_below(folder: str) -> dict[str, bytes]:
    listing = buckets.list_objects(f"{folder}/")
    return {url.removeprefix(f"{folder}/"): filesystem.read_bytes(url) for url, _ in listing}


def test_every_byte_is_as_on_a_local_disk(bucket: Relay, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prepare.main(arguments(tmp_path / "out"))
    expected = content(tmp_path / "out")
    prepare.main(arguments(OUT))
    assert objects_below(OUT) == expected
    assert defects(OUT) == []
    inspection.main([OUT, "--record", "validation:0:3"])
    assert "gs://data/corpus/" in capsys.readouterr().out
    prepare.main(arguments(OUT, "--resume"))
    assert "nothing to do" in capsys.readouterr().out
    prepare.main(arguments(OUT, "--overwrite", "--splits", "other=1"))
    assert {name.partition("/")[0] for name in objects_below(OUT)} == {"other", "tokenizer", "report.html"}
    assert defects(OUT) == []


def test_killed_there_is_no_dataset_and_resumed_a_whole_one(bucket: Relay, tmp_path: Path):
    prepare.main(arguments(tmp_path / "out"))
    program = [*PROGRAM, *arguments(OUT)]
    run = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any(name.endswith(".tfrecord") for name, _ in buckets.list_objects(f"{OUT}/")):
        assert run.poll() is None
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not [name for name in objects_below(OUT) if name.endswith("manifest.json")]
    assert __main__.run("prepare", arguments(OUT, "--resume")) == 2  # its lock is fresh
    filesystem.delete([f"{OUT}/_staging/run.lock"])
    prepare.main(arguments(OUT, "--resume"))
    assert objects_below(OUT) == content(tmp_path / "out")


def test_compressed_and_columnar_files_and_a_tokenizer_trained_there(bucket: Relay, documents: list[str]):
    train_tokenizer.main(TRAINING)
    prepare.main([*MIXED, "--max_length", "64", "--dedup", "exact", "--num_shards", "3"])
    assert manifest.read_manifest(f"{OUT}/train")["totals"]["documents"] == len(set(documents))
    assert defects(OUT) == []


def test_two_runs_into_one_folder_one_wins(bucket: Relay, tmp_path: Path):
    prepare.main(arguments(tmp_path / "out"))
    program = [*PROGRAM, *arguments(OUT)]
    runs = [subprocess.Popen(program, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2], errors
    assert objects_below(OUT) == content(tmp_path / "out")


def test_writing_renaming_and_deleting_many_objects(bucket: Relay):
    names = [f"gs://data/folder/{number:03d}" for number in range(230)]  # more than fit in one batch
    for name in names:
        filesystem.write_bytes(name, name.encode())
    filesystem.rename(names[0], "gs://data/elsewhere/x")
    assert objects_below("gs://data/elsewhere") == {"x": names[0].encode()}
    filesystem.delete([names[1], "gs://data/folder/gone"])
    assert set(objects_below("gs://data/folder")) == {f"{number:03d}" for number in range(2, 230)}
    batches = bucket.requests.count("POST /batch/storage/v1")
    filesystem.delete_folder("gs://data/folder")
    assert objects_below("gs://data/folder") == {}
    assert bucket.requests.count("POST /batch/storage/v1") == batches + 3
    large_data = os.urandom(40 << 20)  # several pieces of a resumable upload
    filesystem.write_bytes("gs://data/large", large_data)
    assert filesystem.read_bytes("gs://data/large") == large_data
