"""`verify` names each defect that a dataset can have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from beam_pipeline import prepare, verify
from beam_pipeline.dataset.manifest import MANIFEST, with_checksum
from beam_pipeline.errors import DataError
from beam_pipeline.verify import check_dataset


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus: Path, tokenizer_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    splits = ["--splits", "train=0.8,validation=0.2", "--max_length", "32", "--shard_size", "300"]
    prepare.main(
        ["--input", str(corpus), "--tokenizer", str(tokenizer_folder), "--output", str(out), *splits]
    )
    return out


@pytest.fixture
def dataset(finished: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "dataset"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit(path: Path, change) -> None:
    """Changes a JSON file; of a manifest, the checksum, too, so that only what is recomputed can tell."""
    data = json.loads(path.read_bytes())
    change(data)
    if path.name == MANIFEST:
        data.pop("checksum")
        path.write_bytes(with_checksum(data))
    else:
        path.write_text(json.dumps(data))


def shard(dataset: Path) -> Path:
    return sorted((dataset / "train").glob("*.tfrecord"))[1]


DAMAGE = {
    "a shard deleted": (lambda d: shard(d).unlink(), "train-00001-300.tfrecord: missing"),
    "a byte flipped": (lambda d: flip(shard(d), 500), "CRC-32C"),
    "a record's data flipped": (lambda d: flip(shard(d), 500), "the checksum of the record's data is wrong"),
    "a shard truncated": (
        lambda d: shard(d).write_bytes(shard(d).read_bytes()[:-5]),
        "the file ends within the record",
    ),
    "a shard replaced": (
        lambda d: shard(d).write_bytes((d / "train" / "train-00000-300.tfrecord").read_bytes()),
        "the rows' checksum is",
    ),
    "a shard too many": (
        lambda d: shutil.copy(shard(d), d / "train" / "train-00077-300.tfrecord"),
        "train-00077-300.tfrecord: a shard that the manifest does not name",
    ),
    "no manifest": (
        lambda d: (d / "validation" / "manifest.json").unlink(),
        "validation: no manifest.json, so this is no finished dataset",
    ),
    "a split gone": (lambda d: shutil.rmtree(d / "validation"), "validation: no manifest.json"),
    "a broken manifest": (
        lambda d: (d / "train" / "manifest.json").write_text("{"),
        "manifest.json: broken JSON",
    ),
    "a later version": (
        lambda d: edit(d / "train" / "manifest.json", lambda m: m.update(version=3)),
        "version 3 of the format; this program reads versions 1 and 2",
    ),
    "another tokenizer": (lambda d: flip(d / "tokenizer" / "tokenizer.json", 9), "its SHA-256 is another"),
    "no tokenizer": (lambda d: shutil.rmtree(d / "tokenizer"), "tokenizer.json: missing"),
    "other statistics": (
        lambda d: edit(d / "train" / "statistics.json", lambda s: s["token_counts"].reverse()),
        "its token counts are not those of the shards",
    ),
    "no statistics": (lambda d: (d / "train" / "statistics.json").unlink(), "statistics.json: missing"),
    "no schema": (
        lambda d: (d / "train" / "transformed_metadata" / "schema.pbtxt").unlink(),
        "schema.pbtxt: missing",
    ),
    "a wrong number of tokens": (
        lambda d: edit(d / "train" / "manifest.json", lambda m: m["totals"].update(tokens=7)),
        "tokens in the shards, 7 in the manifest",
    ),
    "a vocabulary too small": (
        lambda d: edit(d / "train" / "manifest.json", lambda m: m["tokenizer"].update(vocab_size=50)),
        "outside of the vocabulary",
    ),
    "another length": (
        lambda d: edit(d / "train" / "manifest.json", lambda m: m.update(max_length=31)),
        "has 32 values, not 31",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_defect_is_named(dataset: Path, damage: str, capsys):
    apply, message = DAMAGE[damage]
    apply(dataset)
    with pytest.raises(DataError, match="defects"):
        verify.main([str(dataset)])
    named = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DEFECT ")]
    assert any(message in line for line in named), named
    assert all(str(dataset) in line for line in named)


def test_a_whole_dataset_and_each_of_its_splits_are_fine(finished: Path, capsys):
    verify.main([str(finished)])
    verify.main([str(finished / "validation")])
    assert capsys.readouterr().out.count(": whole") == 3


def test_what_is_no_dataset_is_said(tmp_path: Path):
    (_, defects), *_ = check_dataset(str(tmp_path))
    assert "no finished dataset" in defects[0]


def test_all_cores_find_what_one_finds(dataset: Path, monkeypatch: pytest.MonkeyPatch):
    flip(shard(dataset), 500)
    one = list(verify.check_split(str(dataset / "train")))
    assert len(one) == 2
    monkeypatch.setattr(verify, "_BYTES_FOR_ALL_CORES", 0)
    monkeypatch.setattr(verify, "_SHARDS_AT_A_TIME", 1)
    assert list(verify.check_split(str(dataset / "train"))) == one
