"""What verbs return: frozen values, which a command line prints and a notebook shows as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from beam_pipeline.dataset import manifest
from beam_pipeline.support import filesystem
from tokenmill_reader.format.names import REPORT

if TYPE_CHECKING:  # Beam takes seconds to import
    from beam_pipeline.verbs.analysis import Lengths
    from beam_pipeline.views.round_trip import RoundTrip
    from tokenmill_reader.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """The figures of a split, from its manifest."""

    documents: int
    bytes: int
    """Bytes of the documents' text, in UTF-8."""
    tokens: int
    rows: int
    padding: int
    """Positions of rows without a token."""
    max_length: int | None
    """Tokens per row; None if the records are documents."""
    shards: int
    targets: int | None = None
    """Tokens that are targets of the loss, of conversations; None if all are."""

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> SplitSummary:
        """Returns the figures of a manifest."""
        return cls(**content["totals"], max_length=content["max_length"], shards=len(content["shards"]))


@dataclass(frozen=True, kw_only=True)
class PreparedDataset:
    """A dataset that `prepare` or `convert` has made, or has submitted a job for."""

    output: str
    """The dataset's folder, absolute."""
    finished: bool
    """False if a job on Dataflow will finish the dataset. The fields below are empty then."""
    report: str | None = None
    """The page with the dataset's figures."""
    seconds: float | None = None
    """Duration of the run; None if the dataset was already finished."""
    splits: Mapping[str, SplitSummary] = field(default_factory=dict)
    excluded: Mapping[str, int] = field(default_factory=dict)
    """The number of records, and of those that did not become documents, by the reason."""
    edited: Mapping[str, int] = field(default_factory=dict)
    """The number of documents that stay without the passages that rules remove, by the combination of rules."""
    engines: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The libraries that encoded the documents, as in the manifest."""
    analysis: Mapping[str, Lengths] = field(default_factory=dict, repr=False)
    """The lengths of the documents of each split, if the run has added the analysis."""

    def open(self, split: str = "train", **options: Any) -> Dataset:
        """Opens a split for reading. Options are those of `tokenmill_reader.Dataset.open`."""
        from tokenmill_reader.dataset import Dataset

        return Dataset.open(filesystem.join(self.output, split), **options)

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values."""
        if not self.finished:
            return {"output": self.output, "finished": False}
        values = asdict(self) | {"engines": list(self.engines)}
        if not self.analysis:
            del values["analysis"]
        return values

    def _repr_html_(self) -> str:
        if not self.finished:
            return f"<p>{escape(self.output)} will be complete when the job is done</p>"
        rows = [[name, *asdict(split).values()] for name, split in self.splits.items()]
        header = ["split", *SplitSummary.__dataclass_fields__]
        return _table(self.output, header, rows)


@dataclass(frozen=True, kw_only=True)
class EstimatedSplit:
    """The estimated figures of a split."""

    tokens: int
    rows: int
    shards: int
    bytes: int
    """Size of the shards."""


@dataclass(frozen=True, kw_only=True)
class MachineCost:
    """What a run takes on this machine."""

    seconds: float
    memory_bytes: int
    staged_bytes: int
    """Bytes in the output folder while the run lasts, besides the shards."""


@dataclass(frozen=True, kw_only=True)
class DataflowCost:
    """What a run takes on Dataflow."""

    vcpu_hours: float
    shuffled_bytes: int
    dollars: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What `prepare` would make and take, estimated from a sample. It has filters, but does not compare documents.

    An `…_error` is a standard error as a share of the value, 0 if the sample is the whole input.
    """

    input_bytes: int
    sample_bytes: int
    """Bytes of text in the sample."""
    places: int
    """The number of places of the input in the sample."""
    documents: int
    tokens: int
    bytes: int
    """Size of the shards of all splits."""
    document_error: float
    token_error: float
    second_error: float
    longest_document_bytes: int
    """Bytes of UTF-8 of the longest document in the sample."""
    removed_share: float
    """The share of the documents that --filter and --keep remove."""
    filter_seconds: float
    """CPU seconds of all filters, in all passes over the input. They are part of this machine's."""
    splits: Mapping[str, EstimatedSplit]
    max_length: int | None
    """Tokens in a row; None if rows are whole documents."""
    vocab_size: int
    this_machine: MachineCost
    dataflow: DataflowCost
    has_beginnings: bool
    """Whether a part of the sample is beginnings of files or row groups: the rest can differ, so errors are unknown."""
    has_one_place: bool
    """Whether the sample is a part of the input from a single place, so errors are unknown."""

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as JSON values. An error that is unknown is null."""
        values = asdict(self)
        if values.pop("has_beginnings") | values.pop("has_one_place"):
            values |= dict.fromkeys(("document_error", "token_error", "second_error"))
        return values


@dataclass(frozen=True, kw_only=True)
class AnnotatedCorpus:
    """The attributes of a corpus that `annotate` has measured."""

    output: str
    """The folder of the attributes, absolute: `attributes.json`, and a parquet file per work unit."""
    documents: int
    units: int
    """The number of work units."""
    columns: dict[str, str]
    """The type of each attribute."""
    seconds: float | None
    """None if an earlier run had measured them."""

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True, kw_only=True)
class TrainedTokenizer:
    """A tokenizer that `train_tokenizer` has trained. The figures are None if an earlier run had trained it."""

    output: str
    """The tokenizer's folder, absolute."""
    seconds: float | None = None
    url: str | None = None
    """The commit on the hub, if it was pushed there."""
    vocab_size: int | None = None
    documents: int | None = None
    """The number of documents that it was trained on."""
    text_bytes: int | None = None
    """Their size in UTF-8."""
    input_bytes: int | None = None
    bytes_per_token: float | None = None
    round_trip: RoundTrip | None = field(default=None, repr=False)
    """What the tokenizer keeps of documents of the sample."""

    def to_json(self) -> dict[str, Any]:
        """Returns the summary as JSON values."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if self.round_trip is None:
            return {key: values[key] for key in ("output", "seconds", "url")}
        return values | {"round_trip": self.round_trip.to_json()}

    def _repr_html_(self) -> str:
        values = self.to_json()
        del values["output"]
        values.pop("round_trip", None)
        return _table(self.output, list(values), [values.values()])


@dataclass(frozen=True, kw_only=True)
class CheckedFolder:
    """The findings in the folder of a split, or of a dataset."""

    folder: str
    defects: tuple[str, ...]
    """A sentence for each defect."""
    notes: tuple[str, ...]
    """Sentences about what is no defect."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `verify`. As a bool, whether the dataset is whole."""

    dataset: str
    """The folder, absolute."""
    folders: tuple[CheckedFolder, ...]

    @property
    def defects(self) -> tuple[str, ...]:
        """All defects, as a sentence each."""
        return tuple(defect for folder in self.folders for defect in folder.defects)

    def __bool__(self) -> bool:
        return not self.defects

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values."""
        return {
            "dataset": self.dataset,
            "defects": len(self.defects),
            "folders": [asdict(folder) for folder in self.folders],
        }

    def _repr_html_(self) -> str:
        rows = [
            [folder.folder, "whole" if not folder.defects else "\n".join(folder.defects)]
            for folder in self.folders
        ]
        return _table(self.dataset, ["folder", "state"], rows)


def read_summary(
    output: str,
    splits: Iterable[str],
    seconds: float | None,
    *,
    analysis: Mapping[str, Lengths] = MappingProxyType({}),
) -> PreparedDataset:
    """Returns the summary of a finished dataset.

    Args:
        output: The dataset's folder, absolute.
        splits: The names of its splits; at least one.
        seconds: The duration of the run; None if the dataset was already finished.
        analysis: See `PreparedDataset`.

    Raises:
        DataError: If a manifest is missing or damaged.
    """
    summaries = {}
    for name in splits:
        content = manifest.read_manifest(filesystem.join(output, name))
        summaries[name] = SplitSummary.read(content)
    return PreparedDataset(
        output=output,
        finished=True,
        report=filesystem.join(output, REPORT),
        seconds=None if seconds is None else round(seconds, 3),
        splits=summaries,
        excluded=content["excluded"],
        edited=content.get("edited", {}),
        engines=tuple(content["engines"]),
        analysis=dict(analysis),
    )


def _table(caption: str, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns an HTML table. Everything in it is escaped."""

    def cells(tag: str, values: Iterable[Any]) -> str:
        shown = (f"{value:,}" if isinstance(value, int | float) else str(value) for value in values)
        return "".join(f"<{tag}>{escape(value)}</{tag}>" for value in shown)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><tr>{cells('th', header)}</tr>{body}</table>"
