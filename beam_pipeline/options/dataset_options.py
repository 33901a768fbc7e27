"""The options of the verbs that read a finished dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from beam_pipeline.options.console_options import ConsoleConfig
from beam_pipeline.options.option_fields import Options, option
from beam_pipeline.options.option_values import (
    FORMAT_DEFAULTS,
    check_ids_column,
    parse_record,
    refuse_overwrite_and_resume,
)
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format.json_form import COUNT


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(Options):
    """Copies a finished dataset to another format, without tokenizing again.

    The result is what prepare would have written with this --output_format.

    Examples:
        tokenmill convert dataset --output_format parquet --output dataset-parquet
        tokenmill convert gs://bucket/dataset --output_format tfrecord --output gs://bucket/tfrecords

    Any other option is passed to Beam, e.g. --runner DataflowRunner. Without --runner, this process runs the
    pipeline.
    """

    verb: ClassVar[str] = "convert"
    takes_beam_options: ClassVar[bool] = True

    dataset: str = option(positional=True, metavar="DATASET")
    """Folder of the dataset."""
    output_format: Literal["tfrecord", "arrayrecord", "parquet", "mds", "megatron"] = option(topic="output")
    """Format of the new shards, as in prepare. A dataset of rows cannot become one of documents, or the reverse."""
    ids_column: str = option("input_ids", metavar="NAME")
    """With --output_format mds: name of the column of token ids, as in prepare."""
    output: str = option(metavar="OUT")
    """Folder for the new dataset, local or gs://."""
    overwrite: bool = option(False)
    """Replace the dataset in OUT. Files that were not written by a run are kept."""
    resume: bool = option(False)
    """Continue an earlier run with the same options: keep the shards that it finished in OUT."""
    wait: bool = option(False, topic="running", default_text="return when the job is submitted")
    """Dataflow: follow the job to its end."""
    console: ConsoleConfig = option(ConsoleConfig())

    def __post_init__(self) -> None:
        refuse_overwrite_and_resume(overwrite=self.overwrite, resume=self.resume)
        check_ids_column(self.ids_column, self.output_format)

    def format_options(self) -> dict[str, str]:
        """Returns the options of the new format, as in a manifest."""
        values = {name: getattr(self, name) for name in FORMAT_DEFAULTS}
        return {name: value for name, value in values.items() if value != FORMAT_DEFAULTS[name]}


@dataclass(frozen=True, kw_only=True)
class FinishedDatasetConfig(Options):
    dataset: str = option(positional=True, metavar="OUT")
    """Folder of the dataset, or of one split."""
    console: ConsoleConfig = option(ConsoleConfig())


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(FinishedDatasetConfig):
    """Checks that every split of a dataset is complete and undamaged.

    If any of Beam's options is given, e.g. --runner DataflowRunner, a Beam pipeline reads the shards. Otherwise,
    this machine reads them, on all cores if the dataset is large.
    """

    verb: ClassVar[str] = "verify"
    takes_beam_options: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class InspectConfig(FinishedDatasetConfig):
    """Shows a summary of a dataset, a record with its origin, records with a text, or removed documents.

    Examples:
        tokenmill inspect dataset
        tokenmill inspect dataset --record train:17:42 --tokens
        tokenmill inspect dataset --grep 'some text' --ignore_case
        tokenmill inspect clean --removed gopher --most 5
    """

    verb: ClassVar[str] = "inspect"

    record: tuple[str, int, int] | None = option(
        None, metavar="SPLIT:SHARD:RECORD", exclusive="shown", parse=parse_record
    )
    """Decode this record (train:17:42) and name its source."""
    grep: str | None = option(None, metavar="TEXT", exclusive="shown")
    """Find the records whose decoded text contains TEXT."""
    removed: str | None = option(None, metavar="RULE", exclusive="shown")
    """Show how many documents this rule removed and why, with samples, whose text is read again from the source. all is
    every rule."""
    tokens: bool = option(False, needs="record")
    """With --record: show every token with its position and id."""
    trace: Literal["auto", "always", "never"] = "auto"
    """With --record: reread the source to name the exact documents. auto does so if it takes only seconds."""
    regex: bool = option(False, needs="grep")
    """With --grep: TEXT is a regular expression (Python's re)."""
    ignore_case: bool = option(False, needs="grep")
    """With --grep: ignore case."""
    most: int = option(20, metavar="N", bounds=(1, COUNT[-1]))
    """With --grep: stop after N records. With --removed: the number of samples."""

    def __post_init__(self) -> None:
        if self.grep == "":
            raise UsageError("--grep: the text to find is empty")
        try:
            re.compile(self.grep if self.regex else "")
        except re.error as error:
            raise UsageError(f"--grep {self.grep!r}: is not a regular expression: {error}") from error


@dataclass(frozen=True, kw_only=True)
class BrowseConfig(FinishedDatasetConfig):
    """Shows a dataset's rows and documents in a web browser, on this machine only, until Ctrl-C.

    Examples:
        tokenmill browse dataset
        tokenmill browse gs://bucket/dataset --port 8765 --no_open
    """

    verb: ClassVar[str] = "browse"

    port: int | None = option(None, metavar="N", bounds=(1, 65535), default_text="any free port")
    """Port of 127.0.0.1 at which the pages are."""
    no_open: bool = False
    """Only print the address, even if a browser could be opened."""


@dataclass(frozen=True, kw_only=True)
class AnalyzeConfig(FinishedDatasetConfig):
    """Runs tensorflow-transform on a dataset's statistics: OUT/*/transform_fn."""

    verb: ClassVar[str] = "analyze"


@dataclass(frozen=True, kw_only=True)
class ReportConfig(FinishedDatasetConfig):
    """Writes OUT/report.html, a page with a dataset's figures and some of its rows."""

    verb: ClassVar[str] = "report"
