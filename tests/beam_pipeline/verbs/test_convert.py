"""`convert`: a finished dataset in another format is what `prepare` would have written in that format."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import convert, inspection, prepare
from tests.beam_pipeline.runs import (
    arguments,
    content,
    defects,
    fail_before_the_manifests,
    without_manifests,
)

SPLITS = ["--splits", "train=0.8,validation=0.2"]
OPTIONS = ["--unit_bytes", "20000", "--max_length", "32", "--shard_size", "300", "--segment_ids"]


def convert_to(source: Path, output: Path, output_format: str = "parquet", *options: str) -> Path:
    convert.main([str(source), "--output_format", output_format, "--output", str(output), *options])
    return output


def manifest(folder: Path, split: str = "train") -> dict:
    return json.loads((folder / split / "manifest.json").read_text())


@pytest.fixture(scope="module")
def converted(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture `dataset` as parquet. Tests must not change it."""
    return convert_to(dataset, tmp_path_factory.mktemp("converted") / "out")


def test_it_has_the_files_that_prepare_writes(
    converted: Path, dataset: Path, corpus: Path, tokenizer_folder: Path, tmp_path: Path
):
    run = arguments(corpus, tokenizer_folder, tmp_path / "out", *SPLITS, *OPTIONS)
    prepare.main([*run, "--output_format", "parquet"])
    assert without_manifests(converted) == without_manifests(tmp_path / "out")
    actual, expected = manifest(converted), manifest(tmp_path / "out")
    assert actual.pop("converted_from") == {
        "path": str(dataset),
        "output_format": "tfrecord",
        "fingerprint": manifest(dataset)["fingerprint"],
    }
    assert actual.pop("checksum") != expected.pop("checksum")
    assert actual == expected
    assert defects(converted) == []


@pytest.mark.parametrize(
    ("output_format", "options"),
    [
        pytest.param("arrayrecord", ["--position_ids"], marks=pytest.mark.wide),
        pytest.param("parquet", ["--position_ids"], marks=pytest.mark.wide),
        ("mds", ["--segment_ids", "--position_ids"]),
        pytest.param("mds", ["--packing", "pad"], marks=pytest.mark.wide),
        ("parquet", ["--packing", "best_fit", "--segment_ids"]),
    ],
)
def test_there_and_back_gives_the_same_bytes(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, output_format: str, options: list[str]
):
    options = ["--max_length", "32", "--num_shards", "3", *options]
    prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "one", *options))
    convert_to(tmp_path / "one", tmp_path / "two", output_format)
    convert_to(tmp_path / "two", tmp_path / "three", "tfrecord")
    assert without_manifests(tmp_path / "three") == without_manifests(tmp_path / "one")
    assert manifest(tmp_path / "three")["fingerprint"] == manifest(tmp_path / "one")["fingerprint"]
    assert defects(tmp_path / "two") == defects(tmp_path / "three") == []


def test_a_record_is_traced_to_its_source(converted: Path, capsys):
    inspection.main([str(converted), "--record", "train:1:7"])
    assert "corpus.txt, line" in capsys.readouterr().out


def test_a_run_that_ended_early_is_resumed(dataset: Path, converted: Path, tmp_path: Path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipeline.steps.convert.publish", fail_before_the_manifests)
        with pytest.raises(Exception, match="stopped before the manifests"):
            convert_to(dataset, tmp_path / "out")
    shards = sorted((tmp_path / "out" / "train").glob("train-*"))
    inodes = {path.name: path.stat().st_ino for path in shards}
    shards[0].write_bytes(bytes(shards[0].stat().st_size))
    shards[1].unlink()
    with pytest.raises(UsageError, match="contains another run's dataset"):
        convert_to(converted, tmp_path / "out", "tfrecord")
    convert_to(dataset, tmp_path / "out", "parquet", "--resume")
    assert content(tmp_path / "out") == content(converted)
    kept = [name for name in inodes if (tmp_path / "out" / "train" / name).stat().st_ino == inodes[name]]
    assert set(inodes) - set(kept) <= {shards[0].name, shards[1].name}
    convert_to(dataset, tmp_path / "out", "parquet", "--resume")  # nothing to do
    with pytest.raises(UsageError, match="contains the same dataset, finished"):
        convert_to(dataset, tmp_path / "out")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.wide)])
def test_killed_at_changes_of_the_file_system(
    tmp_path: Path, documents: list[str], tokenizer_folder: Path, step: int
):
    small_corpus = tmp_path / "small.txt"
    small_corpus.write_text("\n".join(documents[:60]), encoding="utf-8")
    run = arguments(small_corpus, tokenizer_folder, tmp_path / "source", *SPLITS, "--max_length", "32")
    prepare.main([*run, "--num_shards", "2"])
    command = [sys.executable, "-m", "tests.beam_pipeline.kill_runs", str(tmp_path), str(step), "convert"]
    command += [str(tmp_path / "source"), "--output_format", "arrayrecord", "--output", "{OUT}"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert report["wrong"] == []
    assert report["kills"] > 15 / step


@pytest.mark.parametrize(
    ("other_verb", "options"),
    [
        pytest.param("convert", [], marks=pytest.mark.wide),
        pytest.param("convert", ["--overwrite"], marks=pytest.mark.wide),
        pytest.param("prepare", [], marks=pytest.mark.wide),
        ("prepare", ["--overwrite"]),
    ],
)
def test_of_two_runs_that_start_together_one_makes_the_dataset(
    dataset: Path,
    corpus: Path,
    tokenizer_folder: Path,
    tmp_path: Path,
    other_verb: str,
    options: list[str],
):
    out = tmp_path / "out"
    first = [str(dataset), "--output_format", "parquet", "--output", str(out)]
    second = [str(dataset), "--output_format", "mds", "--output", str(out)]
    if other_verb == "prepare":
        second = [*arguments(corpus, tokenizer_folder, out, *SPLITS, *OPTIONS), "--seed", "1"]
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "beam_pipeline", verb, *argv, *options], stderr=subprocess.PIPE, text=True
        )
        for verb, argv in (("convert", first), (other_verb, second))
    ]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    statuses = [run.returncode for run in runs]
    assert statuses.count(0) == 1 or (statuses == [0, 0] and options), errors
    for status, error in zip(statuses, errors, strict=True):
        if status:
            assert status == 2, error
            assert "another run writes there" in error or "contains" in error
            assert "Traceback" not in error
    assert defects(out) == []
    assert content(dataset).keys() >= {"train/manifest.json"}


@pytest.mark.parametrize("kind", ["the name of a shard", "another name", "a manifest"])
def test_a_users_file_in_the_output_is_never_replaced(
    dataset: Path, converted: Path, tmp_path: Path, kind: str
):
    name = {
        "the name of a shard": f"train/{manifest(converted)['shards'][1]['name']}",
        "another name": "train/notes.txt",
        "a manifest": "validation/manifest.json",
    }[kind]
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_bytes(b"precious")
    for options in ([], ["--overwrite"], ["--resume"]):
        try:
            convert_to(dataset, tmp_path / "out", "parquet", *options)
        except (UsageError, DataError) as error:
            assert name.rpartition("/")[2] in str(error)
            assert content(tmp_path / "out") == {name: b"precious"}
        else:
            assert kind == "another name" and defects(tmp_path / "out") == []
        assert (tmp_path / "out" / name).read_bytes() == b"precious"


def test_a_dataset_that_is_not_finished_is_not_converted(dataset: Path, tmp_path: Path):
    source = Path(shutil.copytree(dataset, tmp_path / "source"))
    (source / "validation" / "manifest.json").unlink()
    with pytest.raises((DataError, UsageError), match="validation"):
        convert_to(source, tmp_path / "out")
    (source / "train" / "manifest.json").unlink()
    with pytest.raises((DataError, UsageError), match="source"):
        convert_to(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prepare_with_the_same_options_finds_it_finished(
    converted: Path, corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys
):
    copy = Path(shutil.copytree(converted, tmp_path / "out"))
    run = arguments(
        corpus, tokenizer_folder, copy, *SPLITS, *OPTIONS, "--output_format", "parquet", "--resume"
    )
    before = content(copy)
    prepare.main(run)
    assert "already contains this dataset" in capsys.readouterr().out
    assert content(copy) == before


@pytest.mark.parametrize("damage", ["shard", "missing shard", "statistics", "tokenizer", "manifest"])
def test_a_damaged_dataset_is_not_converted(dataset: Path, tmp_path: Path, damage: str):
    source = Path(shutil.copytree(dataset, tmp_path / "source"))
    path = {
        "shard": source / "train" / manifest(source)["shards"][2]["name"],
        "missing shard": source / "train" / manifest(source)["shards"][2]["name"],
        "statistics": source / "train" / "statistics.json",
        "tokenizer": source / "tokenizer" / "tokenizer_config.json",
        "manifest": source / "train" / "manifest.json",
    }[damage]
    data = path.read_bytes()
    path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    if damage == "missing shard":
        path.unlink()
    with pytest.raises(DataError, match=path.name):
        convert_to(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/manifest.json"))


@pytest.mark.parametrize("kind", ["the same folder", "inside", "above", "one split", "same format"])
def test_wrong_folders_are_refused_before_anything_is_written(dataset: Path, tmp_path: Path, kind: str):
    source = Path(shutil.copytree(dataset, tmp_path / "source"))
    before = content(source)
    output = {"the same folder": source, "inside": source / "train", "above": tmp_path}.get(
        kind, tmp_path / "out"
    )
    arguments = (source / "train" if kind == "one split" else source, output)
    with pytest.raises(UsageError):
        convert_to(*arguments, "tfrecord" if kind == "same format" else "parquet", "--overwrite")
    assert content(source) == before
    assert not (tmp_path / "out").exists()
