"""The counted words of a corpus, and a small sample of its documents: Beam counts, and the launcher reads the result.

Each worker counts the words of the units of a bundle together, and passes them on at its end, or when they take too
much memory. A shuffle by the word's hash adds up the counts, so they are exact. They depend neither on the bundles
nor on the runner. The words are stored in a file for each bucket of hashes.

Costs for 10 TB of text: a unit of 32 MiB sends some 5 MB of words, 1.5 TB in total if each unit is a bundle of its
own. 4096 buckets get 0.4 GB each, and have some 10 MB of different words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.native.word_counts import binary_array, integer_array
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.reading import describe, read_unit
from beam_pipeline.sources.units import WorkUnit, read_plan
from beam_pipeline.support import filesystem
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.grouping import indices_by_key
from beam_pipeline.support.hashing import place_hashes
from beam_pipeline.support.pipelines import Metrics, TaggedOutput
from beam_pipeline.support.progress import Address, Reporter, UnitProgress
from beam_pipeline.tokenization.word_counts import SCHEMA, WordCounter, merge, no_words

WORDS, SAMPLES = "words", "samples"

# The memory of the words that a worker counts before it passes them on.
_COUNTED_BYTES = 128 << 20

_BYTES_PER_BUCKET = 256 << 20
_MAX_BUCKETS = 4096

# The size of the sample, in which a document has at most so many characters.
_SAMPLED_BYTES = 2 << 20
_SAMPLED_CHARS = 256 << 10
# The largest number of its files, for any number of work units.
_MAX_SAMPLE_FILES = 64

_SAMPLE_FILE = re.compile(r"/sample-\d+\.arrow$")
_WORDS_FILE = re.compile(r"/words-\d+\.arrow$")
_SAMPLE_SCHEMA = pa.schema([("text", pa.large_binary()), ("chosen", pa.int64())])


@dataclass(frozen=True)
class CountJob:
    """The configuration of a counting run, for its workers."""

    folder: str
    """Folder for the files of words and of the sample."""
    plan_path: str
    """File of the work units, one JSON line each."""
    num_units: int
    input_bytes: int
    """Approximate size of the text to read."""
    model: str
    """The kind of tokenizer, which determines what a word is."""
    normalize: bool
    lowercase: bool
    """See `WordCounter`."""
    seed: int
    """Determines which documents are sampled."""
    read_options: InputConfig
    """Options that determine how records become documents."""
    skip_bad: bool
    """Whether to skip records that are not documents, instead of failing."""
    progress: Address | None
    """Address to which workers report their progress; None if the run is not local."""

    @property
    def num_buckets(self) -> int:
        return max(1, min(_MAX_BUCKETS, self.input_bytes // _BYTES_PER_BUCKET))


def build(pipeline: beam.Pipeline, job: CountJob) -> None:
    """Adds the steps of the counting. After the run, `CountedCorpus(job.folder)` reads their files."""
    counted = (
        pipeline
        | "PlanPath" >> beam.Create([job.plan_path])
        | "ReadPlan" >> beam.FlatMap(read_plan)
        | "SpreadUnits" >> beam.Reshuffle()
        | "CountWords" >> beam.ParDo(CountWords(job)).with_outputs(WORDS, SAMPLES)
    )
    _ = (
        counted[WORDS]
        | "GroupByBucket" >> beam.GroupByKey()
        | "WriteWords" >> beam.Map(write_words, job.folder)
    )
    _ = (
        counted[SAMPLES]
        | "GroupByFile" >> beam.GroupByKey()
        | "WriteSample" >> beam.Map(write_sample, job.folder)
    )


class CountWords(beam.DoFn):
    """A work unit → its words, together with those of other units of the bundle, and its sampled documents.

    `WORDS`: (bucket, counted words as Arrow's stream). `SAMPLES`: (file, (unit, its documents, their bytes, sampled
    ones)).
    """

    def __init__(self, job: CountJob, counted_bytes: int = _COUNTED_BYTES):
        self._job = job
        self._counted_bytes = counted_bytes

    def setup(self) -> None:
        self._reporter = Reporter(self._job.progress)
        self._documents = Metrics.counter("train-tokenizer", "documents")
        self._bad_records = Metrics.counter("train-tokenizer", "bad_records")

    def start_bundle(self) -> None:
        job = self._job
        self._counter = WordCounter(job.model, normalize=job.normalize, lowercase=job.lowercase)

    def process(self, unit: WorkUnit) -> Iterator[TaggedOutput]:
        job = self._job
        share = _SAMPLED_BYTES / max(1, job.input_bytes)
        file = unit.index * _MAX_SAMPLE_FILES // job.num_units
        # The first document of a file is used if no document is chosen, since all of them are long.
        is_first = unit.index == -(-file * job.num_units // _MAX_SAMPLE_FILES)
        documents = text_bytes = 0
        texts: list[bytes] = []
        chosen: list[bool] = []
        progress = UnitProgress(self._reporter, "count", unit.bytes)
        for batch in read_unit(unit, job.read_options, progress.advance):
            if batch.bad_records and not job.skip_bad:
                raise DataError(describe(unit, batch.bad_records[0]))
            self._bad_records.inc(len(batch.bad_records))
            self._documents.inc(len(batch.texts))
            self._counter.add(batch.texts)
            hashes = place_hashes("sample", job.seed, batch.name, batch.places)  # equal for repeats of --mix
            is_chosen = np.ones(len(hashes), bool) if share >= 1 else hashes < np.uint64(int(share * 2**64))
            if len(is_chosen) and is_first and not documents:
                texts.append(_beginning(batch.texts[0]))
                chosen.append(False)
            for index in np.flatnonzero(is_chosen).tolist():
                texts.append(_beginning(batch.texts[index]))
                chosen.append(True)
            documents += len(batch.texts)
            text_bytes += int(batch.texts.sizes.sum())
            if self._counter.bytes > self._counted_bytes:
                yield from self._words()
        columns = [binary_array(texts), integer_array(np.array(chosen, np.int64))]
        sampled = pa.record_batch(columns, schema=_SAMPLE_SCHEMA)
        yield TaggedOutput(SAMPLES, (file, (unit.index, documents, text_bytes, sampled)))
        progress.finish()

    def finish_bundle(self) -> Iterator[TaggedOutput]:
        for words in self._words():
            yield beam.at_end_of_bundle(WORDS, words.value)

    def _words(self) -> Iterator[TaggedOutput]:
        words = self._counter.take()
        hashes = np.fromiter(map(zlib.crc32, words["word"].to_pylist()), np.uint32, len(words))
        buckets = hashes % np.uint32(self._job.num_buckets)
        for indices in indices_by_key(buckets):
            yield TaggedOutput(
                WORDS, (int(buckets[indices[0]]), _to_stream([words.take(integer_array(indices))]))
            )


def _beginning(text: str) -> bytes:
    # UTF-8 cannot encode lone surrogates, which jsonl may contain, and a tokenizer cannot learn from them.
    return text[:_SAMPLED_CHARS].encode(errors="ignore")


def _to_stream(parts: list[pa.Table] | list[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, schema) as writer:
        for part in parts:
            writer.write(part)
    return stream.getvalue().to_pybytes()


def write_words(element: tuple[int, Iterable[bytes]], folder: str) -> None:
    """Adds up the counts of a bucket's words, and writes them to a file."""
    bucket, streams = element
    words = merge(pa.ipc.open_stream(stream).read_all() for stream in streams)
    filesystem.write_bytes(filesystem.join(folder, f"words-{bucket:04d}.arrow"), _to_stream([words]))


def write_sample(element: tuple[int, Iterable[tuple[int, int, int, pa.RecordBatch]]], folder: str) -> None:
    """Writes the sampled documents of neighbouring units, in order, to one file, with the size of all."""
    file, units = element
    ordered = sorted(units, key=itemgetter(0))
    sizes = {name: str(sum(unit[i] for unit in ordered)) for i, name in ((1, "documents"), (2, "bytes"))}
    data = _to_stream([unit[3] for unit in ordered], _SAMPLE_SCHEMA.with_metadata(sizes))
    filesystem.write_bytes(filesystem.join(folder, f"sample-{file:02d}.arrow"), data)


@dataclass(frozen=True)
class FrequentWords:
    """The words that a tokenizer is trained on: all, or those that occur most often."""

    table: pa.Table
    """`word_counts.SCHEMA`."""
    different: int
    """The number of different words in the corpus."""
    min_count: int
    """How often a word must occur to be one of these."""
    share: float
    """The share of all occurrences of words that are occurrences of these."""

    def describe(self) -> str:
        """Describes them in a log message."""
        if len(self.table) == self.different:
            return f"all {self.different:,} different words"
        return (
            f"{len(self.table):,} of {self.different:,} different words: those that occur {self.min_count} times or "
            f"more, {self.share:.2%} of the text's words"
        )

    def to_json(self) -> dict[str, int | float]:
        """Returns their figures as JSON values."""
        figures = {"different": self.different, "trained_on": len(self.table), "min_count": self.min_count}
        return {**figures, "share": round(self.share, 6)}


class CountedCorpus:
    """The result of a run. `documents` and `bytes` are the corpus's size.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: str):
        paths = filesystem.list_folder(folder)
        self._words_paths = sorted(filter(_WORDS_FILE.search, paths))
        self.documents = self.bytes = 0
        self.sample: list[str] = []
        """Some documents, spread over the corpus, without the ends of long ones."""
        not_chosen: list[str] = []
        for path in sorted(filter(_SAMPLE_FILE.search, paths)):
            sample = pa.ipc.open_stream(filesystem.read_bytes(path)).read_all()
            self.documents += int(sample.schema.metadata[b"documents"])
            self.bytes += int(sample.schema.metadata[b"bytes"])
            for text, chosen in zip(sample["text"].to_pylist(), sample["chosen"].to_pylist(), strict=True):
                (self.sample if chosen else not_chosen).append(text.decode())
        self.sample = self.sample or not_chosen

    def words(self, most_bytes: int) -> FrequentWords:
        """Returns the words that occur most often, which together have at most `most_bytes`.

        Words that occur equally often are all among them, or none is.
        """
        sizes: dict[int, int] = {}
        different = occurrences = 0
        for table in self._tables():
            different += len(table)
            occurrences += pc.sum(table["count"]).as_py() or 0
            counts, inverse = np.unique(np.from_dlpack(table["count"].combine_chunks()), return_inverse=True)
            totals = np.bincount(
                inverse, weights=np.from_dlpack(pc.binary_length(table["word"]).combine_chunks())
            )
            for count, total in zip(counts.tolist(), totals.tolist(), strict=True):
                sizes[count] = sizes.get(count, 0) + int(total)
        min_count = max(sizes, default=0) + 1
        for count in sorted(sizes, reverse=True):
            most_bytes -= sizes[count]
            if most_bytes < 0:
                break
            min_count = count
        parts = [no_words()]
        for table in self._tables():
            is_frequent = np.from_dlpack(table["count"].combine_chunks()) >= min_count
            parts.append(table.take(integer_array(np.flatnonzero(is_frequent))))
        frequent = pa.concat_tables(parts)
        kept = pc.sum(frequent["count"]).as_py() or 0
        return FrequentWords(frequent, different, min_count, kept / max(1, occurrences))

    def _tables(self) -> Iterator[pa.Table]:
        for path in self._words_paths:
            yield pa.ipc.open_stream(filesystem.read_bytes(path)).read_all()
