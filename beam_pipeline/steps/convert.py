"""Copies a finished dataset to shards of another format, each shard on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from beam_pipeline.dataset import manifest, removed_documents
from beam_pipeline.dataset.document_shards import write_documents
from beam_pipeline.dataset.records import RecordError
from beam_pipeline.dataset.shards import ShardInfo, file_sums, files_of_shard, write_shard
from beam_pipeline.formats.base import DocumentFormat, rows_of
from beam_pipeline.formats.choice import format_of, read_documents
from beam_pipeline.options.option_values import FORMAT_DEFAULTS
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.steps.commit import copied_files, finish, is_committed, publish
from beam_pipeline.steps.job import OutputJob
from beam_pipeline.steps.route import kept_shard
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.pipelines import Metrics
from beam_pipeline.support.progress import Reporter
from tokenmill_reader.format.manifest import describe_file, fingerprint_of, output_format_of, with_checksum
from tokenmill_reader.format.names import MANIFEST, shard_name


@dataclass(frozen=True)
class ConvertJob(OutputJob):
    """A run of `convert`."""

    source: str
    """The folder of the finished dataset, absolute."""
    format_options: Mapping[str, str]
    """The options of the new format, as in a manifest."""
    names: tuple[str, ...]
    """The names of the splits."""

    @property
    def split_names(self) -> tuple[str, ...]:
        return self.names

    def describe_finished(self) -> str:
        """Describes how many shards are finished; "" after the commit, which deletes their records."""
        shards = len(filesystem.list_folder(self.finished_folder))
        return f"{shards:,} shards" if shards else ""

    def source_folder(self, split: int) -> str:
        return filesystem.join(self.source, self.names[split])


def converted_manifest(source: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Returns the manifest that `prepare` would have written for a split in this format, except for the shards.

    Args:
        source: The manifest of the split.
        options: The options of the new format, as in a manifest.
    """
    replaced_keys = ("checksum", "converted_from", *FORMAT_DEFAULTS)
    config = {key: value for key, value in source["config"].items() if key not in FORMAT_DEFAULTS}
    config |= options
    target = {key: value for key, value in source.items() if key not in replaced_keys} | options
    target["config"] = config
    target["fingerprint"] = fingerprint_of(
        source["bytes_version"], config, source["inputs"], source["tokenizer"]
    )
    return target


def list_source_shards(split: int, job: ConvertJob) -> Iterator[tuple[int, int]]:
    """Yields the (split, shard) pairs of a split."""
    shards = manifest.read_manifest(job.source_folder(split))["shards"]
    yield from ((split, shard) for shard in range(len(shards)))


class ConvertShard(beam.DoFn):
    """(split, shard) → the ShardInfo of the shard that it writes, or that an earlier run has written."""

    def __init__(self, job: ConvertJob):
        self._job = job

    def setup(self) -> None:
        self._manifests: dict[int, dict[str, Any]] = {}
        self._reporter = Reporter(self._job.progress)
        self._shards_kept = Metrics.counter("convert", "shards_kept")
        self._records = Metrics.counter("convert", "records_written")
        self._bytes = Metrics.counter("convert", "bytes_written")

    def process(self, element: tuple[int, int]) -> Iterator[ShardInfo]:
        split, shard = element
        job = self._job
        if split not in self._manifests:
            self._manifests[split] = manifest.read_manifest(job.source_folder(split))
        source = self._manifests[split]
        entry = source["shards"][shard]
        output_format = output_format_of(job.format_options)
        name = shard_name(source["split"], shard, entry["records"], output_format)
        record = job.shard_record(name)
        info = kept_shard(job, record) if filesystem.exists(record) else None
        if info is None:
            info = self._convert(split, shard, source, name)
        else:
            self._shards_kept.inc()
        self._records.inc(info.records)
        self._bytes.inc(info.bytes)
        self._reporter.add("convert", info.records)
        yield info

    def _convert(self, split: int, shard: int, source: Mapping[str, Any], name: str) -> ShardInfo:
        job, entry = self._job, source["shards"][shard]
        target_format = format_of(converted_manifest(source, job.format_options))
        path = filesystem.join(job.source_folder(split), entry["name"])

        def publish(info: ShardInfo) -> None:
            if (info.records, info.rows_checksum) != (entry["records"], entry["rows_checksum"]):
                raise DataError(
                    f"{job.source_folder(split)}/{entry['name']}: its rows are not those that the manifest describes; "
                    "verify the dataset"
                )
            job.record_shard(info)

        destination = job.shard_destination(split, shard, name) | {"before_publishing": publish}
        blocks = _read_rows(path, entry, source)
        if isinstance(target_format, DocumentFormat):
            return write_documents(
                blocks, write=target_format.write, has_index=target_format.has_index, **destination
            )
        rows = RowBlock.concatenate([*blocks])
        return write_shard(
            rows, encode=target_format.encode, with_offsets=target_format.has_offsets, **destination
        )


def _read_rows(
    path: str, entry: Mapping[str, Any], source: Mapping[str, Any]
) -> Iterator[RowBlock] | Iterator[DocumentBlock]:
    """Yields all rows or documents of a shard.

    Raises:
        DataError: If the shard is missing or damaged.
    """
    remedy = "verify the dataset, and copy or prepare it again"
    shard_format = format_of(source)
    # A format does not use the offsets of records.
    sums = {name: sums for name, sums in files_of_shard(entry).items() if "/" not in name}
    try:
        for name, expected_sums in sums.items():
            file_path = filesystem.join(path.rpartition("/")[0], name)
            if file_sums(file_path) != expected_sums:
                raise DataError(f"{file_path}: its size or CRC-32C differs from the manifest; {remedy}")
        if isinstance(shard_format, DocumentFormat):
            yield from read_documents(shard_format, path)
            return
        with filesystem.open_file(path) as file:
            for columns in shard_format.decode(file, path):
                yield rows_of(columns, source)
    except (RecordError, OSError) as error:
        raise DataError(f"{path}: cannot be read: {error}; {remedy}") from error


def copy_removed(path: str, job: ConvertJob) -> None:
    """Copies a file of the folder of removed documents, if it is the program's own."""
    name = path.rpartition("/")[2]
    if removed_documents.FILE_NAME.fullmatch(name) and removed_documents.is_removed_file(path):
        job.check_lock()
        job.write(filesystem.join(job.output, removed_documents.FOLDER, name), filesystem.read_bytes(path))


class CommitConversion(beam.DoFn):
    """Writes the manifests, once, after all shards are written."""

    def __init__(self, job: ConvertJob):
        self._job = job

    def process(self, _: None, shards: Iterable[ShardInfo], removed: Iterable[None] = ()) -> None:
        """Commits. `removed` has an element for each list of removed documents that is copied."""
        job = self._job
        if is_committed(job):
            finish(job)
            return
        job.check_lock()
        files: dict[str, bytes] = {}
        manifests: dict[str, bytes] = {}
        shards_by_split: list[list[ShardInfo]] = [[] for _ in job.names]
        for info in shards:
            shards_by_split[info.split].append(info)
        for split, infos in enumerate(shards_by_split):
            folder = job.source_folder(split)
            source = manifest.read_manifest(folder)
            infos.sort(key=lambda info: info.shard)
            if [info.shard for info in infos] != list(range(len(source["shards"]))):
                raise AssertionError(f"{folder}: not every shard was converted exactly once")
            target = converted_manifest(source, job.format_options)
            target["shards"] = [info.to_json() for info in infos]
            format_files = format_of(source).split_files(source["shards"])
            split_files = {
                file["path"]: read_listed(folder, file)
                for file in source["files"]
                if file["path"] not in format_files
            }
            split_files |= format_of(target).split_files(target["shards"])
            target["files"] = [describe_file(name, data) for name, data in sorted(split_files.items())]
            files |= {f"{source['split']}/{name}": data for name, data in split_files.items()}
            target["converted_from"] = {
                "path": job.source,
                "output_format": output_format_of(source),
                "fingerprint": source["fingerprint"],
            }
            manifests[f"{source['split']}/{MANIFEST}"] = with_checksum(target)
        copied = copied_files(manifest.read_manifest(job.source_folder(0)))
        publish(job, shards=shards, files=files, manifests=manifests, copied=copied)


def read_listed(folder: str, entry: Mapping[str, Any]) -> bytes:
    """Reads a file that a manifest lists. Raises DataError if it is missing or has changed."""
    path = filesystem.join(folder, entry["path"])
    if not filesystem.exists(path):
        raise DataError(f"{path}: missing; verify the dataset, and copy or prepare it again")
    data = filesystem.read_bytes(path)
    if describe_file(entry["path"], data) != entry:
        raise DataError(
            f"{path}: differs from the manifest; verify the dataset, and copy or prepare it again"
        )
    return data
