"""`prepare --output_format`: the same rows in other files, with the same guarantees."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource

from beam_pipeline.dataset.records import read_frames
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import convert, inspection, prepare
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.runs import arguments, content, defects, fail_before_the_manifests

SPLITS = ["--splits", "train=0.8,validation=0.2"]
OPTIONS = ["--unit_bytes", "20000", "--max_length", "32", "--shard_size", "300", "--segment_ids"]
FORMATS = ("arrayrecord", "parquet", "mds")


@pytest.fixture(scope="module", params=FORMATS)
def finished_output(
    request, tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_folder: Path
) -> Path:
    """The dataset of the fixture `dataset` in another format. Tests must not change it."""
    folder = tmp_path_factory.mktemp(request.param) / "out"
    options = [*SPLITS, *OPTIONS, "--output_format", request.param]
    prepare.main(arguments(corpus, tokenizer_folder, folder, *options))
    return folder


@pytest.fixture
def copy(finished_output: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_output, tmp_path / "out"))


def manifest(folder: Path, split: str = "train") -> dict:
    return json.loads((folder / split / "manifest.json").read_text())


def shards(folder: Path, split: str = "train") -> list[Path]:
    return [folder / split / shard["name"] for shard in manifest(folder, split)["shards"]]


def rows(folder: Path) -> list[list]:
    rows_of_split = []
    for split in open_dataset(str(folder)):
        for shard in range(len(split.manifest["shards"])):
            rows_of_split += [
                [row.ids.tolist(), row.padding, row.starts.tolist()] for row in split.rows(shard)
            ]
    return rows_of_split


def test_the_rows_and_their_order_are_those_of_tfrecords(finished_output: Path, dataset: Path):
    assert rows(finished_output) == rows(dataset)
    expected, actual = manifest(dataset), manifest(finished_output)
    assert actual["output_format"] == actual["config"]["output_format"] == finished_output.parent.name[:-1]
    different = {key for key in actual if actual[key] != expected.get(key)} - {"files"}  # mds has index.json
    assert different == {"checksum", "config", "fingerprint", "output_format", "shards"}
    for shard, original in zip(actual["shards"], expected["shards"], strict=True):
        assert shard["rows_checksum"] == original["rows_checksum"] and shard["records"] == original["records"]


def test_a_manifest_of_tfrecords_does_not_name_the_format(dataset: Path):
    tfrecord_manifest = manifest(dataset)
    assert "output_format" not in tfrecord_manifest and "output_format" not in tfrecord_manifest["config"]


def test_mds_with_another_name_of_the_column_of_ids(
    dataset: Path, corpus: Path, tokenizer_folder: Path, tmp_path: Path
):
    format_options = ["--output_format", "mds", "--ids_column", "tokens"]
    prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "one", *SPLITS, *OPTIONS, *format_options))
    assert rows(tmp_path / "one") == rows(dataset) and defects(tmp_path / "one") == []
    index = json.loads((tmp_path / "one" / "train" / "index.json").read_text())
    assert index["shards"][0]["column_names"] == [
        "attention_mask",
        "segment_ids",
        "tokens",
    ]  # MDSWriter sorts
    convert.main([str(dataset), *format_options, "--output", str(tmp_path / "two")])
    assert manifest(tmp_path / "one")["shards"] == manifest(tmp_path / "two")["shards"]
    assert manifest(tmp_path / "one")["fingerprint"] == manifest(tmp_path / "two")["fingerprint"]
    convert.main([str(tmp_path / "one"), "--output_format", "mds", "--output", str(tmp_path / "three")])
    convert.main([str(tmp_path / "one"), "--output_format", "tfrecord", "--output", str(tmp_path / "four")])
    assert rows(tmp_path / "three") == rows(dataset) and defects(tmp_path / "three") == []
    assert "ids_column" not in manifest(tmp_path / "three")["config"]
    assert manifest(tmp_path / "four")["fingerprint"] == manifest(dataset)["fingerprint"]


@pytest.mark.parametrize("name", ["attention_mask", "", "a b", "1", "tokens\n"])
def test_names_that_the_column_of_ids_cannot_have(name: str, corpus: Path, tokenizer_folder: Path, tmp_path):
    format_options = ["--output_format", "mds", "--ids_column", name]
    with pytest.raises(UsageError, match="is not a valid name"):
        prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "out", *format_options))
    with pytest.raises(UsageError, match="parquet, which always has input_ids"):
        format_options = ["--output_format", "parquet", "--ids_column", "tokens"]
        prepare.main(arguments(corpus, tokenizer_folder, tmp_path / "out", *format_options))


def test_verify_finds_it_whole_and_each_changed_byte(copy: Path):
    assert defects(copy) == []
    shard = shards(copy)[1]
    data = shard.read_bytes()
    for place in np.linspace(0, len(data) - 1, 9).astype(int).tolist():
        shard.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
        assert any(shard.name in defect for defect in defects(copy)), place
    shard.write_bytes(data[:-1])
    assert any("bytes, the manifest specifies" in defect for defect in defects(copy))
    shard.unlink()
    assert any(f"{shard.name}: missing" in defect for defect in defects(copy))


def test_verify_compares_the_rows_even_if_the_checksums_are_consistent(copy: Path):
    shard, other_shard = shards(copy)[:2]
    data = shard.read_bytes()
    shard.write_bytes(other_shard.read_bytes())
    other_shard.write_bytes(data)
    assert defects(copy)


def test_the_same_options_give_the_same_bytes_and_resume_keeps_them(
    finished_output: Path, tmp_path: Path, corpus: Path, tokenizer_folder: Path, monkeypatch, capsys
):
    options = [*SPLITS, *OPTIONS, "--output_format", manifest(finished_output)["output_format"]]
    run = arguments(corpus, tokenizer_folder, tmp_path / "out", *options)
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        with pytest.raises(Exception, match="stopped before the manifests"):
            prepare.main(run)
    shard_paths = sorted((tmp_path / "out" / "train").glob("train-*"))
    assert len(shard_paths) == len(shards(finished_output))
    shard_paths[0].write_bytes(bytes(shard_paths[0].stat().st_size))
    # Not only inodes, which a file system may use again.
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in shard_paths}
    prepare.main([*run, "--resume"])
    assert content(tmp_path / "out") == content(finished_output)
    after = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in shard_paths}
    assert [path for path in shard_paths if after[path] != before[path]] == shard_paths[:1]


def test_another_format_is_another_dataset(copy: Path, corpus: Path, tokenizer_folder: Path):
    before = content(copy)
    run = arguments(corpus, tokenizer_folder, copy, *SPLITS, *OPTIONS)
    for options in ([], ["--resume"]):
        with pytest.raises(UsageError, match="contains another run's dataset"):
            prepare.main([*run, *options])
    assert content(copy) == before
    prepare.main([*run, "--overwrite"])
    assert {path.suffix for path in (copy / "train").glob("train-*")} == {".tfrecord"}
    assert defects(copy) == []


def test_inspect_shows_a_record_and_its_source(finished_output: Path, capsys):
    inspection.main([str(finished_output), "--record", "train:1:7"])
    printed_text = capsys.readouterr().out
    assert "corpus.txt, line" in printed_text


def test_a_missing_package_is_named_before_anything_is_written(
    tmp_path: Path, corpus: Path, tokenizer_folder: Path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "array_record", None)
    run = arguments(corpus, tokenizer_folder, tmp_path / "out", "--output_format", "arrayrecord")
    with pytest.raises(UsageError, match=r"arrayrecord: needs array_record; .*'tokenmill\[arrayrecord\]'"):
        prepare.main(run)
    assert not (tmp_path / "out").exists()


def test_array_record_reads_the_records_of_the_tfrecords_at_random(finished_output: Path, dataset: Path):
    if manifest(finished_output)["output_format"] != "arrayrecord":
        pytest.skip("only for arrayrecord")
    records = []
    for path in shards(dataset):
        with path.open("rb") as file:
            records += read_frames(file, str(path))
    with ArrayRecordDataSource([*map(str, shards(finished_output))]) as source:
        assert len(source) == len(records)
        order = np.random.default_rng(0).permutation(len(records)).tolist()
        assert [source[number] for number in order] == [records[number] for number in order]


def test_datasets_loads_parquet(finished_output: Path, tmp_path: Path, monkeypatch):
    if manifest(finished_output)["output_format"] != "parquet":
        pytest.skip("only for parquet")
    files = {
        split: [str(path) for path in shards(finished_output, split)] for split in ("train", "validation")
    }
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    table = loaded["train"].with_format("numpy")[:]
    ids = [ids for ids, _, _ in rows(finished_output)]
    lengths = table["attention_mask"].sum(axis=1)
    assert table["input_ids"].dtype == np.int64 or table["input_ids"].dtype == np.uint16
    assert [row[:length].tolist() for row, length in zip(table["input_ids"], lengths, strict=True)] == ids[
        : len(lengths)
    ]
    assert len(loaded["validation"]) == manifest(finished_output, "validation")["num_records"]
