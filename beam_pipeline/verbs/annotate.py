"""The verb `annotate`: measures documents once, for `prepare --keep`. Options → plan → measure → record → summary."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace

from beam_pipeline.curation.filters import check_filters, files_identity
from beam_pipeline.dataset import attribute_files
from beam_pipeline.dataset.attribute_files import plan_digest, read_record
from beam_pipeline.dataset.output_folder import clear_staging
from beam_pipeline.dataset.output_place import refuse_overlap
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.options.annotate_options import AnnotateConfig
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.runners import launching
from beam_pipeline.sources.reading import check_columns
from beam_pipeline.sources.units import write_plan
from beam_pipeline.steps import annotate as steps
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.console import print_document
from beam_pipeline.verbs.results import AnnotatedCorpus

# Part of every fingerprint. Raise it with every change to the code that changes an attribute.
_VERSION = 1


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        UsageError: If options, input and output contradict each other. This is found before long work starts.
        DataError: If the input cannot be read, or a function fails.
    """
    config, beam_args = parse(AnnotateConfig, argv)
    result = annotate(config, beam_args)
    if config.console.json:
        print_document(result.to_json())
    elif result.seconds is None:
        print(f"{config.output} already contains these attributes: nothing to do")
    else:
        print(f"{counted(result.documents, 'document')} annotated in {result.seconds:.1f} s: {result.output}")
        print(f"attributes: {', '.join(result.columns)}")


def annotate(config: AnnotateConfig, beam_args: Sequence[str]) -> AnnotatedCorpus:
    """Measures the documents. Prints nothing; progress is on stderr.

    Raises:
        UsageError, DataError: See `main`.
    """
    began = time.monotonic()
    launch = launching.begin("annotate", beam_args, config.output)
    check_filters(config.curation, measures_only=True)
    planned = launch.plan(config.input, skip_bad=True)
    config = replace(config, input=planned.config)
    if config.keep_columns and planned.units:
        check_columns(planned.units[0], config.keep_columns)
    digest = plan_digest(planned.units)
    parts = [_VERSION, config.identity(), files_identity(config.curation), digest]
    fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    refuse_overlap(launch.output, (), (file.path for file in planned.files))
    with launch.hold(filesystem.join(launch.output, STAGING), fingerprint) as held:
        is_kept = attribute_files.claim(
            launch.output, fingerprint, overwrite=config.overwrite, resume=config.resume
        )
        if not is_kept:
            with launch.progress([("annotate", "MB", 1e6)], planned.bytes) as address:
                job = steps.AnnotateJob(
                    config=config,
                    output=launch.output,
                    run=held.holder.run,
                    detached=launch.on_dataflow,
                    fingerprint=fingerprint,
                    plan=digest,
                    num_units=len(planned.units),
                    progress=address,
                )
                write_plan(job.plan_path, planned.units)
                try:
                    launch.run(lambda pipeline: steps.build(pipeline, job), held_lock=held)
                finally:
                    if not held.kept:
                        clear_staging(launch.output, fingerprint)
    record = read_record(launch.output)
    return AnnotatedCorpus(
        output=launch.output,
        documents=record["documents"],
        units=record["units"],
        columns=record["columns"],
        seconds=None if is_kept else time.monotonic() - began,
    )
