"""`prepare` as a whole, in this process: no document is lost, and the options have their documented effect."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from beam_pipeline.dataset.records import decode_frames, read_frames
from beam_pipeline.rows.routing import ShardLayout
from beam_pipeline.runners import beam_options
from beam_pipeline.steps import route
from beam_pipeline.support import memory
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, content, defects

UNITS = ["--unit_bytes", "20000", "--max_length", "32", "--shard_size", "300"]


def read_split(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns a split's manifest, and its rows in the order of their ranks, which inverts the shuffle."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    records = []
    for shard in manifest["shards"]:
        with (folder / shard["name"]).open("rb") as file:
            records += read_frames(file, shard["name"])
    parts = [
        *decode_frames(iter(records), max_length=manifest["max_length"], features=tuple(manifest["features"]))
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in manifest["features"]}
    config = manifest["config"]
    layout = ShardLayout(
        manifest["split"], len(records), manifest["shard_size"], config["shuffle"], config["seed"]
    )
    places = np.arange(len(records))
    order = np.argsort(layout.rank(places // layout.shard_size, places % layout.shard_size))
    return manifest, {name: values[order] for name, values in columns.items()}


@pytest.fixture(scope="session")
def encoded(tokenizer_folder: Path, documents: list[str]) -> list[list[int]]:
    """Every document as HF's tokenizer encodes it, special tokens included."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    return [encoding.ids for encoding in tokenizer.encode_batch(documents)]


@pytest.fixture
def run(tmp_path: Path, corpus: Path, tokenizer_folder: Path):
    """Returns a function that runs prepare on the corpus and returns the output folder, which is below tmp_path."""

    def run_prepare(*options: str, output: str = "out", source: Path = corpus) -> Path:
        folder = tmp_path / output
        prepare.main(arguments(source, tokenizer_folder, folder, *UNITS, *options))
        return folder

    return run_prepare


def units_of(split: Path) -> list[dict]:
    """Returns the split's units. The last one represents the tails."""
    return [json.loads(line) for line in (split / "units.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_concat_holds_the_stream_of_all_documents(run, encoded, documents, shuffle):
    out = run("--shuffle", shuffle)
    manifest, columns = read_split(out / "train")
    *units, tails = units_of(out / "train")
    assert len(units) > 3
    unit_ends = np.cumsum([unit["rows"] for unit in units])
    tail_tokens = columns["input_ids"][unit_ends[-1] :][
        columns["attention_mask"][unit_ends[-1] :] == 1
    ].tolist()
    # A unit's documents are those whose first byte is in its range.
    lines = [
        len((document + ("\n\n" if i % 7 == 0 else "\n")).encode()) for i, document in enumerate(documents)
    ]
    offsets = np.cumsum([0, *lines[:-1]])
    for unit, end in zip(units, unit_ends, strict=True):
        (_, start, stop), *other_parts = unit["parts"]
        assert not other_parts
        expected = [
            t for ids, offset in zip(encoded, offsets, strict=True) if start <= offset < stop for t in ids
        ]
        rows = columns["input_ids"][end - unit["rows"] : end].ravel().tolist()
        tail = len(expected) - len(rows)
        assert 0 <= tail < 32
        assert rows + tail_tokens[:tail] == expected
        tail_tokens = tail_tokens[tail:]
    assert tail_tokens == []
    assert manifest["totals"]["documents"] == len(documents)
    assert manifest["totals"]["bytes"] == sum(len(document.encode()) for document in documents)
    assert manifest["totals"]["tokens"] == sum(map(len, encoded)) == columns["attention_mask"].sum()
    assert manifest["excluded"] == {
        "records": len(documents) + len(documents) // 7 + 1,
        "blank_documents": len(documents) // 7 + 1,
        "bad_records": 0,
        "duplicate_documents": 0,
    }
    assert tails["rows"] == len(columns["input_ids"]) - unit_ends[-1]
    assert defects(out) == []


@pytest.mark.parametrize("packing", ["best_fit", "pad"])
def test_documents_stay_whole(run, encoded, packing):
    out = run("--packing", packing, "--segment_ids", "--position_ids")
    _, columns = read_split(out / "train")
    result = Counter()
    for ids, segments, positions in zip(
        columns["input_ids"], columns["segment_ids"], columns["position_ids"], strict=True
    ):
        for segment in range(1, segments.max() + 1):
            in_segment = segments == segment
            result[tuple(ids[in_segment])] += 1
            assert positions[in_segment].tolist() == list(range(in_segment.sum()))
    pieces = (ids[first : first + 32] for ids in encoded for first in range(0, len(ids), 32))
    assert result == Counter(map(tuple, pieces))
    if packing == "pad":
        assert columns["segment_ids"].max() == 1
    assert defects(out) == []


def test_splits_share_the_documents_out(run, encoded):
    out = run("--splits", "train=0.7,validation=0.2,test=0.1")
    tokens, documents = Counter(), []
    for split in ("train", "validation", "test"):
        manifest, columns = read_split(out / split)
        tokens.update(columns["input_ids"][columns["attention_mask"] == 1].tolist())
        documents.append(manifest["totals"]["documents"])
        assert manifest["splits"] == ["train", "validation", "test"]
    assert tokens == Counter(token for ids in encoded for token in ids)
    assert sum(documents) == len(encoded)
    assert [round(count / len(encoded), 1) for count in documents] == [0.7, 0.2, 0.1]


def test_a_corpus_that_was_moved_is_split_and_shuffled_alike(run, corpus, tmp_path):
    for folder in ("here", "there/deeper"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_bytes(corpus.read_bytes())
    options = ("--splits", "train=0.5,validation=0.5")
    original = content(run(*options, output="one", source=tmp_path / "here" / "a.txt"))
    moved = content(run(*options, output="two", source=tmp_path / "there" / "deeper" / "a.txt"))
    shards = [name for name in original if name.endswith(".tfrecord")]
    assert len(shards) > 2 and all(original[name] == moved[name] for name in shards)


def test_equal_documents_share_a_split_and_can_be_dropped(run, tmp_path, documents):
    source = tmp_path / "twice.txt"
    source.write_text("\n".join(documents[:300] + documents[100:300] + documents[:50]), encoding="utf-8")
    unique = len(set(documents[:300]))
    options = ("--splits", "train=0.5,validation=0.5", "--split_by", "text")
    out = run(*options, output="all", source=source)
    deduplicated = run(*options, "--dedup", "exact", output="kept", source=source)
    totals = {
        folder.name: [
            json.loads((folder / split / "manifest.json").read_bytes())["totals"]["documents"]
            for split in ("train", "validation")
        ]
        for folder in (out, deduplicated)
    }
    assert sum(totals["all"]) == 550 and sum(totals["kept"]) == unique
    excluded = json.loads((deduplicated / "train" / "manifest.json").read_bytes())["excluded"]
    assert excluded["duplicate_documents"] == 550 - unique
    # No document is in both splits.
    assert all(count > 50 for count in totals["kept"])
    assert defects(deduplicated) == []
    # Each removed document is listed with its place and that of the kept one.
    listed = pq.read_table(deduplicated / "removed").to_pylist()
    content_of_source, kept = source.read_bytes(), {}
    assert len(listed) == 550 - unique and not (out / "removed").exists()
    for entry in listed:
        assert (entry["path"], entry["rule"]) == (str(source), "exact")
        text = content_of_source[entry["place"] :].partition(b"\n")[0].decode()
        kept_place = tuple(json.loads(entry["evidence"])["kept"])
        assert kept.setdefault(kept_place, text) == text
    assert len(kept) == len(set(kept.values()))
    run(*options, "--overwrite", output="kept", source=source)
    assert not (deduplicated / "removed").exists()


def test_bad_records_fail_the_run_or_go_to_a_folder(run, tmp_path, documents):
    source = tmp_path / "bad.jsonl"
    lines = [json.dumps({"text": document}) for document in documents[:200]]
    lines[17] = '{"text": '
    lines[150] = '{"body": "x"}'
    source.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=r"bad\.jsonl, line 18 \(byte \d+\): broken JSON"):
        run(source=source)
    assert not list((tmp_path / "out").glob("*/*.tfrecord"))
    assert not list((tmp_path / "out").glob("*/manifest.json"))
    out = run("--on_bad_record", "skip", source=source)
    manifest = json.loads((out / "train" / "manifest.json").read_bytes())
    assert manifest["totals"]["documents"] == 198
    assert manifest["excluded"]["bad_records"] == 2
    bad_records = [
        json.loads(line)
        for path in sorted(out.glob("bad_records/*"))
        for line in path.read_text().splitlines()
    ]
    assert [record["content"] for record in bad_records] == [lines[17], lines[150]]
    assert "no key 'text'" in bad_records[1]["reason"]
    with pytest.raises(
        DataError, match=r"2 of 200 records are bad, a share of 0.01, above --max_bad_ratio 0.001"
    ):
        run("--on_bad_record", "skip", "--max_bad_ratio", "0.001", output="strict", source=source)
    assert not list((tmp_path / "strict").glob("*/manifest.json"))


def test_without_attention_mask_the_pad_id_marks_padding(run):
    out = run("--no_attention_mask")
    manifest, columns = read_split(out / "train")
    assert manifest["features"] == ["input_ids"]
    assert (columns["input_ids"] == 1).sum() == manifest["totals"]["padding"] > 0
    assert defects(out) == []


def test_an_output_folder_in_use_is_refused(run):
    out = run()
    before = content(out)
    with pytest.raises(UsageError, match="contains the same dataset, finished"):
        run()
    for resume_option in ([], ["--resume"]):
        with pytest.raises(UsageError, match=r"contains another run's dataset; .*--overwrite"):
            run("--seed", "1", *resume_option)
    assert content(out) == before
    run("--resume")
    assert content(out) == before
    run("--seed", "1", "--overwrite", "--shard_size", "100")
    assert set(content(out)) != set(before) and defects(out) == []


def test_there_are_just_as_many_shards_as_asked_for(tmp_path, corpus, tokenizer_folder, capsys):
    out = tmp_path / "out"
    options = ["--splits", "train=0.98,few=0.02", "--num_shards", "200", "--max_length", "32"]
    prepare.main(arguments(corpus, tokenizer_folder, out, *options, "--packing", "pad"))
    captured = capsys.readouterr()
    manifests = {name: json.loads((out / name / "manifest.json").read_bytes()) for name in ("train", "few")}
    counts = [shard["records"] for shard in manifests["train"]["shards"]]
    assert len(counts) == 200 and 1 <= max(counts) - 1 <= min(counts)
    rows_of_few = manifests["few"]["num_records"]
    assert 0 < rows_of_few == len(manifests["few"]["shards"]) < 200
    assert f"few: WARNING: --num_shards 200: this split has only {rows_of_few} rows" in captured.out
    assert "a document is a line (--document paragraph or file changes it)" in captured.err
    assert defects(out) == []


def test_an_empty_split_causes_a_warning(run, tmp_path, capsys):
    source = tmp_path / "one.txt"
    source.write_text("only one document\n")
    out = run("--splits", "train=0.5,validation=0.5", source=source)
    assert "WARNING: this split is empty" in capsys.readouterr().out
    assert defects(out) == []


def test_documents_that_nothing_would_separate_are_announced_with_the_remedy(
    run, tmp_path, tokenizer_folder, capsys
):
    plain_tokenizer = tmp_path / "plain"
    shutil.copytree(tokenizer_folder, plain_tokenizer)
    tokenizer_json = json.loads((plain_tokenizer / "tokenizer.json").read_text())
    (plain_tokenizer / "tokenizer.json").write_text(json.dumps(tokenizer_json | {"post_processor": None}))
    source = tmp_path / "two.txt"
    source.write_text("one document\nanother document\n")

    def is_announced(*options: str) -> bool:
        run(*options, "--overwrite", source=source)
        return "rows join documents with nothing between them" in capsys.readouterr().err

    assert not is_announced()  # <s> and </s> are around every document
    assert is_announced("--tokenizer", str(plain_tokenizer))
    for options in (["--append_eos"], ["--segment_ids"], ["--packing", "pad"]):
        assert not is_announced("--tokenizer", str(plain_tokenizer), *options)


RUNNERS = {
    "three worker processes": ["--direct_running_mode", "multi_processing", "--direct_num_workers", "3"],
    "the runner Beam picks": ["--runner", "DirectRunner"],
}


def test_the_bytes_do_not_depend_on_the_runner(run):
    options = ("--splits", "train=0.8,validation=0.2", "--dedup", "exact", "--segment_ids")
    expected = content(run(*options, output="here"))
    for name, runner in RUNNERS.items():
        assert content(run(*options, *runner, output=name)) == expected, name


def test_no_byte_depends_on_threads_or_on_how_rows_are_gathered(run, monkeypatch):
    expected = content(run("--splits", "train=0.9,test=0.1"))
    settings = [(1, 1, 1 / 16), (2, 1, 0.0), (3, 1 << 30, 2.0), (3, 1 << 30, 0.0), (2, 60_000, 1 / 16)]
    monkeypatch.setattr(memory, "_LEAST_GATHERED", 40_000)
    for number, (threads, gathered, share) in enumerate(settings):
        monkeypatch.setattr(beam_options, "process_threads", lambda _, threads=threads: threads)
        monkeypatch.setattr(memory, "bytes_to_gather", lambda gathered=gathered: gathered)
        monkeypatch.setattr(route, "_LEAST_SHARE_READ_WHOLE", share)
        dataset = run("--splits", "train=0.9,test=0.1", output=f"out-{number}")
        assert content(dataset) == expected
