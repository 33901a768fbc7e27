"""Runs of `prepare --dedup paragraphs`: what is left is what a reference in plain Python leaves."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.steps import paragraphs, write
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import inspection, prepare
from beam_pipeline.views.reading import open_dataset
from beam_pipeline.views.tracing import Tracer
from tests.beam_pipeline.conftest import make_documents
from tests.beam_pipeline.paragraph_reference import without_repeated
from tests.beam_pipeline.runs import (
    arguments,
    content,
    defects,
    edit_before_tokenizing,
    fail_before_the_manifests,
)

COOKIES = "This site uses cookies. By reading on, you agree to our use of them."
NEWSLETTER = "Subscribe to our newsletter, and never miss an article again!"
DOCUMENTS = ["--packing", "none", "--output_format", "parquet"]
OPTIONS = [*DOCUMENTS, "--dedup", "paragraphs", "--paragraph_copies", "5"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Documents of several lines, of which most have boilerplate somewhere, and some have nothing else."""
    rng = random.Random(4)
    lines = [text for text in make_documents(600, seed=9) if text.strip()]
    texts = []
    for number in range(150):
        own = lines[3 * number : 3 * number + rng.randint(1, 4)]
        if number % 10 == 9:
            own = []
        for planted, share in ((COOKIES, 0.5), (NEWSLETTER.upper(), 0.2), ("Share this", 0.5)):
            if rng.random() < share or not own:
                own.insert(rng.randint(0, len(own)), planted)
        texts.append("\n".join(line + "\n" * rng.choice((0, 0, 1)) for line in own))
    return texts


def write_source(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "in.jsonl", texts)


@pytest.fixture
def expected(tmp_path: Path, tokenizer_folder: Path):
    """Returns the shards of texts that are left."""

    def prepare_left(texts: list[str | None]) -> dict[str, bytes]:
        source = write_source(tmp_path / "left.jsonl", [text for text in texts if text is not None])
        prepare.main(arguments(source, tokenizer_folder, tmp_path / "left", *DOCUMENTS))
        return shards(tmp_path / "left")

    return prepare_left


@pytest.fixture
def run(source: Path, tokenizer_folder: Path, tmp_path: Path):
    def run_prepare(*options: str, output: str = "out", given: Path = source) -> Path:
        prepare.main(arguments(given, tokenizer_folder, tmp_path / output, *OPTIONS, *options))
        return tmp_path / output

    return run_prepare


def shards(folder: Path) -> dict[str, bytes]:
    return {
        name: data for name, data in content(folder).items() if "parquet" in name and "removed" not in name
    }


def removed(folder: Path) -> list[dict]:
    files = sorted(folder.glob("removed/*.parquet"))
    rows = pa.concat_tables(map(pq.read_table, files)).to_pylist() if files else []
    return [row | json.loads(row["evidence"]) for row in rows]


def manifest(folder: Path) -> dict:
    return json.loads((folder / "train" / "manifest.json").read_text())


@pytest.mark.parametrize("unit_bytes", ["1000", "1000000"])
def test_what_is_left_is_that_of_the_reference(run, texts, expected, unit_bytes):
    out = run("--unit_bytes", unit_bytes)
    left = without_repeated(texts, 5, 8, of_blocks=False)
    assert len(texts) - 30 < len(left) - left.count(None) < len(texts) - 5
    assert shards(out) == expected(left)
    rows = removed(out)
    assert {row["rule"] for row in rows} == {"paragraphs", "paragraphs.all"}
    whole = [row for row in rows if row["rule"] == "paragraphs.all"]
    assert manifest(out)["removed"] == {"paragraphs.all": len(whole)}
    assert manifest(out)["edited"] == {"paragraphs": len(rows) - len(whole)}
    counts = {sum(line in text for text in texts) for line in (COOKIES, NEWSLETTER.upper())}
    assert {copy[2] for row in rows for copy in row.get("copies", ())} == counts
    assert defects(out) == []
    [split] = open_dataset(str(out))
    assert all(
        Tracer(split).trace(split.origin(0, record), split.row(0, record)) for record in range(0, 40, 10)
    )


def test_workers_and_buckets_do_not_change_a_byte(run, monkeypatch):
    whole = content(run("--unit_bytes", "3000", output="whole"))
    monkeypatch.setattr(paragraphs, "num_buckets", lambda size: 3)
    workers = ("--direct_num_workers", "2", "--direct_running_mode", "multi_threading")
    assert content(run("--unit_bytes", "3000", *workers)) == whole


def test_documents_are_compared_by_what_is_left(run, tmp_path):
    own, other = "the cat sat on the mat", "the dog ran in the park"
    texts = [f"{own}\n{COOKIES}\n{number}" for number in range(9)]
    texts += [f"{COOKIES}\n{own}", own, f"{other} {own}\n{COOKIES}", f"{other} {own}!"]
    source = write_source(tmp_path / "in.jsonl", texts)
    out = run("--dedup", "exact+paragraphs", output="exact", given=source)
    assert {row["document"]: row["kept"] for row in removed(out) if row["rule"] == "exact"} == {10: [0, 9]}
    out = run("--dedup", "near+paragraphs", "--near_shingle", "2", output="near", given=source)
    assert {row["document"] for row in removed(out) if row["rule"] == "near"} >= {10, 12}
    assert manifest(out)["edited"] == {"paragraphs": 2}  # the others are removed as near-duplicates


def test_passages_of_benchmarks_and_edits_of_filters_come_first(run, tmp_path, expected):
    item = " ".join(f"word{number}" for number in range(20))
    own = [f"document {number} has {' '.join(str(number * n) for n in range(9))}" for number in range(12)]
    texts = [f"{text}\n{item}\n{COOKIES} mail a{len(text)}@example.com\n{text} ends" for text in own]
    (tmp_path / "bench.jsonl").write_text(json.dumps({"text": item}) + "\n")
    benchmark = ["--decontaminate", str(tmp_path / "bench.jsonl"), "--decontaminate_remove", "passage"]
    source = write_source(tmp_path / "in.jsonl", texts)
    out = run(*benchmark, "--filter", "pii", "--unit_bytes", "700", given=source)
    [split] = open_dataset(str(out))
    parts = [Tracer(split).trace(split.origin(0, record), split.row(0, record)) for record in range(12)]
    assert len(parts) == 12
    assert manifest(out)["edited"] == {
        "decontaminate_passages+paragraphs+pii": 11,
        "decontaminate_passages+pii": 1,
    }
    cleaned = [f"{text}\n\n{COOKIES} mail <email>\n{text} ends" for text in own[:1]]
    cleaned += [f"{text}\n\n{text} ends" for text in own[1:]]
    assert shards(out) == expected(cleaned)


def test_blank_lines_end_paragraphs_if_requested(run, texts, tmp_path, expected):
    wrapped = [text.replace(". By", ".\nBy").replace(", and", ",\r\nand") for text in texts]
    source = write_source(tmp_path / "in.jsonl", wrapped)
    out = run("--paragraph_end", "blank_line", "--paragraph_min_words", "3", given=source)
    left = without_repeated(wrapped, 5, 3, of_blocks=True)
    assert left != wrapped
    assert shards(out) == expected(left)


def test_restored_documents_keep_their_paragraphs(run, texts, tmp_path):
    listed = pq.read_table(run(output="first") / "removed")
    assert len({*listed["document"].to_pylist()}) > 50
    pq.write_table(listed, tmp_path / "restore.parquet")
    out = run("--restore", str(tmp_path / "restore.parquet"))
    assert not removed(out) and "edited" not in manifest(out)
    assert manifest(out)["totals"]["bytes"] == len("".join(texts).encode())


def test_a_dry_run_lists_the_same_documents(run, capsys):
    out = run("--unit_bytes", "3000", "--dry_run")
    listed = removed(out)
    assert f"edited documents: {sum(r['rule'] == 'paragraphs' for r in listed)} by" in (
        capsys.readouterr().out
    )
    assert removed(run("--unit_bytes", "3000")) == listed != []


def test_a_resumed_run_splits_no_unit_again(run, monkeypatch):
    options = ("--unit_bytes", "3000")
    expected = content(run(*options, output="whole"))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(write, "commit", fail_before_the_manifests)
        run(*options)
    with monkeypatch.context() as patch:
        patch.setattr(paragraphs.Splitter, "split", lambda *_: pytest.fail("split again"))
        out = run(*options, "--resume")
    assert content(out) == expected


def test_an_input_that_changes_after_it_was_split_is_an_error(run, source, tmp_path, monkeypatch):
    edited = tmp_path / "edited.jsonl"
    edited.write_bytes(source.read_bytes())
    changed = source.read_bytes().replace(b"a", b"b")
    edit_before_tokenizing(monkeypatch, 1, lambda: edited.write_bytes(changed))
    with pytest.raises(DataError, match=r"edited\.jsonl: has changed since this run first read it"):
        run("--unit_bytes", "3000", given=edited)


@pytest.mark.parametrize("own", [True, False])
def test_a_paragraph_of_every_document_stays_in_the_first(run, tmp_path, own):
    texts = [f"{COOKIES}\nown {number}" if own else COOKIES for number in range(3000)]
    out = run("--unit_bytes", "20000", given=write_source(tmp_path / "in.jsonl", texts))
    rows = removed(out)
    assert len(rows) == 2999 and {row["rule"] for row in rows} == {"paragraphs" if own else "paragraphs.all"}
    places = {tuple(row["copies"][0]) if own else (*row["kept"], row["documents"]) for row in rows}
    assert places == {(0, 0, 3000)}


def test_repeats_of_a_mix_are_not_compared(run, source, tmp_path, tokenizer_folder):
    out = tmp_path / "mix"
    once = removed(run())
    prepare.main(["--mix", f"{source}*2", *arguments(source, tokenizer_folder, out, *OPTIONS)[2:]])
    assert len(removed(out)) == 2 * len(once)


def test_inspect_shows_what_is_cut(run, capsys):
    out = run()
    inspection.main([str(out), "--removed", "paragraphs", "--most", "200"])
    printed = capsys.readouterr().out
    assert f"{manifest(out)['edited']['paragraphs']}  paragraphs\n" in printed
    assert f"[-{COOKIES}" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dedup", "near", "--paragraph_copies", "3"], "applies to --dedup paragraphs only"),
        (["--near_bands", "14x8"], "applies to --dedup near only"),
        (["--dedup", "near,paragraphs"], r"must be none, exact, near, paragraphs, exact\+paragraphs or"),
        (["--content", "conversation", "--packing", "best_fit", "--output_format", "tfrecord"], "stay whole"),
    ],
)
def test_wrong_options_are_refused(run, options, message):
    with pytest.raises(UsageError, match=message):
        run(*options)
