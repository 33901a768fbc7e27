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
def output_by_format(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_folder: Path
) -> dict[str, Path]:
    """The same documents in both formats. Tests must not change them."""
    output_by_format = {}
    for name in ("parquet", "megatron"):
        output_by_format[name] = tmp_path_factory.mktemp(name) / "out"
        prepare.main(
            arguments(
                corpus, tokenizer_folder, output_by_format[name], *OPTIONS, *UNITS, "--output_format", name
            )
        )
    return output_by_format


@pytest.fixture
def copy(output_by_format: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(output_by_format["parquet"], tmp_path / "copy"))


def documents(folder: Path, split: str) -> list[list[int]]:
    [split_reader] = [candidate for candidate in open_dataset(str(folder)) if candidate.name == split]
    return [row.ids.tolist() for shard in range(3) for row in split_reader.rows(shard)]


def test_a_row_is_a_document(output_by_format: dict[str, Path], tmp_path: Path):
    files = {
        split: str(output_by_format["parquet"] / split / "*.parquet") for split in ("train", "validation")
    }
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    for split in files:
        rows = loaded[split]["input_ids"][:]
        assert (
            rows
            == documents(output_by_format["megatron"], split)
            == documents(output_by_format["parquet"], split)
        )
        assert len({*map(len, rows)}) > 5


def test_it_does_not_depend_on_units_or_workers(
    output_by_format: dict[str, Path], corpus: Path, tokenizer_folder: Path, tmp_path: Path
):
    run = arguments(corpus, tokenizer_folder, tmp_path / "out", *OPTIONS, "--output_format", "parquet")
    prepare.main([*run, "--unit_bytes", "7000", "--direct_num_workers", "2"])
    actual, expected = content(tmp_path / "out"), content(output_by_format["parquet"])
    shards = [name for name in expected if name.endswith(".parquet")]
    assert len(shards) == 6
    assert [actual[name] for name in shards] == [expected[name] for name in shards]


@pytest.mark.parametrize(("name", "other_format"), [("parquet", "megatron"), ("megatron", "parquet")])
def test_converted_it_is_what_prepare_writes_and_back_the_same_bytes(
    output_by_format: dict[str, Path], tmp_path: Path, capsys, name: str, other_format: str
):
    convert.main(
        [str(output_by_format[name]), "--output_format", other_format, "--output", str(tmp_path / "two")]
    )
    assert " documents, 3 shards of " in capsys.readouterr().out
    convert.main([str(tmp_path / "two"), "--output_format", name, "--output", str(tmp_path / "three")])
    assert without_manifests(tmp_path / "two") == without_manifests(output_by_format[other_format])
    assert without_manifests(tmp_path / "three") == without_manifests(output_by_format[name])
    assert defects(tmp_path / "two") == defects(tmp_path / "three") == []
    manifests = [
        json.loads((folder / "train" / "manifest.json").read_text()) for folder in output_by_format.values()
    ]
    converted = json.loads((tmp_path / "two" / "train" / "manifest.json").read_text())
    assert converted["fingerprint"] in {manifest["fingerprint"] for manifest in manifests}


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_damaged_pair_is_not_converted(output_by_format: dict[str, Path], tmp_path: Path, suffix: str):
    source = Path(shutil.copytree(output_by_format["megatron"], tmp_path / "source"))
    [path, *_] = sorted(source.glob(f"validation/*{suffix}"))
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(DataError, match=rf"{path.name}: its size or CRC-32C differs"):
        convert.main([str(source), "--output_format", "parquet", "--output", str(tmp_path / "out")])
    assert not list((tmp_path / "out").glob("*/manifest.json"))


def test_verify_finds_each_damage(copy: Path):
    assert defects(copy) == []
    [shard, other_shard, _] = sorted(copy.glob("train/*.parquet"))
    data = shard.read_bytes()
    for place in (0, 5, len(data) // 2, len(data) - 20, len(data) - 1):
        shard.write_bytes(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])
        assert any(shard.name in defect for defect in defects(copy)), place
    shard.write_bytes(bytes(len(data)))
    assert any(f"{shard.name}: CRC-32C" in defect for defect in defects(copy))
    shard.write_bytes(other_shard.read_bytes())
    assert any(f"{shard.name}: {other_shard.stat().st_size} bytes" in defect for defect in defects(copy))
    shard.unlink()
    assert any(f"{shard.name}: missing" in defect for defect in defects(copy))


def test_a_resumed_run_keeps_its_shards(
    output_by_format: dict[str, Path], corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch
):
    out = tmp_path / "out"
    run = arguments(corpus, tokenizer_folder, out, *OPTIONS, *UNITS, "--output_format", "parquet")
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        with pytest.raises(Exception, match="stopped before the manifests"):
            prepare.main(run)
    inodes = {path: path.stat().st_ino for path in out.glob("*/*.parquet")}
    [damaged_shard, lost_shard, *_] = sorted(inodes)
    damaged_shard.write_bytes(bytes(damaged_shard.stat().st_size))
    lost_shard.unlink()
    prepare.main([*run, "--resume"])
    assert content(out) == content(output_by_format["parquet"])
    assert {path for path in inodes if path.stat().st_ino != inodes[path]} <= {damaged_shard, lost_shard}


def test_inspect_and_the_estimate(
    output_by_format: dict[str, Path], corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys
):
    inspection.main([str(output_by_format["parquet"])])
    assert "whole documents, in the order of the input" in capsys.readouterr().out
    inspection.main([str(output_by_format["parquet"]), "--record", "validation:2:7"])
    assert "corpus.txt, line" in capsys.readouterr().out
    run = arguments(
        corpus, tokenizer_folder, tmp_path / "out", "--packing", "none", "--output_format", "parquet"
    )
    prepare.main([*run, "--estimate"])
    assert "1,000 documents, 1 shard, " in capsys.readouterr().out


def test_rows_and_documents_are_not_converted_into_each_other(
    output_by_format: dict[str, Path], dataset: Path, tmp_path: Path
):
    for source, output_format in (
        (dataset, "megatron"),
        (output_by_format["megatron"], "tfrecord"),
        (output_by_format["parquet"], "mds"),
    ):
        with pytest.raises(UsageError, match="a dataset of rows cannot become one of documents"):
            convert.main([str(source), "--output_format", output_format, "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
