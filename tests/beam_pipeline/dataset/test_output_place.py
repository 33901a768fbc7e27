"""Runs do not write into a dataset, nor around one or around what they read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from beam_pipeline.__main__ import run
from beam_pipeline.dataset.output_place import check_place, refuse_overlap
from beam_pipeline.support.errors import UsageError
from tests.beam_pipeline.runs import content
from tests.google_cloud.gcs import Gcs


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset, tmp_path / "ds"))


@pytest.mark.parametrize("place", ["train", "train/parquet", "tokenizer", "tokenizer/x/y", "_staging", "new"])
def test_no_verb_writes_into_a_dataset(
    copy: Path, corpus: Path, tokenizer_folder: Path, place: str, capsys: pytest.CaptureFixture
):
    before = content(copy)
    output = ["--output", str(copy / place)]
    source = ["--input", str(corpus)]
    for verb, options in (
        ("convert", [str(copy), "--output_format", "parquet"]),
        ("prepare", [*source, "--tokenizer", str(tokenizer_folder), "--overwrite"]),
        ("train-tokenizer", [*source, "--vocab_size", "300", "--overwrite"]),
    ):
        assert run(verb, [*options, *output]) == 2
        assert "a run must not change what is there; choose another --output" in capsys.readouterr().err
    assert content(copy) == before


def test_the_cache_of_a_hugging_face_dataset_is_not_in_a_dataset_either(
    copy: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    source = ["--dataset_name", "any/thing", "--dataset_cache", str(copy / "train" / "cache")]
    output = ["--tokenizer", str(tokenizer_folder), "--output", str(tmp_path / "new")]
    assert run("prepare", [*source, *output]) == 2
    assert "--dataset_cache" in capsys.readouterr().err


def test_names_that_no_disk_takes_are_refused(tmp_path: Path):
    for name in ("x" * 256, "é" * 128, f"{'x' * 256}/y"):
        with pytest.raises(UsageError, match="has more than 255 bytes; choose a shorter one"):
            check_place(f"{tmp_path}/{name}")
    check_place(f"{tmp_path}/{'x' * 255}")


def test_links_and_dots_do_not_hide_a_dataset(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "link").symlink_to(copy / "train")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(copy / "train")
    for output in (tmp_path / "link/x", tmp_path / "other/../ds/x", tmp_path / "ds//x", "x", "../new"):
        with pytest.raises(UsageError, match="is inside of"):
            check_place(os.path.abspath(output))  # noqa: PTH100 (as the verbs do)
    check_place(str(copy))
    check_place(str(tmp_path / "other"))
    check_place(str(tmp_path / "ds-parquet"))


def test_no_run_writes_into_the_output_of_an_unfinished_one(copy: Path, tmp_path: Path):
    for split in ("train", "validation"):
        (copy / split / "manifest.json").unlink()
    check_place(str(copy / "new"))
    (copy / "_staging" / ("0" * 16)).mkdir(parents=True)
    with pytest.raises(UsageError, match="where another run writes or has failed"):
        check_place(str(copy / "new"))


def test_no_run_writes_into_a_dataset_in_a_bucket(gcs: Gcs, dataset: Path):
    for name, data in content(dataset).items():
        gcs.put(f"gs://data/a/ds/{name}", data)
    for output in ("train", "train/x", "tokenizer/x", "new"):
        with pytest.raises(UsageError, match="is inside of"):
            check_place(f"gs://data/a/ds/{output}")
    for output in ("a/ds", "a/ds-2", "a", "b/c"):
        check_place(f"gs://data/{output}")


def test_a_split_is_not_written_around_another_dataset(copy: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="which contains another dataset; choose"):
        refuse_overlap(str(tmp_path), ["ds"], [])
    refuse_overlap(str(tmp_path), ["train"], [])
    refuse_overlap(str(copy), ["train"], [])


@pytest.mark.parametrize("verb", ["prepare", "train-tokenizer", "convert", "report", "analyze"])
def test_a_link_to_nothing_and_a_file_as_the_output_are_named(
    verb: str,
    dataset: Path,
    corpus: Path,
    tokenizer_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    options = {
        "prepare": ["--input", str(corpus), "--tokenizer", str(tokenizer_folder), "--output"],
        "train-tokenizer": ["--input", str(corpus), "--vocab_size", "300", "--output"],
        "convert": [str(dataset), "--output_format", "parquet", "--output"],
    }.get(verb, [])
    for place, message in (
        ("link", "which does not exist; create that folder, or remove the link"),
        ("file/x", "file is not a folder; choose another --output"),
    ):
        assert run(verb, [*options, str(tmp_path / place)]) == (2 if options else 1)
        assert (message if options else "no such folder, or it is empty") in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_place_where_no_folder_can_be_is_named(corpus: Path, capsys: pytest.CaptureFixture):
    assert run("train-tokenizer", ["--input", str(corpus), "--vocab_size", "300", "--output", "/proc/x"]) == 2
    assert "/proc/x.partial/run.lock: cannot be created: [Errno 2]" in capsys.readouterr().err


def test_urls_without_a_file_system_are_named_and_a_local_path_may_look_like_one(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(dataset, tmp_path / "a:" / "ds")
    for url, message in (
        (
            "a://ds",
            "a://ds: there is no file system for a://; if this is a path on this machine, write ./a://ds",
        ),
        (f"file://{dataset}", f"write the path alone, {dataset}"),
        ("gs://", "gs://: names no bucket; write gs://BUCKET/FOLDER"),
    ):
        for verb, options in (
            ("inspect", [url]),
            ("verify", [url]),
            ("convert", [url, "--output_format", "parquet", "--output", "new"]),
            ("convert", [str(dataset), "--output_format", "parquet", "--output", url]),
            ("train-tokenizer", ["--input", url, "--output", "new"]),
        ):
            assert run(verb, options) == 2
            assert message in capsys.readouterr().err
    assert run("inspect", ["./a://ds"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a:"]
