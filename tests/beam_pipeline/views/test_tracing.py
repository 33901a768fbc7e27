from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from beam_pipeline.sources import lines
from beam_pipeline.verbs import prepare
from beam_pipeline.views import tracing
from beam_pipeline.views.reading import FinishedSplit, open_dataset
from beam_pipeline.views.tracing import NotTraced, Tracer


@pytest.fixture
def source(tmp_path: Path, documents: list[str]) -> Path:
    """Three files of documents, one of them compressed, with some duplicates."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(documents[:150]), encoding="utf-8")
    lines = [json.dumps({"text": text}) for text in documents[100:220]]
    (folder / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with gzip.open(folder / "c.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(documents[200:260] + documents[:20]))
    return folder


@pytest.fixture
def make(tmp_path: Path, source: Path, tokenizer_folder: Path):
    """Returns a function that runs prepare on the files and returns the splits."""

    def run(*options: str) -> list[FinishedSplit]:
        out = tmp_path / "out"
        mix = ["--mix", f"{source}/a.txt*1.5,{source}/b.jsonl*1,{source}/c.txt.gz*2"]
        common_options = ["--tokenizer", str(tokenizer_folder), "--output", str(out), "--unit_bytes", "9000"]
        splits = ["--splits", "train=0.7,validation=0.3", "--max_length", "48"]
        size = [] if "--num_shards" in options else ["--shard_size", "100"]
        prepare.main([*mix, *common_options, *splits, *size, *options])
        return open_dataset(str(out))

    return run


def text_at(source: Path, name: str, place: int) -> str:
    """Returns the document that begins at a byte of a file."""
    path = source / name
    data = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    line = data[place:].split(b"\n")[0].decode()
    return json.loads(line)["text"] if name.endswith(".jsonl") else line


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--packing", "best_fit"),
        ("--packing", "pad", "--split_by", "text"),
        ("--dedup", "exact", "--shuffle", "none"),
        ("--dedup", "exact", "--packing", "best_fit"),
        ("--num_shards", "7"),
    ],
    ids=" ".join,
)
def test_every_row_is_made_of_the_documents_that_are_named(
    make, source, tokenizer_folder, options, monkeypatch
):
    # Units are read as far as needed, batch by batch.
    monkeypatch.setattr(tracing, "_LEAST_ROWS", 1)
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 2000)
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    for split in make(*options):
        tracer = Tracer(split)
        tokens_by_document: dict[tuple, int] = {}
        rows = [
            (split.origin(shard, record), row)
            for shard in range(len(split.manifest["shards"]))
            for record, row in enumerate(split.rows(shard))
        ]
        for origin, row in sorted(rows, key=lambda pair: pair[0].rank):  # a unit is read once
            parts = tracer.trace(origin, row)
            assert [part.first for part in parts] == [0, *(part.end for part in parts[:-1])]
            assert parts[-1].end == len(row.ids)
            for part in parts:
                encoded = tokenizer.encode(
                    text_at(source, part.unit.root[len(str(source)) + 1 :] + part.name, part.place)
                ).ids
                assert len(encoded) == part.tokens
                span = slice(part.offset, part.offset + part.end - part.first)
                assert row.ids[part.first : part.end].tolist() == encoded[span]
                key = (part.unit.repeat, part.name, part.place)
                tokens_by_document[key] = tokens_by_document.get(key, 0) + part.end - part.first
        # Each document's tokens are in the rows once.
        assert sum(tokens_by_document.values()) == split.manifest["totals"]["tokens"]
        assert len(tokens_by_document) == split.manifest["totals"]["documents"]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_special_tokens_tell_where_documents_meet_just_as_segment_ids_do(make, packing):
    boundary_count = 0
    for split in make("--packing", packing, "--segment_ids"):
        tracer = Tracer(split)
        for shard in range(len(split.manifest["shards"])):
            for record, row in enumerate(split.rows(shard)):
                starts = tracer.starts(split.origin(shard, record), replace(row, starts=None))
                assert split.origin(shard, record).is_of_tails == (starts is None)
                if starts is not None:
                    boundary_count += 1
                    assert starts.tolist() == row.starts.tolist()
    assert boundary_count > 100


def test_special_tokens_that_may_stand_in_the_text_tell_nothing(make):
    split = make("--parse_special_tokens")[0]
    assert Tracer(split).starts(split.origin(0, 0), split.row(0, 0)) is None


def test_a_source_that_is_not_what_it_was_is_noticed(make, source):
    split = make()[0]
    origin, row = split.origin(0, 0), split.row(0, 0)
    assert Tracer(split).trace(origin, row)
    path = Path(origin.units[0].root + origin.units[0].parts[0].name)
    data = path.read_bytes()
    path.write_bytes(data.swapcase() if path.suffix != ".gz" else data[::-1])
    with pytest.raises(NotTraced, match=r"has changed|broken"):
        Tracer(split).trace(origin, row)
    path.write_bytes(data + b"\n")
    with pytest.raises(NotTraced, match=f"has changed from {len(data):,} bytes to {len(data) + 1:,}"):
        Tracer(split).trace(origin, row)
    path.unlink()
    with pytest.raises(NotTraced, match="no longer exists"):
        Tracer(split).trace(origin, row)


def test_no_more_is_read_than_is_allowed_and_no_engine_is_made_for_it(make, monkeypatch):
    split = make()[0]
    monkeypatch.setattr(tracing, "make_tokenizer", None)
    with pytest.raises(NotTraced, match="requires tokenizing"):
        Tracer(split).trace(split.origin(0, 0), split.row(0, 0), max_bytes=100)


def test_a_part_says_where_it_is_from(make, source):
    split = make("--packing", "pad", "--shuffle", "none")[0]
    part = Tracer(split).trace(split.origin(0, 0), split.row(0, 0))[0]
    description = part.describe()
    assert description.startswith(f"{source}/a.txt, line ")
    assert f"(byte {part.place})" in description
    assert description.endswith("whole") == part.is_whole
