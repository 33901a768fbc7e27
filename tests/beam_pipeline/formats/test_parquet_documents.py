"""`--packing none --output_format parquet`: a document per row, and to and from Megatron-LM's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import datasets
import pytest

from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import convert, inspection, prepare
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.runs import (
    arguments,
    content,
    defects,
    fail_before_the_manifests,
    without_manifests,
)

OPTIONS = ["--packing", "none", "--append_eos", "--splits", "train=0.8,validation=0.2", "--num_shards", "3"]
UNITS = ["--unit_bytes", "20000"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_folder: Path) -> dict[str, Path]:
    """The same documents in both formats. Tests must not change them."""
    found = {}
    for name in ("parquet", "megatron"):
        found[name] = tmp_path_factory.mktemp(name) / "out"
        prepare.main(
            arguments(corpus, tokenizer_folder, found[name], *OPTIONS, *UNITS, "--output_format", name)
        )
    return found


@pytest.fixture
def copy(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["parquet"], tmp_path / "copy"))


def documents(folder: Path, split: str) -> list[list[int]]:
    [found] = [one for one in open_dataset(str(folder)) if one.name == split]
    return [row.ids.tolist() for shard in range(3) for row in found.rows(shard)]


def test_a_row_is_a_document(made: dict[str, Path], tmp_path: Path):
    files = {split: str(made["parquet"] / split / "*.parquet") for split in ("train", "validation")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    for split in files:
        found = loaded[split]["input_ids"][:]
        assert found == documents(made["megatron"], split) == documents(made["parquet"], split)
        assert len({*map(len, found)}) > 5


def test_it_does_not_depend_on_units_or_workers(
    made: dict[str, Path], corpus: Path, tokenizer_folder: Path, tmp_path: Path
):
    run = arguments(corpus, tokenizer_folder, tmp_path / "out", *OPTIONS, "--output_format", "parquet")
    prepare.main([*run, "--unit_bytes", "7000", "--direct_num_workers", "2"])
    found, expected = content(tmp_path / "out"), content(made["parquet"])
    shards = [name for name in expected if name.endswith(".parquet")]
    assert len(shards) == 6
    assert [found[name] for name in shards] == [expected[name] for name in shards]


@pytest.mark.parametrize(("name", "other"), [("parquet", "megatron"), ("megatron", "parquet")])
def test_converted_it_is_what_prepare_writes_and_back_the_same_bytes(
    made: dict[str, Path], tmp_path: Path, capsys, name: str, other: str
):
    convert.main([str(made[name]), "--output_format", other, "--output", str(tmp_path / "two")])
    assert " documents, 3 shards of " in capsys.readouterr().out
    convert.main([str(tmp_path / "two"), "--output_format", name, "--output", str(tmp_path / "three")])
    assert without_manifests(tmp_path / "two") == without_manifests(made[other])
    assert without_manifests(tmp_path / "three") == without_manifests(made[name])
    assert defects(tmp_path / "two") == defects(tmp_path / "three") == []
    manifests = [json.loads((folder / "train" / "manifest.json").read_text()) for folder in made.values()]
    converted = json.loads((tmp_path / "two" / "train" / "manifest.json").read_text())
    assert converted["fingerprint"] in {one["fingerprint"] for one in manifests}


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_damaged_pair_is_not_converted(made: dict[str, Path], tmp_path: Path, suffix: str):
    source = Path(shutil.copytree(made["megatron"], tmp_path / "source"))
    [path, *_] = sorted(source.glob(f"validation/*{suffix}"))
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(DataError, match=rf"{path.name}: its size or CRC-32C differs"):
        convert.main([str(source), "--output_format", "parquet", "--output", str(tmp_path / "out")])
    assert not list((tmp_path / "out").glob("*/manifest.json"))


def test_verify_finds_each_damage(copy: Path):
    assert defects(copy) == []
    [shard, other, _] = sorted(copy.glob("train/*.parquet"))
    data = shard.read_bytes()
    for place in (0, 5, len(data) // 2, len(data) - 20, len(data) - 1):
        shard.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
        assert any(shard.name in defect for defect in defects(copy)), place
    shard.write_bytes(bytes(len(data)))
    assert any(f"{shard.name}: CRC-32C" in defect for defect in defects(copy))
    shard.write_bytes(other.read_bytes())
    assert any(f"{shard.name}: {other.stat().st_size} bytes" in defect for defect in defects(copy))
    shard.unlink()
    assert any(f"{shard.name}: missing" in defect for defect in defects(copy))


def test_a_resumed_run_keeps_its_shards(
    made: dict[str, Path], corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch
):
    out = tmp_path / "out"
    run = arguments(corpus, tokenizer_folder, out, *OPTIONS, *UNITS, "--output_format", "parquet")
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        with pytest.raises(Exception, match="stopped before the manifests"):
            prepare.main(run)
    written = {path: path.stat().st_ino for path in out.glob("*/*.parquet")}
    [damaged, lost, *_] = sorted(written)
    damaged.write_bytes(bytes(damaged.stat().st_size))
    lost.unlink()
    prepare.main([*run, "--resume"])
    assert content(out) == content(made["parquet"])
    assert {path for path in written if path.stat().st_ino != written[path]} <= {damaged, lost}


def test_inspect_and_the_estimate(
    made: dict[str, Path], corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys
):
    inspection.main([str(made["parquet"])])
    assert "whole documents, in the order of the input" in capsys.readouterr().out
    inspection.main([str(made["parquet"]), "--record", "validation:2:7"])
    assert "corpus.txt, line" in capsys.readouterr().out
    run = arguments(
        corpus, tokenizer_folder, tmp_path / "out", "--packing", "none", "--output_format", "parquet"
    )
    prepare.main([*run, "--estimate"])
    assert "1,000 documents, 1 shard, " in capsys.readouterr().out


def test_rows_and_documents_are_not_converted_into_each_other(
    made: dict[str, Path], dataset: Path, tmp_path: Path
):
    for source, output_format in (
        (dataset, "megatron"),
        (made["megatron"], "tfrecord"),
        (made["parquet"], "mds"),
    ):
        with pytest.raises(UsageError, match="a dataset of rows cannot become one of documents"):
            convert.main([str(source), "--output_format", output_format, "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
