"""The verb `prepare`: turns a corpus into a dataset. Options → plan → graph → run → summary."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence

from beam_pipeline.dataset import output_folder, output_place
from beam_pipeline.dataset.lock_holder import Lock
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.runners import launching
from beam_pipeline.runners.launching import Launch
from beam_pipeline.sources.units import write_plan
from beam_pipeline.steps import graph
from beam_pipeline.steps.job import Job
from beam_pipeline.support import filesystem, memory
from beam_pipeline.support.console import print_document
from beam_pipeline.verbs.analysis import Lengths, analyze, describe_lengths
from beam_pipeline.verbs.checked_run import CheckedRun, check_run
from beam_pipeline.verbs.dry_run import print_contamination, print_dry_run, read_dry_run
from beam_pipeline.verbs.estimate import estimate
from beam_pipeline.verbs.estimate_lines import describe_estimate
from beam_pipeline.verbs.report import write_report
from beam_pipeline.verbs.results import Estimate, PreparedDataset, read_summary
from beam_pipeline.verbs.summary import print_summary
from beam_pipeline.verbs.tracking import TrackedPreparation, check_trackers, tracked
from tokenmill_reader.console.elapsed import elapsed
from tokenmill_reader.format.names import INPUTS, REPORT, TOKENIZER, TRANSFORM_FN


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        UsageError: If options, tokenizer, input and output contradict each other. Nothing is written then.
        DataError: If the input is invalid or cannot be read.
    """
    config, beam_args = parse(PrepareConfig, argv)
    if config.estimate:
        estimated = estimate_run(config, beam_args)
        if config.console.json:
            print_document(estimated.to_json())
            return
        for line in describe_estimate(estimated, config):
            print(line)
        return
    prepared = prepare(config, beam_args)
    if config.console.json:
        print_document(prepared.to_json())
    elif config.dry_run and prepared.finished:
        print_dry_run(prepared)
    elif not prepared.finished:
        print(f"{config.output} will be complete when the job is done")
    else:
        if prepared.seconds is None:
            print(f"{config.output} already contains this dataset, finished: nothing to do")
        for name, lengths in prepared.analysis.items():
            print(describe_lengths(name, lengths))
        print_contamination(prepared.output)
        print_summary(config, prepared.output, prepared.seconds)


def prepare(config: PrepareConfig, beam_args: Sequence[str]) -> PreparedDataset:
    """Makes a dataset. Prints nothing; progress is on stderr.

    Args:
        config: The options, complete.
        beam_args: Beam's options.

    Raises:
        UsageError, DataError: See `main`.
    """
    began = time.monotonic()
    launch = launching.begin("prepare", beam_args, config.output)
    check_trackers(config, launch)
    output = launch.output
    checked = check_run(config, launch)
    fingerprint = checked.fingerprint()
    output_place.refuse_overlap(
        output, config.split_names, (file.path for file in checked.planned.files), config.tokenizer
    )
    is_done, units = True, len(checked.planned.units)
    if config.dry_run:
        output_folder.refuse_dataset(output)
    with contextlib.ExitStack() as records:
        with launch.claim(config, config.split_names, fingerprint, num_units=units) as held:
            if held is not None:
                record = records.enter_context(tracked(config, output, fingerprint))
                is_done = _make(launch, held, checked, record)
        if not is_done:
            return PreparedDataset(output=output, finished=False)
        if config.dry_run:
            return read_dry_run(output)
        seconds = None if held is None else time.monotonic() - began
        analysis: dict[str, Lengths] = {}
        if any(_missing_views(config, output)):
            with launch.hold(filesystem.join(output, STAGING), fingerprint):
                analysis = _add_views(config, output)
        prepared = read_summary(output, config.split_names, seconds, analysis=analysis)
        if held is not None:
            record.totals(prepared)
        return prepared


def estimate_run(config: PrepareConfig, beam_args: Sequence[str]) -> Estimate:
    """Estimates the output and cost of a run from a sample of its input, and writes nothing.

    Raises:
        UsageError, DataError: See `main`.
    """
    launch = launching.begin("prepare", beam_args, config.output)
    checked = check_run(config, launch)
    with elapsed("preparing a sample"):
        return estimate(
            config,
            checked.planned,
            checked.tokenizer,
            template=checked.template,
            chat=checked.chat,
            infilling=checked.infilling,
            pad_id=checked.pad_id,
            threads=launch.threads,
        )


def _make(launch: Launch, held: Lock, checked: CheckedRun, record: TrackedPreparation) -> bool:
    """Runs the pipeline. Returns False if its job was only submitted, True if the dataset is finished."""
    config, tokenizer, planned = checked.config, checked.tokenizer, checked.planned
    written = "documents" if config.packing == "none" else "rows"
    stages = [("tokenize", "MB", 1e6), ("write", written, 1.0)]
    if config.dry_run:
        stages = [("read", "MB", 1e6)]
    with launch.progress(stages, planned.bytes, observe=record.progress) as address:
        job = Job(
            config=config,
            output=launch.output,
            run=held.holder.run,
            detached=launch.on_dataflow,
            fingerprint=held.holder.fingerprint,
            num_units=len(planned.units),
            input_bytes=planned.bytes,
            vocab_size=tokenizer.vocab_size,
            pad_id=checked.pad_id,
            control_ids=tokenizer.control_ids,
            template=checked.template,
            chat=checked.chat,
            infilling=checked.infilling,
            threads=launch.threads,
            units_at_once=launch.units_at_once,
            gathered_bytes=memory.bytes_to_gather(),
            progress=address,
        )
        _stage(job, checked)
        return launch.run(
            lambda pipeline: graph.build(pipeline, job),
            held_lock=held,
            wait=config.wait,
            describe_finished=job.describe_finished,
        )


def _missing_views(config: PrepareConfig, output: str) -> tuple[bool, bool]:
    """Returns whether a finished dataset lacks its report, and whether it lacks the requested analysis."""
    folders = (filesystem.join(output, name, TRANSFORM_FN) for name in config.split_names)
    models = (filesystem.join(folder, "saved_model.pb") for folder in folders)
    report = filesystem.exists(filesystem.join(output, REPORT))
    return not report, config.analyze and not all(map(filesystem.exists, models))


def _add_views(config: PrepareConfig, output: str) -> dict[str, Lengths]:
    """Adds the views that a finished dataset lacks. Needs the lock. Returns what the analysis has determined."""
    lacks_report, lacks_analysis = _missing_views(config, output)
    if lacks_report:
        write_report(output)
    return dict(analyze(output)) if lacks_analysis else {}


def _stage(job: Job, checked: CheckedRun) -> None:
    """Writes the files that workers read: the tokenizer, the plan and the run's description."""
    files = checked.tokenizer.files
    if not job.config.dry_run:
        job.write_recorded("tokenizer", {f"{TOKENIZER}/{name}": data for name, data in files.items()})
        job.write_recorded("inputs", {INPUTS: checked.inputs})
    write_plan(job.plan_path, checked.planned.units)
    if checked.ngram_index is not None:
        filesystem.write_bytes(job.ngram_index_path, checked.ngram_index)
    filesystem.write_bytes(job.description_path, json.dumps(checked.describe()).encode())
