"""A dataset from the documents of any Beam pipeline: they become files, and the steps of `prepare` do the rest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.dataset import lock, output_folder, output_place
from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.dataset.own_files import inspect_output
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.options.from_python import completed
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.options.verbs import PrepareConfig
from beam_pipeline.runners.launching import Launch
from beam_pipeline.sources.cutting import InputFile
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.sources.units import WorkUnit, write_plan
from beam_pipeline.steps import graph
from beam_pipeline.steps.commit import DOCUMENT_UNITS
from beam_pipeline.steps.documents import DOCUMENT_FILE, FORMAT, GroupDocuments, file_name
from beam_pipeline.steps.job import Job
from beam_pipeline.support import filesystem, memory
from beam_pipeline.support.errors import DataError, LockLost, UsageError, UserError, user_message
from beam_pipeline.verbs.checked_run import CheckedRun, check_run
from beam_pipeline.verbs.report import write_report
from beam_pipeline.verbs.results import PreparedDataset, read_summary
from tokenmill_reader.format.limits import MOST_SHARDS
from tokenmill_reader.format.manifest import fingerprint_of
from tokenmill_reader.format.names import INPUTS, MANIFEST, TOKENIZER

_REFUSED = (
    *("input", "estimate", "prices", "resume", "wait", "analyze", "skip_memory_check", "track"),
    *("loss_on", "chat_template", "chat_date", "overlong"),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Plan:
    """What is known of a dataset before its documents."""

    checked: CheckedRun
    job: Job
    folder: str
    """The folder of the documents."""

    def write(self, units: list[WorkUnit]) -> Iterator[WorkUnit]:
        """Writes the plan and the description of the run, and then yields the units."""
        units = sorted(units, key=lambda unit: unit.index)
        files = tuple(InputFile(unit.root + unit.parts[0].name, unit.bytes, FORMAT) for unit in units)
        planned = InputPlan(f"{self.folder}/", files, tuple(units), self.job.config.input)
        checked = replace(self.checked, planned=planned)
        run = checked.describe()
        run["config"][DOCUMENT_UNITS] = len(units)
        run["fingerprint"] = fingerprint_of(
            run["bytes_version"], run["config"], run["inputs"], run["tokenizer"]
        )
        job = self.job
        job.check_lock()
        job.write_recorded("inputs", {INPUTS: checked.inputs})
        write_plan(job.plan_path, units)
        filesystem.write_bytes(job.description_path, json.dumps(run).encode())
        yield from units


class WriteDataset(beam.PTransform):
    """Documents, as pairs of a key and a text → a dataset, as `tokenmill prepare` writes it.

        with WriteDataset(documents="out/documents", units=64, tokenizer="tokenizer", output="out/dataset") as write:
            with beam.Pipeline() as pipeline:
                rows = pipeline | beam.io.ReadFromBigQuery(query=QUERY)
                rows | beam.Map(lambda row: (row["id"], row["body"])) | write
        write.dataset  # the summary

    Guarantees:

    - Each document is in the dataset exactly once, or counted as excluded. Two documents with one key are an error.
    - The same set of documents gives the same bytes: for any order, runner, bundles, number of workers, and retries.
    - The folder gets a whole dataset or none: the manifests are written last. `tokenmill verify` then finds no defect.
    - Text cannot forge control tokens, unless `parse_special_tokens` allows it.

    The documents are first grouped into JSON-lines files, by a hash of their keys, and sorted. The dataset's rows are
    made from these files, which it names as its input: `tokenmill inspect` needs them to trace a row to its document,
    whose key is in the line that it names.

    The context holds the lock of the output folder. At its end, the pipeline must have ended. If it failed before the
    dataset was finished, the context deletes the run's files, and raises a `DataError` if a user can fix the cause.
    """

    def __init__(
        self,
        *,
        documents: str,
        units: int,
        tokenizer: str,
        output: str,
        pipeline_options: PipelineOptions | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            documents: Folder for the files of the documents, outside of `output`.
            units: The number of files, each of which one worker sorts in its memory, and tokenizes. It affects the
                bytes. About 30 MB of text per unit is a good size, and each core needs a few units.
            tokenizer: Folder of a tokenizer, or its name on the hub.
            output: Folder for the dataset.
            pipeline_options: Those of the pipeline; they configure the access to remote file systems here.
            options: Other options of `PrepareConfig`, except those about the input, `resume`, `analyze` and `wait`.

        Raises:
            UsageError: If an option is invalid.
        """
        super().__init__()
        if refused := [name for name in _REFUSED if name in options]:
            raise UsageError(f"{refused[0]}: does not apply to the documents of a pipeline; omit it")
        if type(units) is not int or not 1 <= units <= MOST_SHARDS:
            raise UsageError(f"units={units!r:.80}: must be an int from 1 to {MOST_SHARDS}")
        self._beam_options = pipeline_options or PipelineOptions([])
        filesystem.configure(self._beam_options)
        self._folder, self._units = filesystem.absolute(documents), units
        source = InputConfig(
            input=(filesystem.join(self._folder, "*.jsonl"),), input_format="jsonl", document="line"
        )
        try:
            config = PrepareConfig(input=source, tokenizer=tokenizer, output=output, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{error}; the options are the fields of PrepareConfig") from error
        self._config = completed(config)
        self._exit_stack = contextlib.ExitStack()
        self._plan: _Plan | None = None
        self._start_time = 0.0
        self._dataset: PreparedDataset | None = None

    @property
    def dataset(self) -> PreparedDataset:
        """The summary of the dataset, after the context has ended.

        Raises:
            UsageError: If it has not.
        """
        if self._dataset is None:
            raise UsageError("the dataset is not finished: read its summary after the `with` block")
        return self._dataset

    def __enter__(self) -> WriteDataset:
        """Takes the lock of the output folder, and checks all that can be checked before the documents are read.

        Raises:
            UsageError: If options, tokenizer and folders contradict each other, or the output has another dataset.
        """
        config, folder = self._config, self._folder
        self._start_time = time.monotonic()
        launch = Launch("prepare", self._beam_options, filesystem.absolute(config.output))
        output_place.check_place(launch.output)
        output_place.check_place(folder, "documents")
        checked = check_run(config, launch, InputPlan(f"{folder}/", (), (), config.input))
        _refuse_nested(folder, launch.output)
        output_place.refuse_overlap(launch.output, config.split_names, (), config.tokenizer)
        with contextlib.ExitStack() as stack:
            key = json.dumps([checked.describe(), folder, self._units], sort_keys=True)
            fingerprint = hashlib.sha256(key.encode()).hexdigest()
            held = stack.enter_context(launch.hold(filesystem.join(launch.output, STAGING), fingerprint))
            output_folder.claim(
                launch.output, config.split_names, fingerprint, overwrite=config.overwrite, resume=False
            )
            self._claim_documents()
            self._plan = _Plan(checked, self._job(checked, launch, held), folder)
            files = {f"{TOKENIZER}/{name}": data for name, data in checked.tokenizer.files.items()}
            self._plan.job.write_recorded("tokenizer", files)
            self._held, self._exit_stack = held, stack.pop_all()
        return self

    def expand(self, documents: beam.PCollection) -> None:
        """Adds the steps.

        Raises:
            UsageError: If the `with` block has not begun.
        """
        if self._plan is None:
            raise UsageError("use WriteDataset in a `with` block, which contains the whole pipeline")
        plan = self._plan
        units = (
            documents
            | "GroupDocuments" >> GroupDocuments(self._folder, self._units)
            | "ListUnits" >> beam.combiners.ToList()
            | "WritePlan" >> beam.FlatMap(plan.write).with_output_types(WorkUnit)
        )
        graph.build_from_units(units, plan.job)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        plan, self._plan = self._plan, None
        with self._exit_stack:
            if self._is_finished(plan):
                write_report(plan.job.output)
                seconds = time.monotonic() - self._start_time
                self._dataset = read_summary(plan.job.output, self._config.split_names, seconds)
            else:
                self._delete_files(plan.job.output)
        if error is None and self._dataset is None:
            raise UsageError(
                f"{plan.job.output}: the pipeline has not written it; run the pipeline, and wait for its end, in the "
                "`with` block"
            )
        message = user_message(error) if isinstance(error, Exception) else None
        if message is not None and not isinstance(error, UserError):
            raise DataError(message) from error

    def _claim_documents(self) -> None:
        """Checks that the folder of the documents has no files, or deletes those of an earlier run.

        Raises:
            UsageError: If it has files that are not to be replaced.
        """
        paths = filesystem.list_folder(self._folder)
        foreign = [path for path in paths if not self._is_own(path)]
        if paths and (foreign or not self._config.overwrite):
            remedy = "choose an empty folder"
            if not foreign:
                remedy += ", or use overwrite=True, which replaces these files"
            raise UsageError(f"documents={self._folder}: contains {(foreign or paths)[0]}; {remedy}")
        filesystem.delete(paths)

    def _is_own(self, path: str) -> bool:
        """Returns whether a path below the folder of the documents is one that this run writes."""
        name = path[len(self._folder) :].lstrip("/")
        match = DOCUMENT_FILE.fullmatch(name)
        return match is not None and file_name(int(match[2]), self._units) == match[1]

    def _job(self, checked: CheckedRun, launch: Launch, held: lock.Lock) -> Job:
        return Job(
            config=self._config,
            output=launch.output,
            run=held.holder.run,
            detached=False,
            fingerprint=held.holder.fingerprint,
            progress=None,
            num_units=self._units,
            input_bytes=self._units * InputConfig.unit_bytes,  # unknown until the documents are grouped
            vocab_size=checked.tokenizer.vocab_size,
            pad_id=checked.pad_id,
            control_ids=checked.tokenizer.control_ids,
            template=checked.template,
            threads=launch.threads,
            units_at_once=1,
            gathered_bytes=memory.bytes_to_gather(),
        )

    def _is_finished(self, plan: _Plan) -> bool:
        """Returns whether this run has finished the dataset. Raises LockLost if another run writes there."""
        self._held.check()
        folders = [plan.job.split_folder(split) for split in range(len(self._config.splits))]
        return all(filesystem.exists(filesystem.join(folder, MANIFEST)) for folder in folders) and all(
            read_manifest(folder)["config"].get(DOCUMENT_UNITS) == self._units for folder in folders
        )

    def _delete_files(self, output: str) -> None:
        """Deletes the files of a failed run. Logs a failure without masking the original error."""
        try:
            self._held.check()
            output_folder.delete_own_files(inspect_output(output))
            filesystem.delete(filter(self._is_own, filesystem.list_folder(self._folder)))
            filesystem.remove_empty(self._folder)
        except LockLost:
            return  # the files may belong to another run
        except OSError as error:
            _log.warning("cannot clean up after the failed run: %s", error)


def _refuse_nested(documents: str, output: str) -> None:
    """Raises UsageError if one of the folders is inside the other, or is the other."""
    places = [
        f"{os.path.realpath(folder) if filesystem.is_local(folder) else folder}/"
        for folder in (documents, output)
    ]
    if places[0].startswith(places[1]) or places[1].startswith(places[0]):
        raise UsageError(
            f"documents={documents}: must be neither inside of output={output} nor around it; choose another folder"
        )
