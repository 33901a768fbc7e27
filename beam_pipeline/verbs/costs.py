"""What a run makes and takes, from the numbers of its tokens and rows: shards, memory, disk, and money on Dataflow."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.options.option_values import PRICES
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.rows.routing import ShardLayout
from beam_pipeline.support import filesystem, memory
from beam_pipeline.verbs.results import DataflowCost, EstimatedSplit

# Dataflow. docs/dataflow.md explains these figures.
_BYTES_PER_VCPU_SECOND = 10e6
_GIGABYTES_PER_VCPU = 4
_VCPUS_PER_CORE = 2

# Reading the text and searching it for n-grams of benchmarks, from benchmarks/decontamination.py.
_NGRAM_BYTES_PER_SECOND = 25e6

# Reading the text and hashing its documents, and what a document's hash takes in the shuffle.
_HASHED_BYTES_PER_SECOND = 70e6
_SHUFFLED_BYTES_PER_DOCUMENT = 20

# Near-deduplication, per byte of text; steps/near_duplicates.py has the arithmetic.
_NEAR_BYTES_PER_SECOND = 15e6
_NEAR_SHUFFLED_BYTES = 1.5
_NEAR_STAGED_BYTES = 1.6

# Removing repeated paragraphs of some 200 bytes, per byte of text; steps/paragraphs.py has the arithmetic.
_PARAGRAPH_BYTES_PER_SECOND = 18e6
_PARAGRAPH_SHUFFLED_BYTES = 0.15
_PARAGRAPH_STAGED_BYTES = 0.3


@dataclass(frozen=True, kw_only=True)
class OutputSize:
    """The size of a run's output, all splits together."""

    tokens: float
    rows: float
    record_bytes: float
    """Average size of a row's record in its file."""

    def splits(self, config: PrepareConfig) -> dict[str, EstimatedSplit]:
        """Returns the size of each split."""
        splits = {}
        for name, share in config.splits:
            layout = ShardLayout(
                split=name,
                num_rows=math.ceil(self.rows * share),
                shard_size=config.shard_size,
                requested_shards=config.num_shards,
                shuffle=config.shuffle,
                seed=config.seed,
            )
            splits[name] = EstimatedSplit(
                tokens=round(self.tokens * share),
                rows=layout.num_rows,
                shards=layout.num_shards,
                bytes=round(layout.num_rows * self.record_bytes),
            )
        return splits

    def staged_bytes(self, config: PrepareConfig, vocab_size: int) -> int:
        """Returns the bytes of the rows in the output folder while the run lasts, besides the shards."""
        slots = self.rows * config.max_length if config.max_length else self.tokens
        return round(slots * id_dtype(vocab_size, has_targets=config.has_targets).itemsize)


@dataclass(frozen=True, kw_only=True)
class CurationCost:
    """What filtering documents, and comparing them with benchmarks and each other, takes besides the rest of a run."""

    seconds: float
    """CPU seconds."""
    staged_bytes: int = 0
    """Bytes in the output folder while the run lasts."""
    shuffled_bytes: int = 0
    """Bytes that the runner groups, if the output folder is not local."""

    @classmethod
    def of(
        cls, config: PrepareConfig, input_bytes: int, documents: float, filter_seconds: float
    ) -> CurationCost:
        """Returns the cost for so many bytes of text and documents. `filter_seconds` is that of all passes."""
        seconds, staged, shuffled, hashes = filter_seconds, 0.0, 0.0, 0
        if config.contamination.decontaminate:
            seconds += input_bytes / _NGRAM_BYTES_PER_SECOND
        if config.removes_paragraphs:
            seconds += input_bytes / _PARAGRAPH_BYTES_PER_SECOND
            staged, shuffled = _PARAGRAPH_STAGED_BYTES, _PARAGRAPH_SHUFFLED_BYTES
        if config.document_dedup == "exact":
            seconds += input_bytes / _HASHED_BYTES_PER_SECOND
            hashes = round(documents * _SHUFFLED_BYTES_PER_DOCUMENT)
        if config.document_dedup == "near":
            seconds += input_bytes / _NEAR_BYTES_PER_SECOND
            staged, shuffled = staged + _NEAR_STAGED_BYTES, shuffled + _NEAR_SHUFFLED_BYTES
        return cls(
            seconds=seconds,
            staged_bytes=round(input_bytes * staged),
            shuffled_bytes=hashes + round(input_bytes * shuffled),
        )


def passes(config: PrepareConfig) -> int:
    """Returns how often a run reads the input, and filters it: once for each comparison, and once to tokenize it."""
    comparisons = (
        config.contamination.decontaminate,
        config.removes_paragraphs,
        config.document_dedup != "none",
    )
    return 1 + sum(map(bool, comparisons))


def dataflow_cost(
    input_bytes: int, row_bytes: int, curation: CurationCost, prices: Mapping[str, float]
) -> DataflowCost:
    """Returns what a run takes on Dataflow.

    Args:
        input_bytes: Bytes of text.
        row_bytes: See `OutputSize.staged_bytes`.
        curation: What filtering and comparing the documents takes.
        prices: Those that differ from the list prices, by the names in `PRICES`.
    """
    prices = PRICES | dict(prices)
    hours = (input_bytes / _BYTES_PER_VCPU_SECOND + _VCPUS_PER_CORE * curation.seconds) / 3600
    shuffled_bytes = 2 * (row_bytes + curation.shuffled_bytes)  # each byte is written and read
    dollars = hours * (prices["vcpu_hour"] + _GIGABYTES_PER_VCPU * prices["gb_hour"])
    dollars += shuffled_bytes / 1e9 * prices["shuffle_gb"]
    return DataflowCost(vcpu_hours=hours, shuffled_bytes=shuffled_bytes, dollars=round(dollars, 2))


def likely_records(config: PrepareConfig, input_bytes: int) -> int:
    """Returns the approximate number of records in the largest shard; 0 for documents, which are not kept in memory.

    Args:
        config: The run's options.
        input_bytes: Bytes of text.
    """
    if config.max_length is None:
        return 0
    share = max(share for _, share in config.splits)
    rows = math.ceil(share * input_bytes / memory.TEXT_BYTES_PER_TOKEN / config.max_length)
    return min(config.shard_size, rows) if config.shard_size else math.ceil(rows / config.num_shards)


def needed_memory(config: PrepareConfig, input_bytes: int, vocab_size: int, *, longest_bytes: int) -> int:
    """Returns the estimated peak memory of a run in this process, in bytes.

    Args:
        config: The run's options.
        input_bytes: Bytes of text.
        vocab_size: The number of the tokenizer's ids.
        longest_bytes: Bytes of the longest document that is known.
    """
    id_bytes = id_dtype(vocab_size, has_targets=config.has_targets).itemsize
    units_at_once = 1
    if config.overlaps_units:
        most = memory.units_at_once(len(os.sched_getaffinity(0)))
        units_at_once = min(most, max(1, input_bytes // config.input.unit_bytes))
    return memory.estimate(
        input_bytes=input_bytes,
        id_bytes=id_bytes,
        shard_bytes=likely_records(config, input_bytes) * (config.max_length or 0) * id_bytes,
        statistics_bytes=8 * vocab_size * len(config.splits),
        longest_bytes=longest_bytes,
        units_at_once=units_at_once,
        groups_rows=not filesystem.is_local(config.output) and config.packing != "none",
        groups_hashes=config.document_dedup == "exact",
        groups_bands=config.document_dedup == "near",
        groups_paragraphs=config.removes_paragraphs,
    )
