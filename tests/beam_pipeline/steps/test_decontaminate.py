"""Runs of `prepare --decontaminate`: what is removed, listed and reported, for any work units and after any failure."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.decontaminate_options import DecontaminateConfig
from beam_pipeline.steps import decontaminate, write
from beam_pipeline.steps.decontaminate import SumCounts, common_ngrams, merge_common
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import prepare
from beam_pipeline.verbs.benchmark_index import index_benchmarks
from beam_pipeline.views.reading import open_dataset
from beam_pipeline.views.tracing import Tracer
from tests.beam_pipeline.conftest import make_documents
from tests.beam_pipeline.conversations.families import CHATML, save_tokenizer
from tests.beam_pipeline.runs import (
    arguments,
    content,
    defects,
    edit_before_tokenizing,
    fail_before_the_manifests,
)

ITEMS = 30


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with an item of bench.jsonl in every fifth document, after a third of it, in capitals."""
    folder = tmp_path_factory.mktemp("inputs")
    rng = random.Random(5)
    items = [
        {
            "question": " ".join(f"item{number}w{rng.randrange(10**6)}" for _ in range(20)),
            "answer": str(number),
        }
        for number in range(ITEMS)
    ]
    documents = [text for text in make_documents(300, seed=3) if len(text.split()) > 5]
    for number, item in enumerate(items):
        words = documents[5 * number].split()
        planted = f"{item['question'].upper().replace(' ', ', ')}? Answer: {item['answer']}!"
        documents[5 * number] = " ".join([*words[: len(words) // 3], planted, *words[len(words) // 3 :]])
    documents[7] = f"{items[0]['question']} with another answer"
    documents[8] = f"a part: {' '.join(items[1]['question'].split()[:14])}"
    for name, records in (("bench", items), ("in", [{"text": text} for text in documents])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def run(inputs: Path, tokenizer_folder: Path, tmp_path: Path):
    def run_prepare(
        *options: str, output: str = "out", fields: str = "question", bench: Path = inputs / "bench.jsonl"
    ) -> Path:
        benchmark = ["--decontaminate", str(bench), "--decontaminate_fields", fields]
        rows = ["--max_length", "32", "--shard_size", "300", "--segment_ids"]
        folder = tmp_path / output
        prepare.main(arguments(inputs / "in.jsonl", tokenizer_folder, folder, *benchmark, *rows, *options))
        return folder

    return run_prepare


def removed(folder: Path) -> list[dict]:
    rows = pa.concat_tables(
        pq.read_table(path) for path in sorted(folder.glob("removed/*.parquet"))
    ).to_pylist()
    return [row | json.loads(row["evidence"]) for row in rows]


def report(folder: Path) -> dict:
    [benchmark] = json.loads((folder / "removed" / "_contamination.json").read_text())["benchmarks"]
    return benchmark


@pytest.mark.parametrize("unit_bytes", ["700", "100000"])
def test_all_planted_items_are_found_in_any_work_units(run, inputs, unit_bytes):
    out = run("--unit_bytes", unit_bytes, "--dedup", "exact")
    lines = (inputs / "in.jsonl").read_bytes().splitlines(keepends=True)
    places = np.cumsum([0, *map(len, lines)]).tolist()
    expected = {places[5 * number]: (number, 1.0) for number in range(ITEMS)} | {places[7]: (0, 1.0)}
    assert {row["place"]: (row["item"], row["value"]) for row in removed(out)} == expected
    assert {row["rule"] for row in removed(out)} == {"decontaminate"}
    assert report(out) == {
        "name": "bench.jsonl",
        "items": ITEMS,
        "not_checkable": 0,
        "public": 0,
        "contained": ITEMS,
        "documents": ITEMS + 1,
        "documents_by_share": [0, 0, 1, 0, 0, 0, 0, 0, 0, ITEMS + 1],
        "most_frequent": [{"item": item, "documents": 1 + (item == 0)} for item in range(ITEMS)],
    }
    manifest = json.loads((out / "train" / "manifest.json").read_text())
    assert manifest["removed"] == {"decontaminate": ITEMS + 1}
    assert manifest["totals"]["documents"] == len(lines) - ITEMS - 1
    assert defects(out) == []


def test_all_fields_must_match(run):
    assert len(removed(run(fields="question:answer"))) == ITEMS


def test_a_smaller_share_finds_parts_of_items(run):
    assert len(removed(run("--decontaminate_share", "0.25"))) == ITEMS + 2


def test_the_bytes_do_not_depend_on_the_workers_or_the_folder_of_the_benchmark(
    run, inputs, tmp_path, tokenizer_folder
):
    options = ("--unit_bytes", "3000", "--decontaminate_remove", "passage", "--dedup", "near")
    expected = content(run(*options))
    workers = ("--direct_num_workers", "2", "--direct_running_mode", "multi_threading")
    assert content(run(*options, *workers, output="workers")) == expected
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "bench.jsonl").write_bytes((inputs / "bench.jsonl").read_bytes())
    assert content(run(*options, bench=tmp_path / "elsewhere", output="moved")) == expected


def test_passages_are_cut_and_the_documents_stay(run):
    out = run(
        "--decontaminate_remove", "passage", "--unit_bytes", "5000", "--packing", "pad", "--max_length", "512"
    )
    rows = removed(out)
    assert {row["rule"] for row in rows} == {"decontaminate_passages"} and len(rows) == ITEMS + 1
    manifest = json.loads((out / "train" / "manifest.json").read_text())
    assert "removed" not in manifest and manifest["excluded"]["records"] == manifest["totals"]["documents"]
    assert defects(out) == []
    [split] = open_dataset(str(out))
    tracer = Tracer(split)
    for record in range(10):  # what the places in the source give without the passages are the rows
        assert tracer.trace(split.origin(0, record), split.row(0, record))


def test_a_document_that_is_only_an_item_is_removed_with_its_passage(tmp_path, inputs, tokenizer_folder):
    question = json.loads((inputs / "bench.jsonl").read_text().splitlines()[3])["question"]
    (tmp_path / "in.txt").write_text(f"some text\n  {question}  \nbefore {question} after\n")
    benchmark = ["--decontaminate", str(inputs / "bench.jsonl"), "--decontaminate_fields", "question"]
    options = [*benchmark, "--decontaminate_remove", "passage", "--max_length", "32"]
    prepare.main(arguments(tmp_path / "in.txt", tokenizer_folder, tmp_path / "out", *options))
    assert [(row["document"], row["rule"]) for row in removed(tmp_path / "out")] == [
        (1, "decontaminate"),
        (2, "decontaminate_passages"),
    ]


def test_items_of_public_text_are_reported_and_remove_nothing(run, capsys):
    out = run("--decontaminate_common", "1", "--unit_bytes", "700")
    benchmark = report(out)  # two documents have item 0
    assert (benchmark["public"], benchmark["contained"], benchmark["documents"]) == (1, ITEMS - 1, ITEMS - 1)
    assert {row["item"] for row in removed(out)} == {*range(1, ITEMS)}
    common = json.loads((out / "removed" / "_contamination.json").read_text())["common_ngrams"]
    assert {entry["documents"] for entry in common} == {2}


def test_a_dry_run_lists_what_a_run_removes_and_makes_no_dataset(run, capsys):
    options = ("--unit_bytes", "3000", "--dedup", "exact")
    out = run("--dry_run", *options)
    printed = capsys.readouterr().out
    assert f"bench.jsonl: {ITEMS} of {ITEMS} items in {ITEMS + 1} documents" in printed
    assert f"{ITEMS + 1} removed documents" in printed
    dry = content(out)
    assert all(name.startswith("removed/") for name in dry)
    run(*options)  # into the same folder
    made = content(out)
    assert not {"removed/_dry_run.json"} & made.keys()
    assert {name: made[name] for name in dry if name != "removed/_dry_run.json"} == {
        name: data for name, data in dry.items() if name != "removed/_dry_run.json"
    }
    assert made == content(run(*options, output="direct"))


def test_a_dry_run_replaces_no_dataset(run):
    run()
    with pytest.raises(UsageError, match="contains a dataset, or an unfinished one; choose another folder"):
        run("--dry_run")
    for option in ("--overwrite", "--resume"):
        with pytest.raises(UsageError, match=f"--dry_run with {option}"):
            run("--dry_run", option)


def test_a_resumed_run_searches_no_unit_again(run, monkeypatch):
    options = ("--unit_bytes", "3000")
    expected = content(run(*options, output="whole"))
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(write, "commit", fail_before_the_manifests)
        run(*options)
    with monkeypatch.context() as patch:
        patch.setattr(decontaminate, "find_matches", lambda *_, **__: pytest.fail("searched again"))
        out = run(*options, "--resume")
    assert content(out) == expected


def test_an_input_that_changes_after_the_search_is_an_error(
    run, inputs, tmp_path, monkeypatch, tokenizer_folder
):
    source = tmp_path / "edited.jsonl"
    source.write_bytes((inputs / "in.jsonl").read_bytes())
    changed = source.read_bytes().replace(b"a", b"b")
    edit_before_tokenizing(monkeypatch, 1, lambda: source.write_bytes(changed))
    options = ["--decontaminate", str(inputs / "bench.jsonl"), "--decontaminate_fields", "question"]
    with pytest.raises(DataError, match=r"edited\.jsonl: has changed since this run first read it"):
        prepare.main(arguments(source, tokenizer_folder, tmp_path / "out", *options, "--unit_bytes", "3000"))


def test_the_fingerprint_follows_the_content_of_the_benchmark_and_the_options(run, inputs, tmp_path):
    def fingerprint(folder: Path) -> str:
        return json.loads((folder / "train" / "manifest.json").read_text())["fingerprint"]

    other = tmp_path / "bench.jsonl"
    other.write_text((inputs / "bench.jsonl").read_text().replace("item1w", "otherw"))
    fingerprints = {
        fingerprint(run(output="a")),
        fingerprint(run(bench=other, output="b")),
        fingerprint(run("--decontaminate_share", "0.6", output="c")),
        fingerprint(run("--decontaminate_common", "999", output="d")),
    }
    assert len(fingerprints) == 4


def test_benchmarks_without_words_are_refused(tmp_path):
    path = tmp_path / "bench.txt"
    path.write_text("word\nseven words are not enough to check\n")
    with pytest.raises(
        UsageError, match=r"none of the 2 items has 8 words and no empty field; use a smaller"
    ):
        index_benchmarks(DecontaminateConfig(decontaminate=(str(path),)))


def test_items_that_cannot_be_checked_cause_a_warning(tmp_path, caplog):
    path = tmp_path / "bench.txt"
    path.write_text("word\none two three four five six seven eight\n")
    assert index_benchmarks(DecontaminateConfig(decontaminate=(str(path),)))
    assert "bench.txt: 1 of 2 items cannot be checked" in caplog.text


def test_the_messages_of_conversations_are_searched(inputs, tmp_path):
    tokenizer = save_tokenizer(tmp_path / "tokenizer", CHATML)
    question = json.loads((inputs / "bench.jsonl").read_text().splitlines()[3])["question"]
    contents = ["the cat", f'Solve "this":\n{question.replace(" ", chr(10))}', "the mat"]
    conversations = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "sat"}]}
        for text in contents
    ]
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps(conversation) + "\n" for conversation in conversations))
    options = [
        "--content",
        "conversation",
        "--max_length",
        "256",
        "--decontaminate",
        str(inputs / "bench.jsonl"),
    ]
    options += ["--decontaminate_fields", "question"]
    prepare.main(arguments(source, tokenizer, tmp_path / "out", *options))
    assert [(row["document"], row["item"]) for row in removed(tmp_path / "out")] == [(1, 3)]
    with pytest.raises(UsageError, match="--decontaminate_remove passage: conversations stay whole"):
        prepare.main(
            arguments(source, tokenizer, tmp_path / "b", *options, "--decontaminate_remove", "passage")
        )


def test_contradicting_options_are_refused(run):
    with pytest.raises(UsageError, match="--decontaminate_min_words 9: is more than --decontaminate_ngram 5"):
        run("--decontaminate_ngram", "5", "--decontaminate_min_words", "9")
    with pytest.raises(UsageError, match="--decontaminate_fields a:: has an empty name"):
        run(fields="a:")
    assert run("--decontaminate_ngram", "5")


def test_counts_of_documents_do_not_depend_on_bundles():
    def counts(*pairs: tuple[int, int]) -> tuple[bytes, bytes]:
        ngrams, numbers = np.array(pairs, np.int64).T
        return ngrams.tobytes(), numbers.tobytes()

    combine = SumCounts()
    elements = [counts((5, 1), (9, 2)), counts((5, 3)), counts((7, 4), (9, 1))]
    one = combine.create_accumulator()
    for element in elements:
        one = combine.add_input(one, element)
    several = [combine.add_input(combine.create_accumulator(), element) for element in elements]
    merged = combine.extract_output(combine.merge_accumulators(reversed(several)))
    assert merged == combine.extract_output(one) == counts((5, 4), (7, 4), (9, 3))
    assert combine.merge_accumulators([combine.create_accumulator()]) == combine.create_accumulator()
    blocks = [common_ngrams((0, counts((100, 9), (101, 3))), 3), common_ngrams((1, merged), 3)]
    assert [array.tolist() for array in merge_common(blocks)] == [[5, 7, 100], [4, 4, 9]]
    assert [array.tolist() for array in merge_common([])] == [[], []]
