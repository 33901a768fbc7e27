"""Hugging Face datasets. The `datasets` library prepares a dataset as arrow files, which work units read in parallel.

Only the launcher needs the library. A split expression such as `train[:10%]+validation` is resolved by the library into
row ranges of the dataset's splits, each of which is a run of arrow files.
"""

from __future__ import annotations

import hashlib
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from beam_pipeline.options.input_options import DatasetConfig, InputConfig
from beam_pipeline.sources import arrow
from beam_pipeline.sources.cutting import FileRange, InputFile, ListedFile, common_folder
from beam_pipeline.support import extras, filesystem
from beam_pipeline.support.errors import UsageError

if TYPE_CHECKING:
    import datasets

# Every folder written by save_to_disk has one of these.
_SAVE_TO_DISK_FILES = ("state.json", "dataset_dict.json")


def list_dataset(config: InputConfig, *, local_files: bool) -> list[ListedFile]:
    """Lists the arrow files of a dataset's split, with the rows that belong to the split.

    Downloads and prepares the dataset unless the cache contains it. With a remote `--dataset_cache`, copies the files
    there unless they are there already.

    Args:
        config: The input's options, with a `dataset`.
        local_files: Whether the workers can read this machine's files.

    Raises:
        UsageError: If the dataset, the split or the column does not exist, the workers cannot read the files, or the
            `datasets` library is not installed.
    """
    dataset = config.dataset
    extras.require("huggingface", f"--dataset_name {dataset.name}")
    remote = dataset.cache if dataset.cache and not filesystem.is_local(dataset.cache) else None
    if not local_files and not remote:
        raise UsageError(
            f"--dataset_name {dataset.name}: is prepared in a folder of this machine, where the runner's workers "
            "cannot read it; set a folder that they can read with --dataset_cache gs://…, or export the dataset to "
            "parquet files in a bucket and read them with --input"
        )
    splits = _load(dataset, None if remote else dataset.cache)
    ranges = _row_ranges(dataset, splits)
    listed: dict[str, ListedFile] = {}
    for split, begin, end in ranges:
        for path, pieces in _pieces(config, splits[split], begin, end):
            file = InputFile(path, Path(path).stat().st_size, "arrow")
            listed[path] = ListedFile(file, [*(listed[path].ranges if path in listed else ()), *pieces])
    if not listed:
        raise UsageError(f"--dataset_name {dataset.name}: its split {dataset.split} has no rows")
    listed_files = [listed[path] for path in sorted(listed)]
    return _upload(listed_files, remote) if remote else listed_files


def is_saved_dataset(path: str) -> bool:
    """Determines whether this is a local folder that `save_to_disk` has written."""
    return any(Path(path, name).is_file() for name in _SAVE_TO_DISK_FILES)


def saved_splits(path: str) -> list[str]:
    """Returns the names of the splits of a saved dataset.

    Raises:
        UsageError: If it cannot be loaded, or the `datasets` library is not installed.
    """
    extras.require("huggingface", f"--dataset_name {path}")
    return list(_load(DatasetConfig(name=path), None))


def _load(dataset: DatasetConfig, cache: str | None) -> Mapping[str, datasets.Dataset]:
    """Loads all splits of the dataset, by name, as memory-mapped tables."""
    import datasets

    option = f"--dataset_name {dataset.name}"
    try:
        if is_saved_dataset(dataset.name):
            if dataset.config or dataset.revision:
                raise UsageError(
                    f"{option}: a folder written by save_to_disk has neither configurations nor revisions; leave "
                    "--dataset_config and --dataset_revision out"
                )
            loaded = datasets.load_from_disk(dataset.name, keep_in_memory=False)
        else:
            loaded = datasets.load_dataset(
                dataset.name, dataset.config, revision=dataset.revision, cache_dir=cache, keep_in_memory=False
            )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        cause = f" ({_message(error.__cause__)})" if error.__cause__ else ""
        raise UsageError(f"{option}: cannot be loaded: {_message(error)}{cause}") from error
    if isinstance(loaded, datasets.Dataset):
        return {str(loaded.split or "train"): loaded}
    return {str(name): split for name, split in loaded.items()}


def _message(error: BaseException) -> str:
    """Returns an error's message in one line."""
    return textwrap.shorten(str(error), 400, placeholder=" …") or type(error).__name__


def _row_ranges(dataset: DatasetConfig, splits: Mapping[str, datasets.Dataset]) -> list[tuple[str, int, int]]:
    """Resolves `--dataset_split`, as the library itself does, to ranges (split, first row, last row + 1)."""
    from datasets import ReadInstruction

    try:
        instruction = ReadInstruction.from_spec(dataset.split)
        absolute = instruction.to_absolute({name: len(split) for name, split in splits.items()})
    except (ValueError, AssertionError) as error:
        raise UsageError(
            f"--dataset_split {dataset.split}: {_message(error).rstrip('.')}; the dataset's splits are "
            f"{', '.join(splits)}"
        ) from error
    ranges = sorted((part.splitname, part.from_, part.to) for part in absolute)
    for (name, _, end), (next_name, begin, _) in pairwise(ranges):
        if name == next_name and begin < end:
            raise UsageError(
                f"--dataset_split {dataset.split}: selects rows {begin} to {end - 1} of {name} twice"
            )
    return ranges


def _pieces(
    config: InputConfig, split: datasets.Dataset, begin: int, end: int
) -> Iterator[tuple[str, list[FileRange]]]:
    """Yields each file that has rows of the split's range [begin, end), with the pieces that contain them."""
    row = 0
    for entry in split.cache_files:
        path = entry["filename"]
        batches = arrow.record_batches(path, config)
        pieces = []
        for batch in batches:
            start, stop = max(begin - row, batch.start), min(end - row, batch.end)
            if start < stop:
                size = batch.bytes * (stop - start) // (batch.end - batch.start)
                pieces.append(FileRange(start, stop, size, batch.batch_start))
        row += batches[-1].end if batches else 0
        if pieces:
            yield path, pieces
    if row != len(split):
        raise UsageError(
            f"--dataset_name {config.dataset.name}: its {len(split)} rows are a selection or a reordering of the "
            f"{row} rows in its files; save the dataset again with save_to_disk, or as parquet, and read that"
        )


def _upload(listed: Sequence[ListedFile], cache: str) -> list[ListedFile]:
    """Copies the files into a folder that the workers can read, unless they are there already.

    Paths below that folder equal the paths below the files' common folder, so that documents have the same places
    wherever the dataset is stored.
    """
    root = common_folder(entry.file.path for entry in listed)
    states = [
        (entry.file.path, entry.file.size, Path(entry.file.path).stat().st_mtime_ns) for entry in listed
    ]
    folder = filesystem.join(cache, hashlib.sha256(repr(states).encode()).hexdigest()[:16])
    copies = []
    for entry in listed:
        target = filesystem.join(folder, entry.file.path[len(root) :])
        if filesystem.size_of(target) != entry.file.size:
            with Path(entry.file.path).open("rb") as source, filesystem.create_whole(target) as copy:
                shutil.copyfileobj(source, copy, 4 << 20)
        copies.append(replace(entry, file=replace(entry.file, path=target)))
    return copies
