"""Trains the same small model on a web-like corpus as it is, and curated, and compares the loss on clean held-out text.

    .venv/bin/python benchmarks/curated_loss.py big.txt

The corpus is real prose with planted copies, boilerplate and junk pages. Each run trains with the same number of
tokens, less than either corpus has, so that no run sees a row twice. The held-out documents are in neither corpus, and
nothing was planted in them. A run takes about a minute of a core.

`python benchmarks/corpus.py big.txt` writes a large text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from curation import BOILERPLATE
from measure import measure, table
from planted import KINDS, documents_of

ROOT = Path(__file__).resolve().parents[1]
TRAINER = ROOT / "trainer" / ".venv" / "bin" / "python"
HELD_OUT = 300
ARMS = {
    "as it is": [],
    "--filter … --dedup near": ["--filter", "gopher_repetition,gopher,c4,fineweb", "--dedup", "near"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="a text file, one paragraph per line")
    parser.add_argument("--documents", type=int, default=8_000, help="of the corpus, with copies and junk")
    parser.add_argument("--steps", type=int, default=200, help="of 16 rows of 128 tokens")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    losses: dict[str, list[float]] = {name: [] for name in ARMS}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        for seed in args.seeds:
            folder = Path(name, str(seed))
            folder.mkdir()
            write_corpora(args.text, folder, args.documents, seed)
            for arm, options in ARMS.items():
                sizes[arm], loss = train(folder, options, args.steps, seed)
                losses[arm].append(loss)
                print(f"seed {seed}, {arm}: {loss:.4f}", flush=True)
    first = next(iter(losses.values()))
    rows = []
    for arm, values in losses.items():
        difference = statistics.mean(values) - statistics.mean(first)
        seeds = ", ".join(f"{value:.3f}" for value in values)
        rows.append([arm, f"{sizes[arm] / 1e6:.1f}", seeds, f"{difference:+.3f}" if difference else ""])
    print(table(["corpus", "million tokens", "held-out loss, by seed", "difference of means"], rows))


def write_corpora(text: Path, folder: Path, count: int, seed: int) -> None:
    """Writes web.jsonl of `count` documents, and held_out.jsonl, of neighbouring lines of prose."""
    rng = random.Random(seed)
    with text.open(encoding="utf-8") as lines, (folder / "prose.txt").open("w", encoding="utf-8") as prose:
        prose.writelines(line for line in lines if is_prose(line))
    originals = list(documents_of(folder / "prose.txt", 1 << 40))
    rng.shuffle(originals)
    write(folder / "held_out.jsonl", originals[:HELD_OUT])
    originals = originals[HELD_OUT : HELD_OUT + count // 2]
    web = [with_boilerplate(original, rng) if rng.random() < 0.5 else original for original in originals]
    while len(web) < 0.85 * count:  # some documents have many copies
        copied = originals[int(len(originals) * rng.random() ** 3)]
        web.append(rng.choice(list(KINDS.values()))(copied, rng))
    while len(web) < count:
        web.append(junk_page(rng.choice(originals), rng))
    rng.shuffle(web)
    write(folder / "web.jsonl", web)


def is_prose(line: str) -> bool:
    return len(line) > 200 and line.isascii() and line.endswith(".\n")


def with_boilerplate(text: str, rng: random.Random) -> str:
    """Adds lines between the paragraphs of a document."""
    lines = text.split("\n")
    for _ in range(rng.randrange(2, 8)):
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(BOILERPLATE))
    return "\n".join(lines)


def junk_page(text: str, rng: random.Random) -> str:
    """Returns a page of boilerplate, and of lists of repeated words."""
    words = rng.sample(text.split(), 20)
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(10)]
    lines += rng.choices(BOILERPLATE, k=20) + [lines[0]] * 5
    rng.shuffle(lines)
    return "\n".join(lines)


def write(path: Path, texts: Sequence[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def train(folder: Path, options: Sequence[str], steps: int, seed: int) -> tuple[int, float]:
    """Prepares the corpus with these options and trains on it. Returns its tokens, and the held-out loss."""
    pipeline = [sys.executable, "-m", "beam_pipeline"]
    tokenizer, log = folder / "tokenizer", folder / "log"
    if not tokenizer.exists():
        source = ["--input", str(folder / "web.jsonl"), "--vocab_size", "2048", "--output", str(tokenizer)]
        measure([*pipeline, "train-tokenizer", *source], log)
    rows = ["--tokenizer", str(tokenizer), "--append_eos", "--max_length", "128", "--seed", str(seed)]
    splits = [("web", folder / "-".join(["web", *options]).replace(",", ""), options)]
    splits.append(("held_out", folder / "clean", []))
    for name, output, chosen in splits:
        source = ["--input", str(folder / f"{name}.jsonl"), "--output", str(output), "--resume"]
        measure([*pipeline, "prepare", *source, *rows, *chosen], log)
    (_, web, _), (_, clean, _) = splits
    output = web.with_suffix(".run")
    measure(
        [
            *(str(TRAINER), "-m", "tpu_trainer", "fit", "--config", str(ROOT / "demo" / "model.yaml")),
            *("--data.train", str(web / "train"), "--data.validation", str(clean / "train")),
            *("--train.steps", str(steps), "--seed", str(seed), "--output_dir", str(output)),
        ],
        log,
    )
    tokens = json.loads((web / "train" / "manifest.json").read_bytes())["totals"]["tokens"]
    return tokens, json.loads((output / "summary.json").read_bytes())["eval"]["loss"]


if __name__ == "__main__":
    main()
