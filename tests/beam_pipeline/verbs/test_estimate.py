"""`prepare --estimate` predicts what the same command makes."""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.sources import windows
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.units import DocumentBatch, WorkUnit
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.support.texts import Texts
from beam_pipeline.verbs import annotate, estimate, prepare
from tests.beam_pipeline.conftest import make_documents
from tests.beam_pipeline.runs import arguments

CLOSE = 0.02


def write_plain(folder: Path, documents: list[str]) -> None:
    """A text file whose documents get longer and longer."""
    (folder / "plain.txt").write_text("\n".join(sorted(documents, key=len)), encoding="utf-8")


def compressed(folder: Path, documents: list[str]) -> None:
    """Many compressed files of records with other fields."""
    for number in range(40):
        with gzip.open(folder / f"{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            for text in documents[number::40]:
                file.write(json.dumps({"id": f"{number} " * 7, "text": text}, ensure_ascii=False) + "\n")


def tables(folder: Path, documents: list[str]) -> None:
    """Parquet files of short and long documents, in row groups of different sizes."""
    rng = random.Random(0)
    texts = []
    while documents:
        size = rng.choice((1, 2, 3, 60))
        texts.append(" ".join(documents[:size]))
        documents = documents[size:]
    rng.shuffle(texts)
    for number, rows in enumerate((50, 80, 120)):
        table = pa.table({"text": texts[number::3], "length": list(map(len, texts[number::3]))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=rows)


@pytest.mark.parametrize(
    ("write", "options", "close"),
    [
        (write_plain, ["--packing", "concat", "--splits", "train=0.9,test=0.1"], CLOSE),
        (compressed, ["--packing", "pad"], CLOSE),
        # Shards of 10 steps of 64 KiB.
        (compressed, ["--packing", "pad", "--output_format", "arrayrecord"], 0.1),
        (tables, ["--packing", "best_fit", "--segment_ids"], CLOSE),
    ],
)
def test_tokens_and_bytes_are_predicted(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch, capsys, write, options: list[str], close: float
):
    documents = make_documents(30_000, seed=5)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", documents)
    monkeypatch.setattr(estimate, "_MIN_SAMPLE_BYTES", 1 << 20)
    out = tmp_path / "out"
    command = [*arguments(tmp_path / "in", tokenizer_folder, out, "--max_length", "64", *options)]
    prepare.main([*command, "--estimate"])
    output = capsys.readouterr().out
    assert not out.exists()
    prepare.main(command)
    names = [path.parent.name for path in out.glob("*/manifest.json")]
    manifests = [read_manifest(str(out / name)) for name in names]
    tokens = sum(manifest["totals"]["tokens"] for manifest in manifests)
    size = sum(shard["bytes"] for manifest in manifests for shard in manifest["shards"])
    match = re.search(r"documents [^,]*, ([\d,]+) tokens ± [\d.]+%, ([\d.]+) MB", output)
    assert int(match[1].replace(",", "")) == pytest.approx(tokens, rel=CLOSE)
    assert float(match[2]) * 1e6 == pytest.approx(size, rel=close)
    documents = sum(manifest["totals"]["documents"] for manifest in manifests)
    estimated_count, margin = re.search(r"about ([\d,]+) documents ± ([\d.]+)%", output).groups()
    assert int(estimated_count.replace(",", "")) == pytest.approx(documents, rel=0.02 + float(margin) / 100)
    assert [f"{name}: about" in output for name in names] == [True] * len(names)


def test_a_small_input_is_read_whole(tmp_path: Path, corpus: Path, tokenizer_folder: Path, capsys):
    command = arguments(corpus, tokenizer_folder, tmp_path / "out", "--max_length", "64")
    prepare.main([*command, "--estimate", "--prices", "shuffle_gb=1e6"])
    output = capsys.readouterr().out
    prepare.main(command)
    totals = read_manifest(str(tmp_path / "out" / "train"))["totals"]
    assert f"{totals['documents']:,} documents, {totals['tokens']:,} tokens, " in output
    assert f"{totals['rows']:,} rows of 64" in output
    assert re.search(r"shuffle: \$\d{2,}", output)


def test_documents_longer_than_windows_are_read_whole_but_not_all_of_them(
    tmp_path: Path, tokenizer_folder: Path, capsys
):
    text = "ein sehr langes Dokument " * 40_000  # 1 MB
    (tmp_path / "books.txt").write_text("\n".join([text] * 60))
    prepare.main([*arguments(tmp_path / "books.txt", tokenizer_folder, tmp_path / "out"), "--estimate"])
    output = capsys.readouterr().out
    assert 58 <= int(re.search(r"about (\d+) documents", output)[1]) <= 62
    assert float(re.search(r"sample: ([\d.]+) MB", output)[1]) < 24
    assert "the longest document of the sample has 1 MB" in output
    assert "± " in output.partition("on this machine: ")[2].partition("of memory")[0]


def test_the_time_of_a_document_counts_for_its_share_in_the_window(monkeypatch: pytest.MonkeyPatch):
    batch = DocumentBatch("a", Texts.of(["x" * 1000]), np.zeros(1, np.int64))
    window = windows.SampleWindow(WorkUnit(0, "text", "", (), 9, 0, 1.0), [(batch, 0.25)], 250, seconds=8.0)
    statistics = SplitStatistics.empty(1)
    clock = iter(range(10))
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(clock))
    pieces = estimate._pieces([window], result := [], [])
    assert list(estimate._add_increments(pieces, statistics)) == [batch]
    assert result[0].seconds == 8 * 0.25 + 1 * 0.25
    assert result[0].longest_bytes == 1000


def test_that_only_the_beginning_of_a_compressed_file_is_read_is_said(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(estimate, "_MIN_SAMPLE_BYTES", 1 << 20)
    plan_bytes = "beam_pipeline.sources.plan._EXPANSION"
    monkeypatch.setattr(plan_bytes, 40)  # the plan assumes more than the sample's size
    with gzip.open(tmp_path / "in.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(make_documents(3000, seed=1)))
    prepare.main([*arguments(tmp_path / "in.txt.gz", tokenizer_folder, tmp_path / "out"), "--estimate"])
    assert "row groups are sampled from their beginning only" in capsys.readouterr().out


def test_long_documents_among_short_ones_have_their_share(tmp_path: Path, tokenizer_folder: Path, capsys):
    documents = make_documents(30_000, seed=6)
    records = list(documents)
    for place in range(100, 30_000, 150):  # 200 of about 60 kB, half of them beginning in the unit before
        records[place] = "\u00e4" + " ".join(documents[:500])
    lines = [json.dumps({"text": text}) for text in records]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines[:20_000], *[""] * 500_000, *lines[20_000:]]))
    command = arguments(tmp_path / "in.jsonl", tokenizer_folder, tmp_path / "out", "--unit_bytes", "100000")
    prepare.main([*command, "--estimate"])
    output = capsys.readouterr().out
    prepare.main(command)
    totals = read_manifest(str(tmp_path / "out" / "train"))["totals"]
    for name, max_margin in (("documents", 60), ("tokens", 5)):
        estimated_count, margin = re.search(rf"([\d,]+) {name} ± ([\d.]+)%", output).groups()
        assert int(estimated_count.replace(",", "")) == pytest.approx(
            totals[name], rel=2 * float(margin) / 100
        )
        assert float(margin) < max_margin


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl"])
def test_an_only_document_is_found_wherever_the_windows_are(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch, capsys, name: str
):
    monkeypatch.setattr(estimate, "_MIN_SAMPLE_BYTES", 1 << 20)
    text = "\u00e4 " * 2_000_000
    (tmp_path / name).write_text(text if name == "in.txt" else "\n\n" + json.dumps({"text": text}))
    command = arguments(tmp_path / name, tokenizer_folder, tmp_path / "out", "--unit_bytes", "1000000")
    prepare.main([*command, "--estimate"])
    assert "about 1 document, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ('{"text": "fine"}\n{"text": 7}\n', [], "line 2"),
        ('{"text": " "}\n\n', [], "the sample contains no documents"),
        ('{"text": "fine"}\n', ["--prices", "gold=1"], "'gold=1' is not NAME=DOLLARS"),
        ('{"text": "fine"}\n', ["--prices", "vcpu_hour=nan"], "'vcpu_hour=nan' is not NAME=DOLLARS"),
    ],
)
def test_errors(tmp_path: Path, tokenizer_folder: Path, text: str, options: list[str], reason: str):
    (tmp_path / "in.jsonl").write_text(text)
    command = arguments(tmp_path / "in.jsonl", tokenizer_folder, tmp_path / "out", "--estimate", *options)
    with pytest.raises((DataError, UsageError), match=reason):
        prepare.main(command)
    assert not (tmp_path / "out").exists()


def test_bad_records_are_skipped_as_in_a_run(tmp_path: Path, tokenizer_folder: Path, capsys):
    (tmp_path / "in.jsonl").write_text('{"text": "fine"}\n{"text": 7}\n')
    command = arguments(tmp_path / "in.jsonl", tokenizer_folder, tmp_path / "out", "--estimate")
    prepare.main([*command, "--on_bad_record", "skip"])
    assert "about 1 document, " in capsys.readouterr().out


def test_every_file_has_the_same_share_of_the_sample(tmp_path: Path):
    for number in range(50):
        (tmp_path / f"{number:02d}.txt").write_text(f"{number:02d} words\n" * 2000)
    config = InputConfig(input=[str(tmp_path / "*.txt")], unit_bytes=1 << 16)
    input_plan = plan(config)
    result = [0] * 50
    for window in windows.windows(input_plan, config, sample_bytes=input_plan.bytes // 10, seed=3):
        for batch, _ in window.pieces:
            for text in batch.texts:
                result[int(text[:2])] += 1
    assert min(result) > 150 and max(result) < 250


def test_an_input_that_is_the_sample_as_a_whole_has_no_unknown_margin(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys, monkeypatch
):
    packed = tmp_path / "corpus.txt.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    command = arguments(packed, tokenizer_folder, tmp_path / "out", "--estimate")
    prepare.main(command)
    assert "margins are unknown" not in capsys.readouterr().out
    monkeypatch.setattr(estimate, "_MIN_SAMPLE_BYTES", 20_000)
    prepare.main([*command[2:], "--input", str(corpus), "--document", "file"])
    assert "from one place only, so the margins are unknown" in capsys.readouterr().out


@pytest.fixture
def estimated(tmp_path: Path, corpus: Path, tokenizer_folder: Path):
    def run(*options: str) -> dict:
        command = [*arguments(corpus, tokenizer_folder, tmp_path / "out"), "--estimate"]
        config, _ = parse(PrepareConfig, [*command, *options])
        return asdict(prepare.estimate_run(config, []))

    return run


def test_near_deduplication_takes_time_memory_disk_and_shuffle(estimated, corpus: Path):
    plain, near = estimated(), estimated("--dedup", "near")
    assert near["tokens"] == plain["tokens"]
    added = [
        *(("this_machine", name) for name in ("memory_bytes", "staged_bytes")),
        *(("dataflow", name) for name in ("shuffled_bytes", "vcpu_hours")),
    ]
    for place, name in added:
        assert near[place][name] > plain[place][name]
    size = corpus.stat().st_size
    assert near["this_machine"]["staged_bytes"] - plain["this_machine"]["staged_bytes"] > size
    both = estimated("--dedup", "near+paragraphs")
    for place, name in added:
        assert both[place][name] > near[place][name]


def test_filters_and_attributes_leave_out_what_a_run_leaves_out(
    estimated, tmp_path: Path, corpus: Path, tokenizer_folder: Path, capsys
):
    attributes = ["--attributes", str(tmp_path / "attributes"), "--keep", "bytes > 120"]
    source = ["--input", str(corpus), "--measure", "pii", "--output", attributes[1]]
    annotate.main(source)
    filtering = ["--filter", "gopher", "--thresholds", "gopher.min_words=30,gopher.min_stop_words=0"]
    filtering[-1] += ",gopher.min_letter_words=0"
    for number, options in enumerate((attributes, filtering)):
        estimate_of_run = estimated(*options)
        out = tmp_path / str(number)
        prepare.main(arguments(corpus, tokenizer_folder, out, *options))
        totals = read_manifest(str(out / "train"))["totals"]
        for name in ("documents", "tokens"):
            assert estimate_of_run[name] == pytest.approx(totals[name], rel=CLOSE)
        assert 0.1 < estimate_of_run["removed_share"] < 0.9
    capsys.readouterr()
    prepare.main(
        arguments(corpus, tokenizer_folder, tmp_path / "out", *filtering, "--dedup", "exact", "--estimate")
    )
    assert re.search(r"filters: leave out \d+\.\d% of the documents.* in 2 passes", capsys.readouterr().out)
