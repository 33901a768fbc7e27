"""Builds the index of the benchmarks of `--decontaminate`, once, in the launcher."""

from __future__ import annotations

import logging
from collections import Counter

from beam_pipeline.curation.benchmarks import display_names, read_benchmarks
from beam_pipeline.curation.ngram_index import NgramIndex, build_index
from beam_pipeline.options.decontaminate_options import DecontaminateConfig
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.elapsed import elapsed

_log = logging.getLogger(__name__)


def index_benchmarks(config: DecontaminateConfig) -> bytes | None:
    """Returns the index, as `NgramIndex.to_bytes`; None without benchmarks.

    Raises:
        UsageError: If there is no item with enough words, or as `read_benchmarks`.
        DataError: As `read_benchmarks`.
    """
    if not config.decontaminate:
        return None
    with elapsed("indexing the benchmarks"):
        benchmarks = read_benchmarks(config.decontaminate, config.decontaminate_fields)
        index = build_index(
            display_names([benchmark.path for benchmark in benchmarks]),
            [benchmark.items for benchmark in benchmarks],
            n=config.decontaminate_ngram,
            min_words=config.decontaminate_min_words,
        )
    if not index.checkable.any():
        raise UsageError(
            f"--decontaminate {' '.join(config.decontaminate)}: none of the {counted(len(index.checkable), 'item')} "
            f"has {counted(config.decontaminate_min_words, 'word')} and no empty field; use a smaller "
            "--decontaminate_min_words, or other --decontaminate_fields"
        )
    _log.info(
        f"decontaminate: {counted(len(benchmarks), 'benchmark')}, {counted(len(index.checkable), 'item')}, "
        f"{counted(len(index), 'n-gram')}"
    )
    _warn_of_short(index, config)
    return index.to_bytes()


def _warn_of_short(index: NgramIndex, config: DecontaminateConfig) -> None:
    """Warns of the items that cannot be checked."""
    short = Counter(index.benchmark_of_items()[~index.checkable].tolist())
    for number, count in sorted(short.items()):
        total = int(index.item_counts[number])
        _log.warning(
            f"--decontaminate {index.benchmarks[number]}: {count:,} of {counted(total, 'item')} cannot be checked: "
            f"they have an empty field, or fewer than {counted(config.decontaminate_min_words, 'word')} "
            "(--decontaminate_min_words)"
        )
