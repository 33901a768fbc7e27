"""Checking a dataset's shards in a Beam pipeline, for datasets that one machine would read for hours."""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from beam_pipeline.checks.shards import ShardFindings, check_shards
from beam_pipeline.checks.split import SplitFindings
from beam_pipeline.dataset.manifest import parse_manifest
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.runners import beam_options
from beam_pipeline.runners.dataflow import job_options
from beam_pipeline.runners.run import run
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError

_GROUP_BYTES = 1 << 30

Group = tuple[str, int, int]
"""Consecutive shards of a split: (the split's folder, the number of the first shard, the number of shards)."""


def read_shards(
    splits: Sequence[SplitFindings], *, dataset: str, options: PipelineOptions
) -> Iterator[tuple[str, ShardFindings]]:
    """Checks the shards of all splits in one pipeline.

    Yields:
        The folder of each split, and the findings in its shards.

    Raises:
        UsageError: If the options are wrong, or the workers cannot read the dataset.
        DataError: If the pipeline fails.
    """
    if beam_options.runs_on_dataflow(options):
        job_options.complete(options, verb="verify", output=dataset)
    elif filesystem.is_local(dataset) and not beam_options.workers_see_local_files(options):
        raise UsageError(f"{dataset} is on this machine, so the runner's workers cannot read it")
    folders = [split.folder for split in splits]
    vocab_sizes = {split.folder: split.manifest["tokenizer"]["vocab_size"] for split in splits}
    with _result_path(options) as path:
        run(lambda pipeline: build(pipeline, folders, path), options)
        if not filesystem.exists(path):
            raise DataError(f"the job ended, but its result is not in {path}; rerun verify")
        findings = read_result(path)
    for folder in folders:
        yield folder, findings.get(folder) or ShardFindings.empty(vocab_sizes[folder])


def build(pipeline: beam.Pipeline, folders: Sequence[str], result_path: str) -> None:
    """Adds the steps, which check groups of shards and write the findings of all splits to one file."""
    findings = (
        pipeline
        | "Splits" >> beam.Create(folders)
        | "Groups" >> beam.FlatMap(shard_groups)
        | "SpreadGroups" >> beam.Reshuffle()
        | "CheckShards" >> beam.ParDo(CheckGroup())
        | "MergeFindings" >> beam.CombinePerKey(merge_findings)
    )
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "WriteResult" >> beam.Map(write_result, beam.pvalue.AsIter(findings), result_path)
    )


def shard_groups(folder: str) -> Iterator[Group]:
    """Yields the shards of a split, in groups of about 1 GiB."""
    _, manifest = parse_manifest(folder)
    first_shard = size = 0
    for number, shard in enumerate(manifest["shards"]):
        if size and size + shard["bytes"] > _GROUP_BYTES:
            yield folder, first_shard, number - first_shard
            first_shard, size = number, 0
        size += shard["bytes"]
    if manifest["shards"]:
        yield folder, first_shard, len(manifest["shards"]) - first_shard


class CheckGroup(beam.DoFn):
    """A group of shards → (the split's folder, the findings)."""

    def setup(self) -> None:
        self._manifests: dict[str, dict[str, Any]] = {}
        self._shards = Metrics.counter("verify", "shards")
        self._bytes = Metrics.counter("verify", "bytes_read")
        self._defects = Metrics.counter("verify", "defects")

    def process(self, group: Group) -> Iterator[tuple[str, ShardFindings]]:
        folder, first_shard, count = group
        if folder not in self._manifests:
            self._manifests[folder] = parse_manifest(folder)[1]
        manifest = self._manifests[folder]
        findings = check_shards(
            folder, manifest, first_shard, manifest["shards"][first_shard : first_shard + count]
        )
        self._shards.inc(count)
        self._bytes.inc(findings.bytes)
        self._defects.inc(findings.num_defects)
        yield folder, findings


def merge_findings(findings: Iterable[ShardFindings]) -> ShardFindings | None:
    """Merges the findings of one split. Returns None if there are none, because a runner may merge nothing."""
    merged: ShardFindings | None = None
    for shard_findings in findings:
        if shard_findings is not None:
            if merged is None:
                merged = ShardFindings.empty(len(shard_findings.statistics.token_counts))
            merged.merge(shard_findings)
    return merged


def write_result(_: None, findings: Iterable[tuple[str, ShardFindings]], path: str) -> None:
    """Writes the findings by the splits' folders."""
    result = {
        folder: {**vars(split_findings), "statistics": split_findings.statistics.to_bytes().hex()}
        for folder, split_findings in findings
    }
    filesystem.write_bytes(path, json.dumps(result).encode())


def read_result(path: str) -> dict[str, ShardFindings]:
    """Reads what `write_result` wrote. Splits without shards are missing."""
    findings = json.loads(filesystem.read_bytes(path))
    for fields in findings.values():
        fields["statistics"] = SplitStatistics.from_bytes(bytes.fromhex(fields["statistics"]))
        fields["defects"] = [(shard, defect) for shard, defect in fields["defects"]]
    return {folder: ShardFindings(**fields) for folder, fields in findings.items()}


@contextlib.contextmanager
def _result_path(options: PipelineOptions) -> Iterator[str]:
    """Yields the path of a file that a worker writes and this process reads. Deletes the file at the end."""
    name = f"tokenmill-verify-{uuid.uuid4().hex}.json"
    location = options.view_as(GoogleCloudOptions).temp_location
    if location is None:
        if not beam_options.workers_see_local_files(options):
            raise UsageError(
                "--temp_location is missing: a folder where the runner's workers can write the result"
            )
        with tempfile.TemporaryDirectory() as folder:
            yield filesystem.join(folder, name)
        return
    path = filesystem.join(filesystem.absolute(location), name)
    try:
        yield path
    finally:
        filesystem.delete([path])
