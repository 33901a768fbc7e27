"""Trains the classifier of demo/quality.py, and shows what `annotate` and `--filter` do with it.

    python benchmarks/quality.py wiki.txt        (a text of many lines, such as ../shared/corpora/wikitext-2/valid.txt)

The good texts are lines of the text, the bad ones are made of templates of web pages' frames and advertisements, with
words of the text. Half of the lines and half of the templates are for training, and the corpus is made of the other
lines, with known and with unseen templates.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from measure import measure, table

DEMO = Path(__file__).resolve().parents[1] / "demo" / "quality.py"
TEMPLATES = (
    "{} | {} | {} | {} | Contact us",
    "Home > {} > {} > {}",
    "Buy {} {} online at the best price, free shipping on all orders over $50!",
    "{} {} - cheap {} for sale - {} reviews and offers",
    "Posted by {} on 12 March in {}, {} | 14 comments",
    "Last edited by {}; 05-11-2009 at 09:12 PM. Reason: {}",
    "Click here to subscribe to our {} newsletter and get the latest {} news in your inbox.",
    "Sign up now! Join {} members who already enjoy {} and {}.",
    "Copyright 2013 {}. All rights reserved. Terms of use, privacy policy, {}.",
    "This site uses cookies. By continuing to browse {} you agree to our use of cookies.",
    "Share this on Facebook Twitter Pinterest Email {} {}",
    "Like 23 Tweet Pin it Print Permalink {}",
    "Related: {} {} {}; {} {} {}; {} {}",
    "Tags: {}, {}, {}, {}, {}, {}, {}",
    "You must be logged in to reply to this topic. Forgot your password? {}",
    "Register to post a review of {}. Already a member? Log in.",
    "{} {} {} {} {} {} {} {} {} {}",
    "{}: in stock. Quantity: 1. Add to cart. Add to wish list. Compare {}.",
    "$14.99 $9.99 Sale! {} {} (pack of 6) 4.5 out of 5 stars",
    "Download {} free full version crack serial {} torrent",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--documents", type=int, default=4000, help="of the corpus")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lines = [line.strip() for line in args.text.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if len(line) > 100]
    rng = random.Random(args.seed)
    rng.shuffle(lines)
    half = len(lines) // 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(DEMO, folder)
        bad = [junk(lines[:half], KNOWN, rng).replace("\n", " ") for _ in range(half)]
        (folder / "good.txt").write_text("\n".join(lines[:half]), encoding="utf-8")
        (folder / "bad.txt").write_text("\n".join(bad), encoding="utf-8")
        with (folder / "web.jsonl").open("w", encoding="utf-8") as file:
            for number in range(args.documents):
                kind = tuple(KINDS)[number % len(KINDS)]
                make, templates = KINDS[kind]
                text = make(lines[half:], templates, rng)
                file.write(json.dumps({"text": text, "kind": kind}) + "\n")
        show(folder)


def article(lines: Sequence[str], templates: Sequence[str], rng: random.Random) -> str:
    return "\n".join(rng.sample(lines, rng.randrange(1, 5)))


def junk(lines: Sequence[str], templates: Sequence[str], rng: random.Random) -> str:
    """Returns filled templates, one per line."""
    words = rng.choice(lines).split()
    chosen = rng.choices(templates, k=rng.randrange(3, 15))
    return "\n".join(line.format(*rng.choices(words, k=12)) for line in chosen)


def framed(lines: Sequence[str], templates: Sequence[str], rng: random.Random) -> str:
    """Returns an article with some lines of a web page around it."""
    text = article(lines, templates, rng)
    around = junk(lines, templates, rng).split("\n")[:3]
    return "\n".join([around[0], text, *around[1:]])


KNOWN, UNSEEN = TEMPLATES[::2], TEMPLATES[1::2]
KINDS = {
    "article": (article, KNOWN),
    "article in a page's frame": (framed, KNOWN),
    "frame of known templates": (junk, KNOWN),
    "frame of unseen templates": (junk, UNSEEN),
}


def show(folder: Path) -> None:
    """Trains, annotates and filters, and prints what becomes of each kind of document."""
    log, environment = folder / "log", {"PYTHONPATH": str(folder)}
    files = [str(folder / name) for name in ("quality.py", "good.txt", "bad.txt")]
    trained = measure([sys.executable, *files], log)
    print(f"{log.read_text().strip()}\ntraining: {trained.cpu_seconds:.1f} CPU s, {trained.seconds:.1f} s")
    corpus = ["--input", str(folder / "web.jsonl"), "--output"]
    tokenmill = [sys.executable, "-m", "beam_pipeline"]
    annotate = [*corpus, str(folder / "attributes"), "--measure", "quality:good", "--keep_columns", "kind"]
    annotated = measure([*tokenmill, "annotate", *annotate], log, environment)
    without = [*corpus, str(folder / "other"), "--measure", "pii"]
    other = measure([*tokenmill, "annotate", *without], log, environment)
    size = (folder / "web.jsonl").stat().st_size
    print(
        f"annotate --measure quality:good: {annotated.cpu_seconds:.1f} CPU s for {size / 1e6:.1f} MB; with pii "
        f"instead: {other.cpu_seconds:.1f} CPU s\n"
    )
    source = [*corpus[:2], "--vocab_size", "2000", "--output", str(folder / "tokenizer")]
    measure([*tokenmill, "train-tokenizer", *source], log)
    options = ["--tokenizer", str(folder / "tokenizer"), "--filter", "quality:good"]
    measure([*tokenmill, "prepare", *corpus, str(folder / "clean"), *options], log, environment)
    attributes = pq.read_table(folder / "attributes").select(["document", "kind", "quality"])
    removed = pq.read_table(folder / "clean" / "removed")["document"]
    kept = pc.invert(pc.is_in(attributes["document"], value_set=removed.combine_chunks()))
    rows = []
    for kind in KINDS:
        is_kind = pc.equal(attributes["kind"], kind)
        scores = attributes["quality"].filter(is_kind).to_numpy()
        shares = [f"{(scores >= limit).mean():.1%}" for limit in (0.2, 0.8)]
        share = pc.mean(kept.filter(is_kind).cast("float64")).as_py()
        rows.append([kind, f"{len(scores):,}", f"{scores.mean():.2f}", f"{share:.1%}", *shares])
    head = ["documents", "number", "mean score", "kept by --filter quality:good"]
    print(table([*head, "score ≥ 0.2", "score ≥ 0.8"], rows))


if __name__ == "__main__":
    main()
