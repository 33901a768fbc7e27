"""The peer: all four stages of datatrove's MinHash deduplication. It writes the documents that are kept, as jsonl."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help="a jsonl file")
    parser.add_argument("--output", required=True)
    parser.add_argument("--bands", type=int, default=14)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--shingle", type=int, default=5)
    args = parser.parse_args()
    config = MinhashConfig(n_grams=args.shingle, num_buckets=args.bands, hashes_per_bucket=args.rows)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(args.input)
        reader = JsonlReader(str(source.parent), glob_pattern=source.name)
        signatures, buckets, remove_ids = (f"{folder}/{name}" for name in ("signatures", "buckets", "remove"))
        stages = (
            ([reader, MinhashDedupSignature(signatures, config)], 1),
            ([MinhashDedupBuckets(signatures, buckets, config=config)], args.bands),
            ([MinhashDedupCluster(buckets, remove_ids, config=config)], 1),
            ([reader, MinhashDedupFilter(remove_ids), JsonlWriter(args.output, compression=None)], 1),
        )
        for number, (pipeline, tasks) in enumerate(stages):
            LocalPipelineExecutor(
                pipeline=pipeline,
                tasks=tasks,
                workers=1,  # in this process: the system does not report the CPU time of its pool's processes
                logging_dir=f"{folder}/logs/{number}",
            ).run()


if __name__ == "__main__":
    main()
