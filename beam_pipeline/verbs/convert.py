"""The verb `convert`: copies a finished dataset to shards of another format, without tokenizing again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from beam_pipeline.dataset import output_place, removed_documents
from beam_pipeline.dataset.lock_holder import Lock
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.formats.choice import format_class, format_of
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.dataset_options import ConvertConfig
from beam_pipeline.options.option_values import check_record_columns
from beam_pipeline.runners import launching
from beam_pipeline.runners.launching import Launch
from beam_pipeline.steps.convert import (
    CommitConversion,
    ConvertJob,
    ConvertShard,
    converted_manifest,
    copy_removed,
    list_source_shards,
    read_listed,
)
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.console import print_document
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.support.pipelines import AsIter
from beam_pipeline.verbs.report import write_report
from beam_pipeline.verbs.results import PreparedDataset, read_summary
from beam_pipeline.views.reading import FinishedSplit, open_dataset
from tokenmill_reader.format.inputs import inputs_entry
from tokenmill_reader.format.manifest import output_format_of
from tokenmill_reader.format.names import DOCUMENT_FORMATS, INPUTS, MANIFEST, REPORT, ROW_FORMATS, TOKENIZER


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        UsageError: If options, dataset and output contradict each other. Nothing is written then.
        DataError: If the folder is not a finished dataset, or it is damaged.
    """
    began = time.monotonic()
    config, beam_args = parse(ConvertConfig, argv)
    launch = launching.begin("convert", beam_args, config.output)
    source = filesystem.absolute(config.dataset)
    splits = _check(config, source, launch)
    names = tuple(split.name for split in splits)
    fingerprint = converted_manifest(splits[0].manifest, config.format_options())["fingerprint"]
    is_done = True
    with launch.claim(config, names, fingerprint) as held:
        if held is not None:
            is_done = _make(launch, held, config, source, splits)
    if not is_done:
        if config.console.json:
            print_document(PreparedDataset(output=launch.output, finished=False).to_json())
        else:
            print(f"{config.output} will be complete when the job is done")
        return
    if held is None and not config.console.json:
        print(f"{config.output} already contains this dataset, finished: nothing to do")
    if not filesystem.exists(filesystem.join(launch.output, REPORT)):
        with launch.hold(filesystem.join(launch.output, STAGING), fingerprint):
            write_report(launch.output)
    if config.console.json:
        seconds = None if held is None else time.monotonic() - began
        print_document(read_summary(launch.output, names, seconds).to_json())
        return
    for split in splits:
        shards = counted(len(split.manifest["shards"]), "shard")
        has_documents = split.manifest["max_length"] is None
        records = counted(split.manifest["num_records"], "document" if has_documents else "row")
        print(f"{split.name}: {records}, {shards} of {config.output_format}")


def _check(config: ConvertConfig, source: str, launch: Launch) -> list[FinishedSplit]:
    """Opens the dataset. Raises the errors of `main`."""
    if filesystem.exists(filesystem.join(source, MANIFEST)):
        raise UsageError(f"{config.dataset}: is one split; give the dataset's folder, which is above it")
    splits = open_dataset(source)
    for split in splits:
        source_format = output_format_of(split.manifest)
        if converted_manifest(split.manifest, config.format_options())["config"] == split.manifest["config"]:
            raise UsageError(f"{config.dataset}: already has the format {source_format}; copy the folder")
        has_documents = split.manifest["max_length"] is None
        if config.output_format not in (DOCUMENT_FORMATS if has_documents else ROW_FORMATS):
            raise UsageError(
                f"{config.dataset}: --output_format {config.output_format}: a dataset of rows cannot become one of "
                "documents, nor the reverse; prepare it with that format"
            )
        if columns := split.manifest.get("record_columns"):
            check_record_columns(
                columns,
                f"{config.dataset}: has the columns {', '.join(columns)} of records",
                output_format=config.output_format,
                has_documents=has_documents,
                ids_column=config.ids_column,
            )
        target_format = format_class(config.output_format, of_documents=has_documents)
        target_format.check_packages()
        largest = max((shard["records"] for shard in split.manifest["shards"]), default=0)
        try:
            format_of(converted_manifest(split.manifest, config.format_options())).check_records(largest)
        except UsageError as error:
            raise UsageError(f"{split.folder}: {error}, when you prepare it") from error
        if split.manifest["fingerprint"] != splits[0].manifest["fingerprint"]:
            raise DataError(
                f"{split.folder}: made by another run than {splits[0].folder}; verify the dataset"
            )
    names = [split.name for split in splits]
    if not launch.sees_local_files and filesystem.is_local(source):
        raise UsageError(f"{config.dataset} is on this machine, so the runner's workers cannot read it")
    inputs = [filesystem.join(split.folder, MANIFEST) for split in splits]
    tokenizer = filesystem.join(splits[0].tokenizer_folder, "tokenizer.json")
    output_place.refuse_overlap(launch.output, names, [*inputs, tokenizer])
    return splits


def _make(
    launch: Launch, held: Lock, config: ConvertConfig, source: str, splits: Sequence[FinishedSplit]
) -> bool:
    """Runs the pipeline. Returns False if its job was only submitted, True if the dataset is finished."""
    rows = sum(split.manifest["num_records"] for split in splits)
    records = "rows" if splits[0].manifest["max_length"] else "documents"
    with launch.progress([("convert", records, 1.0)], rows) as address:
        job = ConvertJob(
            output=launch.output,
            run=held.holder.run,
            detached=launch.on_dataflow,
            fingerprint=held.holder.fingerprint,
            progress=address,
            source=source,
            format_options=config.format_options(),
            names=tuple(split.name for split in splits),
        )
        folder, files = splits[0].tokenizer_folder, splits[0].manifest["tokenizer"]["files"]
        inputs = inputs_entry(splits[0].manifest)
        job.write_recorded("inputs", {INPUTS: read_listed(source, inputs)})
        job.write_recorded(
            "tokenizer",
            {f"{TOKENIZER}/{file['path']}": read_listed(folder, file) for file in files},
        )
        return launch.run(
            lambda pipeline: build(pipeline, job),
            held_lock=held,
            wait=config.wait,
            describe_finished=job.describe_finished,
        )


def build(pipeline: beam.Pipeline, job: ConvertJob) -> None:
    """Adds the steps: each shard is converted on its own, as are the lists of removed documents copied, and then the
    manifests are written.
    """
    shards = (
        pipeline
        | "Splits" >> beam.Create(range(len(job.names)))
        | "ListShards" >> beam.FlatMap(list_source_shards, job)
        | "SpreadShards" >> beam.Reshuffle()
        | "ConvertShards" >> beam.ParDo(ConvertShard(job))
    )
    removed = (
        pipeline
        | "RemovedFolder" >> beam.Create([filesystem.join(job.source, removed_documents.FOLDER)])
        | "ListRemoved" >> beam.FlatMap(filesystem.list_folder)
        | "SpreadRemoved" >> beam.Reshuffle()
        | "CopyRemoved" >> beam.Map(copy_removed, job)
    )
    _ = (
        pipeline
        | "Once" >> beam.Create([None])
        | "Commit" >> beam.ParDo(CommitConversion(job), AsIter(shards), AsIter(removed))
    )
