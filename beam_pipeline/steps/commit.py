"""The last step: checks that no data was lost, writes the manifests, and deletes the staging folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from beam_pipeline.dataset import lock, manifest
from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.output_folder import clear_staging
from beam_pipeline.dataset.shards import ShardInfo, files_of_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.options.option_values import FORMAT_DEFAULTS
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.rows.routing import RowTable, ShardLayout
from beam_pipeline.steps.job import Job, OutputJob
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.errors import DataError
from tokenmill_reader.format.json_text import json_bytes
from tokenmill_reader.format.manifest import FORMAT, VERSION, describe_file, with_checksum
from tokenmill_reader.format.names import INPUTS, MANIFEST, SCHEMA, STATISTICS, TOKENIZER, UNITS

DOCUMENT_UNITS = "document_units"
"""The key of a manifest's config for the number of work units into which a pipeline's documents were grouped."""


def commit(
    job: Job,
    *,
    table: RowTable,
    layouts: Sequence[ShardLayout],
    statistics: Mapping[int, SplitStatistics],
    excluded: Excluded,
    uses: Sequence[EngineUse],
    tail_sizes: Mapping[int, np.ndarray],
    shards: Sequence[ShardInfo],
) -> None:
    """Turns the shards into a dataset.

    This may run again after a failure at any point, even after its end, because the runner may lose a worker before it
    learns that the work is done. It then writes the same files, or returns because the dataset is already finished.

    Args:
        uses: The use of each engine, sorted by engine.
        tail_sizes: int64 [units], the tokens in each unit's tail, by the split's index. Splits without tails may be
            absent.

    Raises:
        DataError: If the input contains no documents or too many bad records.
        AssertionError: If rows, tokens or shards were lost or duplicated.
    """
    if not filesystem.exists(job.description_path) and is_committed(job):
        finish(job)
        return
    job.check_lock()
    run = json.loads(filesystem.read_bytes(job.description_path))
    excluded.check(job.config.max_bad_ratio)
    if not any(split_statistics.documents for split_statistics in statistics.values()):
        reasons = (
            (excluded.bad_records, "bad records (bad_records/ has the reasons)"),
            (excluded.overlong_documents, "conversations longer than a row"),
            (excluded.blank_documents, "blank records"),
            (excluded.removed_documents, "documents that rules remove (removed/ lists them)"),
        )
        contents = " and ".join(name for count, name in reasons if count)
        files = counted(run["inputs"]["files"], "file")
        raise DataError(
            f"the input ({files}) contains no documents{f', only {contents}' if contents else ''}"
        )
    shard_format = job.make_format()
    features = shard_format.form.features
    files: dict[str, bytes] = {}  # by path below the output folder
    manifests: dict[str, bytes] = {}
    for split, layout in enumerate(layouts):
        split_shards = sorted((info for info in shards if info.split == split), key=lambda info: info.shard)
        split_statistics = statistics[split]
        _check_rows(layout, job.config, split_statistics, split_shards)
        split_files = {
            STATISTICS: json_bytes(split_statistics.to_json()),
            UNITS: _units_jsonl(job, table, split, tail_sizes),
            SCHEMA: manifest.schema_pbtxt(features, job.config.max_length, job.vocab_size),
            **shard_format.split_files([info.to_json() for info in split_shards]),
        }
        files |= {f"{layout.split}/{name}": data for name, data in split_files.items()}
        content = {
            **_describe_split(job, run, layout, split_statistics, split_shards),
            "features": list(features),
            **({"record_columns": list(columns)} if (columns := shard_format.form.record_columns) else {}),
            "files": [describe_file(name, data) for name, data in sorted(split_files.items())],
            "excluded": excluded.to_json(),
            **({"removed": excluded.removed} if excluded.removed else {}),
            **({"edited": excluded.edited} if excluded.edited else {}),
            "engines": [use.to_json() for use in uses],
        }
        manifests[f"{layout.split}/{MANIFEST}"] = with_checksum(content)
    publish(job, shards=shards, files=files, manifests=manifests, copied=copied_files(run))


def _describe_split(
    job: Job,
    run: Mapping[str, Any],
    layout: ShardLayout,
    statistics: SplitStatistics,
    shards: Sequence[ShardInfo],
) -> dict[str, Any]:
    """Returns the entries of a split's manifest for the run, the split's layout, its counts and its shards."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "split": layout.split,
        "splits": list(job.config.split_names),
        "max_length": job.config.max_length,
        "shard_size": layout.shard_size,
        "seed": job.config.seed,
        "num_records": layout.num_rows,
        "shards": [info.to_json() for info in shards],
        "totals": statistics.totals(),
        "rows_checksum": f"{statistics.rows_checksum:016x}",
        "fingerprint": job.fingerprint,
        **{name: run["config"][name] for name in FORMAT_DEFAULTS if name in run["config"]},
        **run,
    }


def publish(
    job: OutputJob,
    *,
    shards: Iterable[ShardInfo],
    files: Mapping[str, bytes],
    manifests: Mapping[str, bytes],
    copied: Sequence[str],
) -> None:
    """Writes the last files of a dataset, the manifests last of all, and deletes the staging folder.

    Flushes the files that the manifests list to disk, so that after a loss of power no manifest lists lost files.

    Args:
        job: The run.
        shards: All shards, which are written already.
        files: The other files of the splits, by their paths below the output folder.
        manifests: The manifests, also by path.
        copied: The paths of the files that belong to no split, which are written already.
    """
    job.write_recorded("splits", files)
    written = [
        f"{job.split_names[info.split]}/{name}" for info in shards for name in files_of_shard(info.to_json())
    ]
    filesystem.make_durable(filesystem.join(job.output, path) for path in [*files, *written, *copied])
    job.check_lock()
    job.write_recorded("manifests", manifests)
    filesystem.make_durable(filesystem.join(job.output, path) for path in manifests)
    finish(job)


def copied_files(run: Mapping[str, Any]) -> list[str]:
    """Returns the paths of the files that a manifest lists outside of its split, relative to the output folder."""
    tokenizer = [f"{TOKENIZER}/{file['path']}" for file in run["tokenizer"]["files"]]
    return [*tokenizer, INPUTS]


def finish(job: OutputJob) -> None:
    """Deletes the staging folder of a committed run, and releases the lock if the launcher does not."""
    clear_staging(job.output, job.fingerprint)
    if job.detached:
        lock.release_job_lock(job.lock_path, job.run)


def is_committed(job: OutputJob) -> bool:
    """Returns whether every split has a manifest of this run."""
    for split in range(len(job.split_names)):
        folder = job.split_folder(split)
        if not filesystem.exists(filesystem.join(folder, MANIFEST)):
            return False
        content = manifest.read_manifest(folder)
        # That of a dataset from a pipeline's documents depends on them, but its run began without any manifest.
        if content["fingerprint"] != job.fingerprint and DOCUMENT_UNITS not in content["config"]:
            return False
    return True


def _check_rows(
    layout: ShardLayout, config: PrepareConfig, statistics: SplitStatistics, shards: Sequence[ShardInfo]
) -> None:
    """Checks that the shards contain exactly the packed rows and tokens, by count and by checksum.

    Raises:
        DataError: If they do not, and a part of them is an earlier run's.
        AssertionError: If they do not, and this run wrote all of them.
    """
    defect = _rows_defect(layout, config.max_length, statistics, shards)
    if defect is None:
        return
    if not config.resume:
        raise AssertionError(defect)
    raise DataError(
        f"{defect}; files of an earlier run do not match this one. If the input has changed since, use "
        "--overwrite instead of --resume"
    )


def _rows_defect(
    layout: ShardLayout, max_length: int | None, statistics: SplitStatistics, shards: Sequence[ShardInfo]
) -> str | None:
    split = layout.split
    times_written = Counter(info.shard for info in shards)
    wrong_shards = [shard for shard in range(layout.num_shards) if times_written[shard] != 1]
    if wrong_shards or len(shards) != layout.num_shards:
        return f"{split}: shards {wrong_shards[:10]} of {layout.num_shards} were not written exactly once"
    written = sum(info.records for info in shards)
    if not written == layout.num_rows == statistics.rows:
        return f"{split}: {statistics.rows} rows packed, {layout.num_rows} ranked, {written} written"
    slots = statistics.rows * max_length if max_length else statistics.tokens
    if statistics.tokens + statistics.padding != slots:
        return f"{split}: {statistics.tokens} tokens and {statistics.padding} padding do not fill {slots}"
    checksum = sum(int(info.rows_checksum, 16) for info in shards) % 2**64
    if checksum != statistics.rows_checksum:
        packed = f"{statistics.rows_checksum:016x}"
        return f"{split}: the written rows have the checksum {checksum:016x}, the packed rows {packed}"
    return None


def _units_jsonl(job: Job, table: RowTable, split: int, tail_sizes: Mapping[int, np.ndarray]) -> bytes:
    """Returns units.jsonl: the plan's lines, each with the unit's number of rows and of tail tokens in this split."""
    tails = tail_sizes.get(split, np.zeros(job.num_units, np.int64))
    lines = []
    for line in filesystem.read_bytes(job.plan_path).decode().splitlines():
        unit = json.loads(line)
        unit_index = unit["unit"]
        lines.append(
            json.dumps({**unit, "rows": int(table.rows[unit_index, split]), "tail": int(tails[unit_index])})
        )
    lines.append(json.dumps({"unit": job.num_units, "tails": True, "rows": int(table.rows[-1, split])}))
    return ("\n".join(lines) + "\n").encode()
