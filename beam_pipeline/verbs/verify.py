"""The verb `verify`: checks that a dataset is complete and undamaged, and names every defect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context

from beam_pipeline.checks.folder import check_folder
from beam_pipeline.checks.manifest import documents_read
from beam_pipeline.checks.shards import ShardFindings, check_shards, shard_check_fields
from beam_pipeline.checks.split import SplitFindings, conclude_split, examine_split
from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.dataset_options import VerifyConfig
from beam_pipeline.support import filesystem, worker_process
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.console import print_above, print_document
from beam_pipeline.support.errors import DataError, WorkerDied
from beam_pipeline.support.progress import ProgressDisplay, Reporter
from beam_pipeline.verbs.results import CheckedFolder, Verification
from tokenmill_reader.console.elapsed import MOMENT
from tokenmill_reader.format.names import MANIFEST, SPLIT_NAME

_SHARDS_AT_A_TIME = 8
_BYTES_FOR_ALL_CORES = 2 << 30  # for fewer bytes, starting other processes takes longer than the work

# Reads the shards of some splits; yields (folder, findings) for each split.
ShardReader = Callable[[Sequence[SplitFindings]], Iterator[tuple[str, ShardFindings]]]


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb: prints a line for each split and each defect.

    Raises:
        UsageError: Beam's options are wrong.
        DataError: If the dataset has defects. The message has their number.
    """
    config, beam_args = parse(VerifyConfig, argv)

    def show(checked: CheckedFolder, *, is_counted: bool) -> None:
        for note in checked.notes:
            print_above(f"NOTE {note}")
        for defect in checked.defects:
            print_above(f"DEFECT {defect}")
        if is_counted:
            state = counted(len(checked.defects), "defect") if checked.defects else "whole"
            print_above(f"{checked.folder}: {state}")

    verification = (
        verify(config.dataset, beam_args)
        if config.console.json
        else verify(config.dataset, beam_args, show=show)
    )
    if config.console.json:
        print_document(verification.to_json())
    if not verification:
        raise DataError(f"{verification.dataset} has {counted(len(verification.defects), 'defect')}")


def verify(
    dataset: str, beam_args: Sequence[str] = (), *, show: Callable[..., None] = lambda *_, **__: None
) -> Verification:
    """Checks a dataset, or one of its splits.

    Args:
        dataset: The folder.
        beam_args: Beam's options. If there are any, a Beam pipeline reads the shards.
        show: Called with each folder's findings once they are known. `is_counted` is False for a dataset's folder
            without defects if its splits have some.

    Raises:
        UsageError: If Beam's options are wrong.
    """
    dataset = filesystem.absolute(dataset)
    read_findings = _read_with_progress
    if beam_args:
        # Imported late: Beam takes seconds, and checks on this machine do not need it.
        from beam_pipeline.checks import at_scale
        from beam_pipeline.runners import beam_options

        options = beam_options.parse(beam_args)
        filesystem.configure(options)
        read_findings = partial(at_scale.read_shards, dataset=dataset, options=options)
    folders: list[CheckedFolder] = []
    for folder, defects, notes in _check_all(dataset, read_findings):
        checked = CheckedFolder(folder=folder, defects=tuple(defects), notes=tuple(notes))
        is_whole_above = folder == dataset and not defects and any(other.defects for other in folders)
        show(checked, is_counted=not is_whole_above)
        folders.append(checked)
    return Verification(dataset=dataset, folders=tuple(folders))


def check_dataset(dataset: str) -> Iterator[tuple[str, list[str]]]:
    """Checks a dataset, or one of its splits, on this machine.

    Yields:
        A split's folder, and its defects as one sentence each.
    """
    for folder, defects, _ in _check_all(dataset, read_shards):
        yield folder, defects


def _check_all(dataset: str, read_findings: ShardReader) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields (folder, defects, notes) of each split, and of the dataset's folder if it has any."""
    folders = filesystem.list_subfolders(dataset)
    names = {name for name in folders if _has_manifest(filesystem.join(dataset, name))}
    if not names:
        if filesystem.exists(filesystem.join(dataset, MANIFEST)):
            yield from _check_folders([dataset], read_findings)
        else:
            yield dataset, [manifests.no_dataset_reason(dataset)], []
        return
    fingerprint = None
    for name in sorted(names):  # the manifest of one split also names a split whose folder is missing
        try:
            manifest = manifests.parse_manifest(filesystem.join(dataset, name))[1]
        except (DataError, OSError):  # `_check_folders` reports it
            continue
        fingerprint, siblings = manifest.get("fingerprint"), manifest.get("splits")
        if isinstance(siblings, list):
            names |= {name for name in siblings if isinstance(name, str) and SPLIT_NAME.fullmatch(name)}
    is_whole = True
    folders = [filesystem.join(dataset, name) for name in sorted(names)]
    for folder, defects, notes in _check_folders(folders, read_findings, dataset):
        is_whole = is_whole and not defects
        yield folder, defects, notes
    defects, notes = check_folder(dataset, names, finished=fingerprint if is_whole else None)
    if defects or notes:
        yield dataset, defects, notes


def _has_manifest(folder: str) -> bool:
    try:
        return filesystem.exists(filesystem.join(folder, MANIFEST))
    except OSError:  # the folder cannot be read, which `examine_split` reports
        return True


def _check_folders(
    folders: Sequence[str], read_findings: ShardReader, dataset: str | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    splits = [examine_split(folder) for folder in folders]
    if dataset is not None:
        _check_siblings(dataset, splits)
    shards = read_findings([split for split in splits if split.manifest is not None])
    for split in splits:
        defects = split.defects
        if split.manifest is not None:
            folder, findings = next(shards)
            assert folder == split.folder
            defects = conclude_split(split, findings)
        yield split.folder, defects, split.notes


def _check_siblings(dataset: str, splits: Sequence[SplitFindings]) -> None:
    """Adds contradictions between the splits of a dataset to their defects."""
    readable = [split for split in splits if split.manifest is not None]
    for split in readable:
        manifest, folder_name = split.manifest, split.folder.rpartition("/")[2]
        for sibling in readable:
            sibling_manifest = sibling.manifest
            if sibling is split:
                continue
            if manifest["fingerprint"] != sibling_manifest["fingerprint"]:
                split.defects.append(f"{split.folder}: made by another run than {sibling.folder}")
            elif folder_name not in sibling_manifest["splits"]:
                split.defects.append(f"{split.folder}: is not one of the splits that {sibling.folder} names")
            for key in ("splits", "excluded", "engines", "tokenizer", "versions", "converted_from"):
                if manifest.get(key) != sibling_manifest.get(key):
                    split.defects.append(
                        f"{split.folder}/{MANIFEST}: its {key} differ from {sibling.folder}'s"
                    )
    if readable and len(readable) == len(splits) == len(readable[0].manifest["splits"]):
        documents = sum(split.manifest["totals"]["documents"] for split in readable)
        num_documents = documents_read(readable[0].manifest["excluded"])
        if documents != num_documents:
            readable[0].defects.append(
                f"{dataset}: the splits have {documents} documents, but {num_documents} records became documents"
            )


def read_shards(
    splits: Sequence[SplitFindings], report_bytes: Callable[[int], None] = lambda size: None
) -> Iterator[tuple[str, ShardFindings]]:
    """Checks the shards of each split in turn, on all cores if there is much to read.

    Args:
        splits: Splits that have a manifest.
        report_bytes: Called with the number of bytes read, after every few shards.

    Yields:
        A split's folder, and the findings in its shards.
    """
    tasks = {split.folder: _tasks(split) for split in splits}
    size = sum(shard["bytes"] for split in splits for shard in split.manifest["shards"])
    in_parallel = size >= _BYTES_FOR_ALL_CORES
    pool = _process_pool() if in_parallel else None
    try:
        for split in splits:
            findings = ShardFindings.empty(split.manifest["tokenizer"]["vocab_size"])
            for task_findings in (pool.map if pool else map)(_run_task, tasks[split.folder]):
                findings.merge(task_findings)
                report_bytes(task_findings.bytes)
            yield split.folder, findings
    except BrokenProcessPool as error:
        raise WorkerDied(
            f"a process that read shards died, perhaps because memory ran out ({error})"
        ) from error
    finally:
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, the processes end with this one


def _process_pool() -> ProcessPoolExecutor:
    """Starts a process for each core. They end with this process, even if it is killed."""
    return ProcessPoolExecutor(
        len(os.sched_getaffinity(0)),
        get_context("spawn"),  # a fork would be unsafe, since clients of file systems have threads
        initializer=worker_process.start,
        initargs=(os.getpid(),),
    )


def _tasks(split: SplitFindings) -> list[Callable[[], ShardFindings]]:
    fields, shards = shard_check_fields(split.manifest), split.manifest["shards"]
    return [
        partial(check_shards, split.folder, fields, start, shards[start : start + _SHARDS_AT_A_TIME])
        for start in range(0, len(shards), _SHARDS_AT_A_TIME)
    ]


def _run_task(task: Callable[[], ShardFindings]) -> ShardFindings:
    return task()


def _read_with_progress(splits: Sequence[SplitFindings]) -> Iterator[tuple[str, ShardFindings]]:
    """Runs `read_shards`, with a progress bar if it takes long."""
    size = sum(shard["bytes"] for split in splits for shard in split.manifest["shards"])
    with ProgressDisplay([("verify", "MB", 1e6)], size, delay=MOMENT) as display:
        reporter = Reporter(display.address)
        yield from read_shards(splits, lambda done: reporter.add("verify", done))
