"""Trains the same small model on a web-like corpus as it is, and curated, and compares the loss on clean held-out text.

    .venv/bin/python benchmarks/curated_loss.py big.txt

The corpus is real prose with planted copies, boilerplate and junk pages. Each run trains with the same number of
tokens, less than each corpus has, so that no run sees a row twice. The held-out documents are in no corpus, and nothing
was planted in them; the loss is that of all of them, and of those that the filters keep. A run takes about five minutes
of a core.

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
FILTERS = ["--filter", "gopher_repetition,gopher,c4,fineweb"]
ARMS = {
    "as it is": [],
    "--dedup near+paragraphs": ["--dedup", "near+paragraphs"],
    "--filter … --dedup near": [*FILTERS, "--dedup", "near"],
}
HELD_OUT_SPLITS = {"all": [], "kept": FILTERS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="a text file, one paragraph per line")
    parser.add_argument("--documents", type=int, default=32_000, help="of the corpus, with copies and junk")
    parser.add_argument("--steps", type=int, default=1_100, help="of 16 rows of 128 tokens")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    losses: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        for seed in args.seeds:
            folder = Path(name, str(seed))
            folder.mkdir()
            write_corpora(args.text, folder, args.documents, seed)
            for arm, options in ARMS.items():
                sizes[arm], loss = train(folder, options, args.steps, seed)
                losses[arm].append(loss)
                print(f"seed {seed}, {arm}: {loss}", flush=True)
    first = next(iter(losses.values()))
    rows = []
    for arm, each in losses.items():
        row = [arm, f"{sizes[arm] / 1e6:.1f}"]
        for split in HELD_OUT_SPLITS:
            difference = statistics.mean(loss[split] for loss in each) - statistics.mean(
                loss[split] for loss in first
            )
            row.append(", ".join(f"{loss[split]:.3f}" for loss in each))
            row.append(f"{difference:+.3f}" if each is not first else "")
        rows.append(row)
    header = [
        "corpus",
        "million tokens",
        "loss on held-out text, by seed",
        "",
        "on what the filters keep of it",
        "",
    ]
    print(table(header, rows))


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


def train(folder: Path, options: Sequence[str], steps: int, seed: int) -> tuple[int, dict[str, float]]:
    """Prepares the corpus with these options and trains on it. Returns its tokens, and the losses by held-out split."""
    pipeline = [sys.executable, "-m", "beam_pipeline"]
    tokenizer, log = folder / "tokenizer", folder / "log"
    if not tokenizer.exists():
        source = ["--input", str(folder / "web.jsonl"), "--vocab_size", "2048", "--output", str(tokenizer)]
        measure([*pipeline, "train-tokenizer", *source], log)
    rows = ["--tokenizer", str(tokenizer), "--append_eos", "--max_length", "128", "--seed", str(seed)]
    web = folder / "-".join(["web", *options]).replace(",", "")
    splits = [("web", web, options)]
    splits += [("held_out", folder / name, chosen) for name, chosen in HELD_OUT_SPLITS.items()]
    for name, output, chosen in splits:
        source = ["--input", str(folder / f"{name}.jsonl"), "--output", str(output), "--resume"]
        measure([*pipeline, "prepare", *source, *rows, *chosen], log)
    validation = {name: str(folder / name / "train") for name in HELD_OUT_SPLITS}
    output = web.with_suffix(".run")
    measure(
        [
            *(str(TRAINER), "-m", "tpu_trainer", "fit", "--config", str(ROOT / "demo" / "model.yaml")),
            *("--data.train", str(web / "train"), "--data.validation", json.dumps(validation)),
            *("--train.steps", str(steps), "--seed", str(seed), "--output_dir", str(output)),
        ],
        log,
    )
    tokens = json.loads((web / "train" / "manifest.json").read_bytes())["totals"]["tokens"]
    figures = json.loads((output / "summary.json").read_bytes())["eval"]["splits"]
    return tokens, {name: each["loss"] for name, each in figures.items()}


if __name__ == "__main__":
    main()
