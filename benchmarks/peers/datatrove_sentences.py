"""The peer: all stages of datatrove's sentence deduplication, of single lines. It writes what is left, as jsonl."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup.sentence_dedup import (
    SentDedupConfig,
    SentenceDedupFilter,
    SentenceDedupSignature,
    SentenceFindDedups,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help="a jsonl file")
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    config = SentDedupConfig(n_sentences=1, split_sentences=False, min_doc_words=0, min_num_sentences=0)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(args.input)
        reader = JsonlReader(str(source.parent), glob_pattern=source.name)
        signatures, duplicates = (f"{folder}/{name}" for name in ("signatures", "duplicates"))
        stages = (
            [reader, SentenceDedupSignature(signatures, config=config)],
            [SentenceFindDedups(signatures, duplicates, config=config)],
            [
                reader,
                SentenceDedupFilter(duplicates, config=config),
                JsonlWriter(args.output, compression=None),
            ],
        )
        for number, pipeline in enumerate(stages):
            LocalPipelineExecutor(
                pipeline=pipeline,
                tasks=1,
                workers=1,  # in this process: the system does not report the CPU time of its pool's processes
                logging_dir=f"{folder}/logs/{number}",
            ).run()


if __name__ == "__main__":
    main()
