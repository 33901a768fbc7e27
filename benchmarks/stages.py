"""Measures each stage of `prepare` on one core, beside the least that any program would spend on it.

    .venv/bin/python benchmarks/stages.py --input big.jsonl --tokenizer DIR [--megabytes 16] [--rounds 3]
    .venv/bin/python benchmarks/stages.py … --save before.json      (in a checkout of an earlier version)
    .venv/bin/python benchmarks/stages.py … --before before.json

Prints a Markdown table of the CPU per stage, and what starting costs. The limit of a stage is one call of the library
or of the kernel that does its inevitable part: orjson, the tokenizer library, a copy, a write.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google_crc32c
import numpy as np
import orjson
from measure import measure, table

from beam_pipeline.dataset.encoders import encode_rows
from beam_pipeline.dataset.sections import create_sections, map_section
from beam_pipeline.dataset.shards import Assembly, write_shard
from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.tokenizer_parts import split_tokenizer
from beam_pipeline.engines.word_models import make_word_model
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Packer
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources import jsonl
from beam_pipeline.sources.units import DocumentBatch, Part
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from beam_pipeline.tokenization.description import describe_tokenizer

MAX_LENGTH = 512
READ, TOKENIZE, PACK, UNIT = (
    "read and parse lines",
    "tokenize",
    "pack, statistics, checksum of rows",
    "unit's file",
)
GATHER, ENCODE, WRITE = "gather the rows of shards", "encode records", "checksums and writing"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", required=True, help='a jsonl file with the key "text"')
    parser.add_argument("--tokenizer", required=True, help="a folder with a byte-level BPE tokenizer")
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="reports the least of the rounds")
    parser.add_argument("--save", type=Path, help="also writes the figures to this file")
    parser.add_argument("--before", type=Path, help="what --save wrote for an earlier version")
    args = parser.parse_args()
    with Path(args.input).open("rb") as file:
        data = file.read(args.megabytes * 1_000_000)
    data = data[: data.rfind(b"\n") + 1]
    # First, since the peak memory of a new process includes that of the one that starts it.
    starts = start_up(data, args.tokenizer)
    rounds = [stages(data, args.tokenizer) for _ in range(args.rounds)]
    least = {name: tuple(min(one[name][i] for one in rounds) for i in (0, 1)) for name in rounds[0]}
    size = len(data) / 1e6
    found = {name: (limit / size * 1e3, own / size * 1e3) for name, (limit, own) in least.items()}
    if args.save:
        args.save.write_text(json.dumps(found))
    before = json.loads(args.before.read_text()) if args.before else {}
    print(f"{size:.0f} MB, ms of CPU per MB of text\n")
    rows = [
        [
            name,
            f"{limit:.2f}",
            f"{before[name][1]:.2f}" if name in before else "",
            f"{own:.2f}",
            f"{1e3 / own:,.0f}",
        ]
        for name, (limit, own) in found.items()
    ]
    print(table(["stage", "limit", "before", "now", "MB/s per core"], rows))
    print(f"\n{starts}")


def stages(data: bytes, folder: str) -> dict[str, tuple[float, float]]:
    """Returns (limit, ours) in CPU seconds for each stage."""
    found: dict[str, tuple[float, float]] = {}
    part, options = Part("text.jsonl", 0, len(data)), InputConfig()
    _, parse_limit = timed(lambda: [orjson.loads(line)["text"] for line in data.splitlines()])
    records, reading = timed(lambda: list(jsonl.read(io.BytesIO(data), part, options)))
    found[READ] = parse_limit, reading
    batches = [DocumentBatch(part.name, one.texts, one.places) for one in records]

    tokenizer = describe_tokenizer(folder)
    ours = DocumentTokenizer(
        tokenizer_json=tokenizer.json,
        vocab_size=tokenizer.vocab_size,
        template=tokenizer.template_of(False),
        engine="auto",
        control_ids=tokenizer.control_ids,
        input_bytes=1 << 30,
    )
    ours.encode(DocumentBatch(part.name, Texts.of(["a"]), np.zeros(1, np.int64)))
    parsed = tokenizer_for_text(tokenizer.json, parse_special_tokens=False, control_ids=tokenizer.control_ids)
    model = make_word_model(split_tokenizer(parsed, False))
    _, core_seconds = timed(lambda: [model.encode(batch.texts) for batch in batches])
    documents, seconds = timed(lambda: [ours.encode(batch) for batch in batches])
    found[TOKENIZE] = core_seconds, seconds

    tokenized = iter(documents)
    packer = Packer(packing="concat", max_length=MAX_LENGTH, pad_id=0, keep_starts=False)
    unit = UnitRows(
        tokenizer=SimpleNamespace(encode=lambda batch: next(tokenized)),
        choose_split=SplitChooser((("train", 1.0),), 0, "place"),
        packers=[packer],
        vocab_size=tokenizer.vocab_size,
        on_bad=lambda record: None,
    )
    blocks, seconds = timed(lambda: [block for _, block in unit.blocks(batches)])
    ids = np.concatenate([block.ids for block in blocks])
    found[PACK] = timed(ids.copy)[1], seconds

    with tempfile.TemporaryDirectory() as out:
        limit = timed(lambda: Path(out, "plain").write_bytes(ids.tobytes()))[1]

        def write_unit() -> list[Any]:
            with create_sections(f"{out}/unit") as sections:
                places = [sections.add(*block.parts()) for block in blocks]
                sections.end({})
            return places

        sections, seconds = timed(write_unit)
        found[UNIT] = limit, seconds
        order = np.random.default_rng(0).permutation(len(ids))
        bounds = np.cumsum([0, *map(len, blocks)])

        def gather() -> Any:
            assembly = Assembly(len(ids), "benchmark")
            for section, first, end in zip(sections, bounds, bounds[1:], strict=False):
                slots = np.flatnonzero((order >= first) & (order < end))
                block = RowBlock.from_bytes(map_section(f"{out}/unit", section, needs_all=True))
                assembly.add(block, slots, order[slots] - first)
            return assembly.rows()

        shard, seconds = timed(gather)
        found[GATHER] = timed(lambda: ids[order])[1], seconds
        form = {"features": ("attention_mask", "input_ids"), "max_value": tokenizer.vocab_size - 1}
        step = (1 << 18) // MAX_LENGTH
        parts = [shard.take(slice(first, first + step)) for first in range(0, len(shard), step)]
        seconds = sum(timed(lambda part=part: encode_rows(part, **form))[1] for part in parts)
        encoded = [encode_rows(part, **form) for part in parts]
        joined, limit = timed(lambda: b"".join(encoded))
        found[ENCODE] = limit, seconds

        def plain() -> None:
            google_crc32c.value(joined)
            Path(out, "plain").write_bytes(joined)

        write = timed(
            lambda: write_shard(
                shard,
                encode=lambda block: encoded,
                with_offsets=True,
                path=f"{out}/train-00000-{len(shard)}.tfrecord",
                temporary=f"{out}/temporary",
                split=0,
                shard=0,
                before_publishing=lambda info: None,
            )
        )[1]
        found[WRITE] = timed(plain)[1], write
    return found


def start_up(data: bytes, folder: str) -> str:
    """Returns sentences on the start of a local run and of a worker."""
    with tempfile.TemporaryDirectory() as out:
        log, text = Path(out, "log"), Path(out, "one.jsonl")
        text.write_bytes(data[: data.find(b"\n") + 1])
        run = [
            "prepare",
            "--input",
            str(text),
            "--tokenizer",
            folder,
            "--output",
            f"{out}/out",
            "--overwrite",
        ]
        command = [sys.executable, "-m", "beam_pipeline", *run]
        local = min(measure(command, log).cpu_seconds for _ in range(2))
        worker = """
import sys
from apache_beam.runners.worker import sdk_worker_main
from beam_pipeline.steps import graph
from beam_pipeline.engines.engine import make_engine
make_engine("auto", open(sys.argv[1] + "/tokenizer.json").read()).encode_batch(["a"])
"""
        found = measure([sys.executable, "-c", worker, folder], log)
    return (
        f"A local run on one document takes {local:.1f} s of CPU. A worker process with an engine takes "
        f"{found.cpu_seconds:.1f} s of CPU to start, and {found.peak_bytes / 1e9:.2f} GB before its first unit."
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Returns what `work` returns, and the CPU seconds of all threads of this process meanwhile."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


if __name__ == "__main__":
    main()
