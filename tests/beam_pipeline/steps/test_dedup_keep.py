"""`--dedup_keep`: which of several equal or similar documents is kept."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.steps import near
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import annotate, inspection, prepare
from tests.beam_pipeline.near_corpora import planted
from tests.beam_pipeline.near_reference import clusters
from tests.beam_pipeline.runs import arguments, content, defects

TEXTS = planted(12)
SCORES = [(7 * number) % 5 if number % 11 else None for number in range(len(TEXTS))]
OPTIONS = ["--max_length", "64", "--unit_bytes", "6000"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of planted near-duplicates, and its attributes, of which only `score` is a choice."""
    folder = tmp_path_factory.mktemp("keep")
    rows = [{"text": text, "score": score} for text, score in zip(TEXTS, SCORES, strict=True)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [
        "--input",
        str(folder / "in.jsonl"),
        "--unit_bytes",
        "6000",
        "--output",
        str(folder / "attributes"),
    ]
    annotate.main([*argv, "--measure", "pii", "--keep_columns", "score"])
    return folder


def kept_instead(out: Path, source: Path) -> dict[int, int]:
    """Returns the document that is kept instead of each removed one, by their numbers in the corpus."""
    lines = source.read_bytes().splitlines(keepends=True)
    number_at = {sum(map(len, lines[:number])): number for number in range(len(lines))}
    firsts = [
        number_at[min(place for place in number_at if place >= json.loads(line)["parts"][0][1])]
        for line in (out / "train" / "units.jsonl").read_text().splitlines()[:-1]
    ]
    assert len(firsts) > 2
    rows = [row for path in (out / "removed").iterdir() for row in pq.read_table(path).to_pylist()]
    kept = {number_at[row["place"]]: json.loads(row["evidence"])["kept"] for row in rows}
    return {number: firsts[unit] + document for number, (unit, document) in kept.items()}


def best_instead(groups: dict[int, int], score) -> dict[int, int]:
    """Returns the best document of the group of each other one, given the first of each that is not the first."""
    first_of = groups | {first: first for first in groups.values()}
    best = {
        first: max((number for number in first_of if first_of[number] == first), key=lambda n: (score(n), -n))
        for first in groups.values()
    }
    return {number: best[first] for number, first in first_of.items() if number != best[first]}


def score_of(number: int) -> float:
    return float("-inf") if SCORES[number] is None else SCORES[number]


@pytest.mark.parametrize(
    ("choice", "score"), [("longest", lambda number: len(TEXTS[number].encode())), ("score", score_of)]
)
def test_the_best_of_similar_documents_is_kept(
    folder, tokenizer_folder, tmp_path, monkeypatch, choice, score
):
    groups = clusters(TEXTS, 0.8, 5)
    options = ["--dedup", "near", "--dedup_keep", choice, *OPTIONS]
    if choice == "score":
        options += ["--attributes", str(folder / "attributes")]
    source = folder / "in.jsonl"
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "one", *options))
    expected = best_instead(groups, score)
    assert kept_instead(tmp_path / "one", source) == expected != groups
    assert defects(tmp_path / "one") == []
    inspection.main([str(tmp_path / "one"), "--removed", "near", "--most", "2"])
    monkeypatch.setattr(near, "num_partitions", lambda size: 3)
    monkeypatch.setattr(near, "num_rounds", lambda size: 2)
    threads = ["--direct_num_workers", "2", "--direct_running_mode", "multi_threading"]
    prepare.main(arguments(source, tokenizer_folder, tmp_path / "two", *options, *threads))
    assert content(tmp_path / "two") == content(tmp_path / "one")


def test_the_best_of_equal_documents_is_kept(folder, tokenizer_folder, tmp_path):
    first = {text: TEXTS.index(text) for text in TEXTS}
    groups = {number: first[text] for number, text in enumerate(TEXTS) if first[text] != number}
    options = [
        "--dedup",
        "exact",
        "--dedup_keep",
        "score",
        "--attributes",
        str(folder / "attributes"),
        *OPTIONS,
    ]
    prepare.main(arguments(folder / "in.jsonl", tokenizer_folder, tmp_path / "out", *options))
    expected = best_instead(groups, score_of)
    assert kept_instead(tmp_path / "out", folder / "in.jsonl") == expected != groups
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dedup", "exact", "--dedup_keep", "longest"], "equal texts are equally long"),
        (["--dedup", "near", "--dedup_keep", "score"], "but --attributes is missing"),
        (["--dedup", "near", "--dedup_keep", "scor", "--attributes"], "did you mean score"),
        (["--dedup", "near", "--attributes"], "has no effect alone"),
        (["--dedup_keep", "longest"], "requires --dedup"),
    ],
)
def test_wrong_choices_are_refused(folder, tokenizer_folder, tmp_path, options, message):
    options = [*options, str(folder / "attributes")] if options[-1] == "--attributes" else options
    with pytest.raises(UsageError, match=message):
        prepare.main(arguments(folder / "in.jsonl", tokenizer_folder, tmp_path / "out", *options, *OPTIONS))
