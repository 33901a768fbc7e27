"""Runs of `prepare` with filters."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import prepare
from beam_pipeline.views.reading import open_dataset
from beam_pipeline.views.tracing import Tracer
from tests.beam_pipeline.curation.test_rules import GOOD
from tests.beam_pipeline.runs import content

pytest.importorskip("spacy")

TEXTS = [
    GOOD,
    "A short text.",
    GOOD + "\nHome | About",
    "",
    f"{GOOD}\n{GOOD}",
    GOOD.replace("rivers", "lakes"),
    GOOD,
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "web.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def run(tmp_path, source, tokenizer_folder):
    def run_prepare(*options: str, output: str = "out") -> Path:
        argv = ["--input", str(source), "--tokenizer", str(tokenizer_folder), "--max_length", "32"]
        prepare.main([*argv, "--output", str(tmp_path / output), *options])
        return tmp_path / output

    return run_prepare


def test_filtered_documents_are_listed_and_take_no_part_in_deduplication(run, source):
    out = run("--filter", "gopher,c4,fineweb", "--dedup", "exact", "--packing", "pad", "--max_length", "4000")
    rows = pq.read_table(out / "removed").to_pylist()
    lines = [0, *np.cumsum([len(line) for line in source.read_bytes().splitlines(keepends=True)]).tolist()]
    assert {row["path"] for row in rows} == {str(source)}
    assert [(lines.index(row["place"]), row["document"], row["rule"]) for row in rows] == [
        (1, 1, "c4"),
        (1, 1, "fineweb"),
        (1, 1, "gopher"),
        (2, 2, "exact"),  # equal after c4 has removed a line
        (4, 3, "fineweb"),
        (6, 5, "exact"),
    ]
    manifest = json.loads((out / "train" / "manifest.json").read_bytes())
    assert manifest["removed"] == {"c4+fineweb+gopher": 1, "fineweb": 1}
    assert manifest["excluded"]["removed_documents"] == 2 and manifest["excluded"]["duplicate_documents"] == 2
    assert manifest["totals"]["documents"] == 2
    # Rows are traced to the edited texts.
    (split,) = open_dataset(str(out))
    places = [part.place for row, origin in _rows(split) for part in Tracer(split).trace(origin, row)]
    assert sorted(places) == [lines[0], lines[5]]


def _rows(split):
    for shard in range(len(split.manifest["shards"])):
        for record, row in enumerate(split.rows(shard)):
            yield row, split.origin(shard, record)


def test_another_threshold_keeps_others_and_resumes_to_the_same_bytes(run):
    options = (
        "--filter",
        "gopher",
        "--thresholds",
        "gopher.min_words=3,gopher.min_stop_words=0,gopher.min_letter_words=0.7",
        "--unit_bytes",
        "600",
    )
    out = run(*options)
    assert not (out / "removed").exists()
    first = content(out)
    assert content(run(*options, "--resume")) == first


def test_filters_are_checked_before_a_run(run):
    with pytest.raises(UsageError, match="'gofer' is neither one of gopher"):
        run("--filter", "gofer")
    with pytest.raises(UsageError, match="c4 occurs twice"):
        run("--filter", "c4,gopher,c4")
    with pytest.raises(UsageError, match=r"not FILTER\.NAME=NUMBER"):
        run("--filter", "c4", "--thresholds", "c4.min_sentences")
    with pytest.raises(UsageError, match="not for conversations"):
        run("--filter", "c4", "--content", "conversation")
