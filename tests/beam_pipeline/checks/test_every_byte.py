"""No byte of a dataset can change without `verify` saying so: every file, and every key of the manifest."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, defects
from tokenmill_reader.format.manifest import fingerprint_of, with_checksum
from tokenmill_reader.format.names import MANIFEST

PLACES = 8  # where bytes are flipped in each file


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, documents: list[str], tokenizer_folder: Path):
    """Prepares a small dataset."""
    folder = tmp_path_factory.mktemp("datasets")
    source = folder / "source.txt"
    source.write_text("\n".join([*documents[:40], "", *documents[40:80]]), encoding="utf-8")

    def prepare_dataset(name: str, *options: str) -> Path:
        size = ["--max_length", "32", "--unit_bytes", "4000"]
        prepare.main(arguments(source, tokenizer_folder, folder / name, *size, *options))
        assert defects(folder / name) == []
        return folder / name

    return prepare_dataset


@pytest.fixture(scope="module")
def whole(make) -> Path:
    """A dataset of two splits, with every feature."""
    splits = ["--splits", "train=0.7,validation=0.3"]
    return make("whole", *splits, "--num_shards", "2", "--segment_ids", "--position_ids")


@pytest.fixture(scope="module")
def single(make) -> Path:
    """A dataset of one split; those who change it restore it."""
    return make("single", "--shard_size", "200")


@pytest.fixture
def dataset(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "out"))


def protected(folder: Path) -> list[Path]:
    """All files that belong to the dataset: only the report can be made again, and is outside of the guarantee."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
    assert {path.name for path in files} >= {MANIFEST, "statistics.json", "units.jsonl", "schema.pbtxt"}
    # Two shards with their offsets and four files of each split, two of the tokenizer.
    assert len(files) == 2 * (2 * 2 + 4) + 3
    return files


def named(found: list[str], path: Path, folder: Path) -> bool:
    """Whether a defect names the file; one without a manifest is named by its folder."""
    return any(str(path) in defect or f"{path.parent}: no {MANIFEST}" in defect for defect in found)


def test_every_file_that_is_gone_cut_off_or_longer_is_named(dataset: Path) -> None:
    for path in protected(dataset):
        data = path.read_bytes()
        path.unlink()
        assert named(defects(dataset), path, dataset), path
        for changed in (b"", data[: len(data) // 2], data[:-1], data + b"\n"):
            path.write_bytes(changed)
            assert named(defects(dataset), path, dataset), (path, len(changed))
        path.write_bytes(data)
    assert defects(dataset) == []


def test_a_flipped_bit_anywhere_is_named(dataset: Path) -> None:
    for number, path in enumerate(protected(dataset)):
        data = path.read_bytes()
        for place in range(PLACES):
            changed = bytearray(data)
            changed[place * (len(data) - 1) // (PLACES - 1)] ^= 1 << (number + place) % 8
            path.write_bytes(changed)
            assert named(defects(dataset), path, dataset), (path, place)
        path.write_bytes(data)
    assert defects(dataset) == []


def leaves(value: Any, *place: Any) -> Iterator[tuple]:
    """The places of all values that hold no others, and of the first items of long lists only."""
    if isinstance(value, dict) and value:
        for key in value:
            yield from leaves(value[key], *place, key)
    elif isinstance(value, list) and value:
        for index in range(min(2, len(value))):
            yield from leaves(value[index], *place, index)
    else:
        yield place


def parent_of(value: Any, place: tuple) -> Any:
    for key in place[:-1]:
        value = value[key]
    return value


def falsified(value: Any) -> list[Any]:
    """Other values of the same type, which look right."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 0] if value else [1]
    if isinstance(value, float):
        return [value / 2]
    if isinstance(value, str):
        other = value[:-1] + ("0" if value[-1:] != "0" else "1")
        return [other, ""]
    return [7]  # of null or an empty list


def falsifications(manifest: dict[str, Any]) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """(place, manifest) with each value changed, and with each key gone."""
    for place in leaves(manifest):
        for other in falsified(parent_of(manifest, place)[place[-1]]):
            changed = copy.deepcopy(manifest)
            parent_of(changed, place)[place[-1]] = other
            yield place, changed
    for key in manifest:
        changed = copy.deepcopy(manifest)
        del changed[key]
        yield (key,), changed


def test_every_falsified_key_of_a_manifest_is_noticed_by_its_checksum(dataset: Path) -> None:
    path = dataset / "train" / MANIFEST
    data = path.read_bytes()
    for place, changed in falsifications(json.loads(data)):
        lines = data.decode().splitlines(keepends=True)
        own = next(line for line in lines if line.startswith('  "checksum": '))
        changed.pop("checksum", None)
        rewritten = with_checksum(changed).decode().splitlines(keepends=True)
        kept = [own if line.startswith('  "checksum": ') else line for line in rewritten]
        if place == ("checksum",):
            continue
        path.write_text("".join(kept))
        assert named(defects(dataset), path, dataset), place
    path.write_bytes(data)
    assert defects(dataset) == []


def test_with_a_new_checksum_all_that_can_be_recomputed_is_noticed(dataset: Path) -> None:
    path = dataset / "train" / MANIFEST
    data = path.read_bytes()
    unnoticed = set()
    for place, changed in falsifications(json.loads(data)):
        changed.pop("checksum", None)
        path.write_bytes(with_checksum(changed))
        if place != ("checksum",) and not defects(dataset):
            unnoticed.add(place)
    assert unnoticed == set()


# The options that something else in the dataset tells, too. docs/dataset-format.md says what nothing else tells.
TOLD_TWICE = {"max_length", "shard_size", "num_shards", "seed", "shuffle", "splits"}
TOLD_TWICE |= {"attention_mask", "segment_ids", "position_ids"}
CHOICES = {"dedup", "document", "packing", "split_by"}  # options that have a few values only


def test_of_one_split_with_a_new_fingerprint_too_the_rest_is_known(single: Path) -> None:
    path = single / "train" / MANIFEST
    data = path.read_bytes()
    unnoticed = set()
    for place, changed in falsifications(json.loads(data)):
        if len({"config", "inputs", "tokenizer", "bytes_version", "checksum"} & changed.keys()) < 5:
            continue
        del changed["checksum"]
        if place != ("fingerprint",):
            parts = [changed[key] for key in ("bytes_version", "config", "inputs", "tokenizer")]
            changed["fingerprint"] = fingerprint_of(*parts)
        path.write_bytes(with_checksum(changed))
        if place != ("checksum",) and not defects(single):
            unnoticed.add(".".join(str(key) for key in place if not isinstance(key, int)))
    path.write_bytes(data)
    assert defects(single) == []
    options = {f"config.{name}" for name in json.loads(data)["config"].keys() - TOLD_TWICE - CHOICES}
    assert unnoticed == {
        "bytes_version",
        "engines.left_to_hf.bytes",
        "engines.name",
        "engines.version",
        "versions.tokenmill",
        "versions.tokenizers",
        *options,
    }
