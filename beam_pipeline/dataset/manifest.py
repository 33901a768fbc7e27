"""The manifest of a split in a folder: reading and checking it (docs/dataset-format.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset.forms import config_defects, layout_defects
from beam_pipeline.rows.routing import ShardLayout
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from tokenmill_reader import DatasetError
from tokenmill_reader.format import manifest as manifests
from tokenmill_reader.format import manifest_form
from tokenmill_reader.format.inputs import parse_inputs
from tokenmill_reader.format.names import INPUTS, MANIFEST


def finished_splits(dataset: str) -> list[str]:
    """Returns the names of the folders in a dataset's folder that have a manifest, sorted."""
    names = filesystem.list_subfolders(dataset)
    return [name for name in names if filesystem.exists(filesystem.join(dataset, name, MANIFEST))]


def dataset_of(folder: str) -> str:
    """Returns the folder of the dataset of the split in `folder`."""
    return folder.rstrip("/").rpartition("/")[0]


def no_dataset_reason(path: str) -> str:
    """Describes why a folder in which no split has a manifest is not a dataset."""
    if not (filesystem.list_subfolders(path) or filesystem.list_files(path, recursive=False)):
        return f"{path}: no such folder, or it is empty"
    return f"{path}: is not a finished dataset: no split in it has a {MANIFEST}"


def read_manifest(folder: str) -> dict[str, Any]:
    """Reads and checks the manifest of the split in `folder`.

    Raises:
        DataError: If there is none, its version cannot be read, its checksum or form is wrong, or its values contradict
            each other.
    """
    data, manifest = parse_manifest(folder)
    defect = (
        manifests.checksum_defect(data, manifest)
        or next(form_defects(manifest), None)
        or next(value_defects(manifest), None)
        or name_defect(folder, manifest)
    )
    if defect:
        raise DataError(f"{filesystem.join(folder, MANIFEST)}: {defect}; copy it again, or rerun prepare")
    return manifest


def form_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each deviation of a manifest from the form of its version."""
    yield from manifest_form.form_defects(manifest)
    yield from config_defects(manifest)


def value_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each contradiction between values. The manifest's form must be correct."""
    yield from manifest_form.value_defects(manifest)
    yield from layout_defects(manifest, layout_of(manifest))


def name_defect(folder: str, manifest: Mapping[str, Any]) -> str | None:
    """Checks that a split has the name of its folder, to which other programs would else write its files.

    Returns:
        The defect; None if the names are equal.
    """
    name = folder.rstrip("/").rpartition("/")[2]
    return (
        None if name == manifest["split"] else f"contains the split {manifest['split']!r}; rename the folder"
    )


def parse_manifest(folder: str) -> tuple[bytes, dict[str, Any]]:
    """Reads the manifest in `folder`, without checking its checksum and form.

    Returns:
        Its bytes, and its content.

    Raises:
        DataError: If there is none, or its version cannot be read.
    """
    path = filesystem.join(folder, MANIFEST)
    if not filesystem.exists(path):
        raise DataError(f"{folder}: no {MANIFEST}, so this is not a finished dataset")
    data = filesystem.read_bytes(path)
    try:
        return data, manifests.parse_manifest(data, path)
    except DatasetError as error:
        raise DataError(str(error)) from error


def read_inputs(dataset: str, manifest: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields the path and size of each input file, in order, and checks that the list is the manifest's.

    Args:
        dataset: The dataset's folder.
        manifest: The manifest of one of its splits.

    Raises:
        DataError: If inputs.jsonl is missing, or is not what the manifest describes.
    """
    path = filesystem.join(dataset, INPUTS)
    if defect := size_defect(path, manifest["inputs"]["bytes"]):
        raise DataError(f"{defect}; copy the dataset again, or prepare it again")
    try:
        yield from parse_inputs(filesystem.read_bytes(path), path, manifest)
    except DatasetError as error:
        raise DataError(str(error)) from error


def size_defect(path: str, expected: float) -> str | None:
    """Returns a message if a file is missing, or larger than `expected` bytes: a sparse file may have exabytes."""
    size = filesystem.size_of(path)
    # Only a regular file has a size; reading anything else reports that.
    if size is None and not filesystem.exists(path):
        return f"{path}: missing"
    if size is not None and size > expected:
        return f"{path}: {size} bytes, the manifest specifies {expected}"
    return None


def split_shares(manifest: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Returns the name and share of each split of the run, in their order."""
    return tuple((name, share) for name, share in manifest["config"]["splits"])


def layout_of(manifest: Mapping[str, Any]) -> ShardLayout:
    """Returns the layout of the split's rows."""
    config = manifest["config"]
    return ShardLayout(
        split=manifest["split"],
        num_rows=manifest["num_records"],
        shard_size=manifest["shard_size"],
        requested_shards=config["num_shards"],
        shuffle=config["shuffle"],
        seed=manifest["seed"],
    )


def schema_pbtxt(features: tuple[str, ...], max_length: int | None, vocab_size: int) -> bytes:
    """Returns a tensorflow_metadata schema of the records, as text. Each feature is an int64 of a fixed shape.

    Without `max_length`, the records are documents of at least one token.
    """
    largest = {"input_ids": vocab_size - 1, "attention_mask": 1, "loss_mask": 1}
    if max_length is not None:
        largest |= {"segment_ids": max_length, "position_ids": max_length - 1}
    # Fields in the order of their numbers, as protobuf writes them.
    documents = ("  value_count {", "    min: 1", "  }") if max_length is None else ()
    rows = (
        () if max_length is None else ("  shape {", "    dim {", f"      size: {max_length}", "    }", "  }")
    )
    lines = [
        line
        for name in features
        for line in (
            *("feature {", f'  name: "{name}"', *documents, "  type: INT"),
            *("  int_domain {", "    min: 0", f"    max: {largest[name]}", "  }"),
            *("  presence {", "    min_fraction: 1.0", "  }", *rows, "}"),
        )
    ]
    return "".join(f"{line}\n" for line in lines).encode()
