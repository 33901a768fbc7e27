"""No byte of a dataset can change without `verify` reporting it: every file, and every key of the manifest."""

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
def pristine_dataset(make) -> Path:
    """A dataset of two splits, with every feature."""
    splits = ["--splits", "train=0.7,validation=0.3"]
    return make("whole", *splits, "--num_shards", "2", "--segment_ids", "--position_ids")


@pytest.fixture(scope="module")
def single_split_dataset(make) -> Path:
    """A dataset of one split. Tests that change it restore it."""
    return make("single", "--shard_size", "200")


@pytest.fixture
def dataset(pristine_dataset: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine_dataset, tmp_path / "out"))


def protected(folder: Path) -> list[Path]:
    """All files that belong to the dataset: the report can be regenerated, so it is not guaranteed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "report.html")
    assert {path.name for path in files} >= {MANIFEST, "statistics.json", "units.jsonl", "schema.pbtxt"}
    # Two shards with their offsets and four files of each split, two of the tokenizer.
    assert len(files) == 2 * (2 * 2 + 4) + 3
    return files


def is_named(defect_lines: list[str], path: Path, folder: Path) -> bool:
    """Whether a defect names the file; one without a manifest is named by its folder."""
    return any(str(path) in defect or f"{path.parent}: no {MANIFEST}" in defect for defect in defect_lines)


def test_every_file_that_is_gone_cut_off_or_longer_is_named(dataset: Path) -> None:
    for path in protected(dataset):
        data = path.read_bytes()
        path.unlink()
        assert is_named(defects(dataset), path, dataset), path
        for damaged_data in (b"", data[: len(data) // 2], data[:-1], data + b"\n"):
            path.write_bytes(damaged_data)
            assert is_named(defects(dataset), path, dataset), (path, len(damaged_data))
        path.write_bytes(data)
    assert defects(dataset) == []


def test_a_flipped_bit_anywhere_is_named(dataset: Path) -> None:
    for number, path in enumerate(protected(dataset)):
        data = path.read_bytes()
        for place in range(PLACES):
            damaged_data = bytearray(data)
            damaged_data[place * (len(data) - 1) // (PLACES - 1)] ^= 1 << (number + place) % 8
            path.write_bytes(damaged_data)
            assert is_named(defects(dataset), path, dataset), (path, place)
        path.write_bytes(data)
    assert defects(dataset) == []


def leaf_paths(value: Any, *place: Any) -> Iterator[tuple]:
    """The places of all values that hold no others, and of the first items of long lists only."""
    if isinstance(value, dict) and value:
        for key in value:
            yield from leaf_paths(value[key], *place, key)
    elif isinstance(value, list) and value:
        for index in range(min(2, len(value))):
            yield from leaf_paths(value[index], *place, index)
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
        other_digits = value[:-1] + ("0" if value[-1:] != "0" else "1")
        return [other_digits, ""]
    return [7]  # of null or an empty list


def falsifications(manifest: dict[str, Any]) -> Iterator[tuple[tuple, dict[str, Any]]]:
    """(place, manifest) with each value changed, and with each key gone."""
    for place in leaf_paths(manifest):
        for false_value in falsified(parent_of(manifest, place)[place[-1]]):
            false_manifest = copy.deepcopy(manifest)
            parent_of(false_manifest, place)[place[-1]] = false_value
            yield place, false_manifest
    for key in manifest:
        false_manifest = copy.deepcopy(manifest)
        del false_manifest[key]
        yield (key,), false_manifest


def test_every_falsified_key_of_a_manifest_is_noticed_by_its_checksum(dataset: Path) -> None:
    path = dataset / "train" / MANIFEST
    data = path.read_bytes()
    for place, false_manifest in falsifications(json.loads(data)):
        lines = data.decode().splitlines(keepends=True)
        checksum_line = next(line for line in lines if line.startswith('  "checksum": '))
        false_manifest.pop("checksum", None)
        false_lines = with_checksum(false_manifest).decode().splitlines(keepends=True)
        lines_with_checksum = [
            checksum_line if line.startswith('  "checksum": ') else line for line in false_lines
        ]
        if place == ("checksum",):
            continue
        path.write_text("".join(lines_with_checksum))
        assert is_named(defects(dataset), path, dataset), place
    path.write_bytes(data)
    assert defects(dataset) == []


def test_with_a_new_checksum_all_that_can_be_recomputed_is_noticed(dataset: Path) -> None:
    path = dataset / "train" / MANIFEST
    data = path.read_bytes()
    unnoticed_places = set()
    for place, false_manifest in falsifications(json.loads(data)):
        false_manifest.pop("checksum", None)
        path.write_bytes(with_checksum(false_manifest))
        if place != ("checksum",) and not defects(dataset):
            unnoticed_places.add(place)
    assert unnoticed_places == set()


# The options that other files of the dataset determine, too; docs/dataset-format.md lists those that none does.
TOLD_TWICE = {"max_length", "shard_size", "num_shards", "seed", "shuffle", "splits"}
TOLD_TWICE |= {"attention_mask", "segment_ids", "position_ids"}
# Options that have a few values only, or a form that is checked.
CHOICES = {"dedup", "document", "packing", "split_by", "mix", "dataset"}


def test_of_one_split_with_a_new_fingerprint_too_the_rest_is_known(single_split_dataset: Path) -> None:
    path = single_split_dataset / "train" / MANIFEST
    data = path.read_bytes()
    unnoticed_keys = set()
    for place, false_manifest in falsifications(json.loads(data)):
        if len({"config", "inputs", "tokenizer", "bytes_version", "checksum"} & false_manifest.keys()) < 5:
            continue
        del false_manifest["checksum"]
        if place != ("fingerprint",):
            parts = [false_manifest[key] for key in ("bytes_version", "config", "inputs", "tokenizer")]
            false_manifest["fingerprint"] = fingerprint_of(*parts)
        path.write_bytes(with_checksum(false_manifest))
        if place != ("checksum",) and not defects(single_split_dataset):
            unnoticed_keys.add(".".join(str(key) for key in place if not isinstance(key, int)))
    path.write_bytes(data)
    assert defects(single_split_dataset) == []
    options = {f"config.{name}" for name in json.loads(data)["config"].keys() - TOLD_TWICE - CHOICES}
    assert unnoticed_keys == {
        "bytes_version",
        "engines.left_to_hf.bytes",
        "engines.name",
        "engines.version",
        "versions.tokenmill",
        "versions.tokenizers",
        *options,
    }
