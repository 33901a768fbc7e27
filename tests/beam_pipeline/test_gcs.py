"""Input and output in gs://, with Beam's own client and a stand-in for Cloud Storage that sometimes fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from beam_pipeline import __main__
from beam_pipeline.dataset import manifest
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import Part, WorkUnit
from beam_pipeline.steps import write
from beam_pipeline.support import filesystem
from beam_pipeline.verbs import convert, inspection, prepare, train_tokenizer
from tests.beam_pipeline.cloud_runs import MIXED, OUT, TRAINING, arguments, objects
from tests.beam_pipeline.runs import PROGRAM, content, defects
from tests.google_cloud.gcs import Faults, Gcs
from tests.google_cloud.loopback import Response

FAULTS = Faults(error_every=11, cut_upload_every=5, cut_download_every=4)


@pytest.fixture
def gcs(gcs: Gcs, corpus: Path, tokenizer_folder: Path, documents: list[str]) -> Gcs:
    """The stand-in with corpora and a tokenizer. It has no faults until a test sets some."""
    for name, data in objects(corpus, tokenizer_folder, documents).items():
        gcs.put(f"gs://data/{name}", data)
    return gcs


@pytest.fixture
def undisturbed_content(gcs: Gcs, tmp_path: Path) -> dict[str, bytes]:
    """The same dataset in a local folder."""
    out = tmp_path / "out"
    prepare.main(arguments(out))
    return content(out)


def test_with_errors_and_cut_connections_every_byte_is_as_on_a_local_disk(
    gcs: Gcs, undisturbed_content: dict[str, bytes], capsys: pytest.CaptureFixture
):
    gcs.faults = FAULTS
    prepare.main(arguments(OUT))
    assert gcs.objects_below(OUT) == undisturbed_content
    assert gcs.failures > 30
    assert defects(OUT) == []
    inspection.main([OUT, "--record", "validation:0:3"])
    assert "gs://data/corpus/" in capsys.readouterr().out
    prepare.main(arguments(OUT, "--resume"))
    assert "nothing to do" in capsys.readouterr().out
    assert gcs.objects_below(OUT) == undisturbed_content


@pytest.mark.parametrize("output_format", ["parquet", pytest.param("arrayrecord", marks=pytest.mark.wide)])
def test_converted_in_the_bucket_every_byte_is_as_on_a_local_disk(
    gcs: Gcs, undisturbed_content: dict[str, bytes], tmp_path: Path, output_format: str
):
    for name, data in undisturbed_content.items():
        gcs.put(f"{OUT}/{name}", data)
    convert.main([str(tmp_path / "out"), "--output_format", output_format, "--output", str(tmp_path / "two")])
    gcs.faults = FAULTS
    convert.main([OUT, "--output_format", output_format, "--output", "gs://data/two"])
    assert gcs.failures > 10
    actual, expected = gcs.objects_below("gs://data/two"), content(tmp_path / "two")
    shards = {name for name in expected if not name.endswith(("manifest.json", "report.html"))}
    assert {name: actual[name] for name in shards} == {name: expected[name] for name in shards}
    assert actual.keys() == expected.keys()
    assert defects("gs://data/two") == []
    inspection.main(["gs://data/two", "--record", "validation:0:3"])
    convert.main(["gs://data/two", "--output_format", "tfrecord", "--output", str(tmp_path / "three")])
    assert {name: data for name, data in content(tmp_path / "three").items() if name in shards} == {
        name: data for name, data in undisturbed_content.items() if name in shards
    }


def test_killed_twice_there_is_no_dataset_and_then_a_whole_one(
    gcs: Gcs, undisturbed_content: dict[str, bytes]
):
    def run(*options: str, kill_at: str) -> None:
        program = [*PROGRAM, *arguments(OUT, *options)]
        child = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def kill(method: str, path: str) -> None:
            if kill_at in f"{method} {path}":
                os.kill(child.pid, signal.SIGKILL)
                raise ConnectionAbortedError

        gcs.on_request = kill
        assert child.wait(timeout=120) == -signal.SIGKILL
        gcs.on_request = None
        assert not [name for name in gcs.objects_below(OUT) if name.endswith("manifest.json")]
        assert "is not a finished dataset" in defects(OUT)[0]

    lock = f"{OUT}/_staging/run.lock"
    run(kill_at="%2Ftrain%2Ftrain-00002-150.tfrecord")  # while a shard is written
    finished_units = {name for name in gcs.objects_below(OUT) if "/finished/" in name}
    assert finished_units
    gcs.age(lock, 11 * 60)  # older than the lock of a live run can be
    run("--resume", kill_at="/a%2Fdataset%2Ftrain%2Fmanifest.json")
    assert {name for name in gcs.objects_below(OUT) if "/finished/" in name} > finished_units
    gcs.age(lock, 11 * 60)  # older than the lock of a live run can be
    prepare.main(arguments(OUT, "--resume"))
    assert gcs.objects_below(OUT) == undisturbed_content


def test_the_last_step_may_run_again_when_all_is_done(gcs: Gcs, monkeypatch: pytest.MonkeyPatch):
    commit = write.commit

    def commit_twice(*args: object, **keywords: object) -> None:
        commit(*args, **keywords)
        before = gcs.objects_below(OUT)
        commit(*args, **keywords)  # as after the loss of a worker that had just finished
        assert gcs.objects_below(OUT) == before

    monkeypatch.setattr(write, "commit", commit_twice)
    prepare.main(arguments(OUT))
    assert defects(OUT) == []


def test_tokenizers_and_compressed_and_columnar_files(gcs: Gcs, documents: list[str]):
    gcs.faults = FAULTS
    train_tokenizer.main(TRAINING)
    prepare.main([*MIXED, "--max_length", "64", "--dedup", "exact", "--num_shards", "3"])
    assert defects(OUT) == []
    assert manifest.read_manifest(f"{OUT}/train")["totals"]["documents"] == len(set(documents))
    assert gcs.failures > 20
    prepare.main([*MIXED, "--max_length", "32", "--overwrite"])
    assert manifest.read_manifest(f"{OUT}/train")["max_length"] == 32
    assert defects(OUT) == []


def test_renaming_and_deleting_with_errors(gcs: Gcs):
    names = [f"gs://data/folder/{number:03d}" for number in range(230)]  # more than fit in one batch
    for name in names:
        gcs.put(name, name.encode())
    gcs.faults = Faults(error_every=7)
    filesystem.rename(names[0], "gs://data/elsewhere/x")
    assert gcs.objects_below("gs://data/elsewhere") == {"x": names[0].encode()}
    filesystem.delete([names[1], "gs://data/folder/gone"])
    assert set(gcs.objects_below("gs://data/folder")) == {f"{number:03d}" for number in range(2, 230)}
    before = len(gcs.requests)
    filesystem.delete_folder("gs://data/folder")
    assert gcs.objects_below("gs://data/folder") == {}
    assert sum(call == "POST /batch/storage/v1" for call in gcs.requests[before:]) < 30


def test_deleting_takes_a_request_for_a_hundred_files(gcs: Gcs):
    names = [f"gs://data/folder/{number:03d}" for number in range(450)]
    for name in names:
        gcs.put(name, b"")
    filesystem.delete([*names, "gs://data/folder/gone"])
    assert gcs.objects_below("gs://data/folder") == {}
    requests = [call for call in gcs.requests if not call.startswith("DELETE")]  # those are parts of batches
    assert requests.count("POST /batch/storage/v1") == 5
    assert not [call for call in requests if "/o/" in call]  # about one object


def test_overwriting_asks_for_no_shard_by_itself(gcs: Gcs):
    prepare.main(arguments(OUT))
    shards = [name for name in gcs.objects_below(OUT) if name.endswith(".tfrecord")]
    before = len(gcs.requests)
    prepare.main(arguments(OUT, "--overwrite", "--splits", "other=1"))
    assert not set(shards) & set(gcs.objects_below(OUT))
    shard_requests = [
        call for call in gcs.requests[before:] if call.endswith("tfrecord") and "other" not in call
    ]
    assert len(shards) > 5
    assert sorted(call.split()[0] for call in shard_requests) == ["DELETE"] * len(shards)  # parts of a batch


def test_many_small_files_are_opened_ahead_and_read_in_their_order(
    gcs: Gcs, tmp_path: Path, documents: list[str]
):
    """With 50 ms per response, a run that reads 120 files one after the other would take 18 s."""
    for number in range(120):
        gcs.put(
            f"gs://data/small/{number:03d}.txt", "\n".join(documents[number * 8 : number * 8 + 8]).encode()
        )
    gcs.put("gs://data/small/050.txt", b"a line\n" * 800_000)  # a large one among them
    gcs.on_request = lambda method, path: time.sleep(0.05) if "small" in path else None
    sizes = {name: len(data) for name, data in gcs.objects_below("gs://data/small").items()}
    parts = tuple(Part(name, 0, size) for name, size in sorted(sizes.items()))
    unit = WorkUnit(0, "text", "gs://data/small/", parts, sum(sizes.values()))
    start_time = time.monotonic()
    texts = [text for batch in read_unit(unit, InputConfig()) for text in batch.texts]
    assert time.monotonic() - start_time < 9
    assert texts == documents[:400] + ["a line"] * 800_000 + documents[408:960]


def test_a_cut_upload_of_several_pieces_goes_on_where_it_was(gcs: Gcs):
    gcs.faults = Faults(cut_upload_every=2)
    data = os.urandom(20 << 20)
    filesystem.write_bytes("gs://data/large", data)
    assert gcs.failures
    assert gcs.objects_below("gs://data")["large"] == data
    gcs.faults = Faults(cut_download_every=2)
    assert filesystem.read_bytes("gs://data/large") == data


def test_what_cannot_be_reached_is_said_in_a_line(gcs: Gcs, capsys: pytest.CaptureFixture):
    def message_of(*argv: str) -> str:
        assert __main__.run("prepare", list(argv)) in (1, 2)
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith("prepare: "), line
        return line

    other_options = arguments(OUT)[2:]
    assert "gs://data/none/*.txt: no file matches" in message_of(
        "--input", "gs://data/none/*.txt", *other_options
    )
    assert "no bucket nowhere" in message_of("--input", "gs://nowhere/*.txt", *other_options)
    forbidden = Response.error(403, "somebody@example.com does not have storage.objects.create access")
    gcs.on_request = lambda method, path: (
        forbidden if method == "POST" and path.startswith("/upload/") else None
    )
    assert f"{OUT}/_staging/run.lock: 403 somebody@example.com" in message_of(*arguments(OUT))
    gcs.on_request = lambda method, path: forbidden if path.endswith("tfrecord") and method == "PUT" else None
    assert re.search(r"/train/train-\d+-\d+\.tfrecord: 403 somebody@example.com", message_of(*arguments(OUT)))
    gcs.on_request = None
    suffixes = (".tfrecord", "manifest.json", "run.lock")
    assert not [name for name in gcs.objects_below(OUT) if name.endswith(suffixes)]
