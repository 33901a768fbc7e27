"""Names of splits that collide with a file of a dataset, with each other or with a device are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_pipeline.dataset import bad_records, lock, staging
from beam_pipeline.options.option_values import check_split_name, parse_splits
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.names import (
    INDEX,
    MANIFEST,
    OFFSETS,
    REPORT,
    SCHEMA,
    STATISTICS,
    TOKENIZER,
    TRANSFORM_FN,
    UNITS,
)

# The names of the files and folders of a dataset that a test's dataset need not have.
NAMES = {
    *(lock.NAME, OFFSETS, bad_records.FOLDER, staging.STAGING, "inputs.jsonl"),
    *(MANIFEST, STATISTICS, UNITS, SCHEMA, INDEX),
    *(TOKENIZER, TRANSFORM_FN, REPORT, REPORT + ".tmp"),
}


def test_no_split_has_the_name_of_a_file_of_a_dataset(dataset: Path):
    dataset_names = {name for path in dataset.rglob("*") for name in path.relative_to(dataset).parts[:2]}
    reserved_names = dataset_names | {name.partition("/")[0] for name in NAMES - {lock.NAME}}
    for name in reserved_names - {
        "train",
        "validation",
        *(path.name for path in (dataset / "tokenizer").iterdir()),
    }:
        for spelling in (name, name.upper()):
            with pytest.raises(UsageError, match="split"):
                check_split_name(spelling)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a b", "é", "a.", "-a", "_a", "a\n", "a" * 101]
)
def test_names_that_are_not_valid_on_every_disk(name: str):
    with pytest.raises(UsageError, match="is not a valid name"):
        check_split_name(name)


@pytest.mark.parametrize("name", ["con", "NUL", "aux.txt", "Com1", "lpt9.a.b"])
def test_names_of_devices(name: str):
    with pytest.raises(UsageError, match="Windows cannot have a folder of this name"):
        check_split_name(name)
    assert check_split_name(f"{name}x".replace(".", "_"))


def test_names_that_some_disks_do_not_tell_apart():
    for text in ("Train=0.5,train=0.5", "a=0.5,A=0.5"):
        with pytest.raises(UsageError, match="are the same on some disks; name each split once"):
            parse_splits(text)
    assert parse_splits("train=0.5,train.2=0.5")
