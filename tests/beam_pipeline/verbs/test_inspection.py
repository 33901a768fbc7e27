from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import inspection, prepare
from beam_pipeline.views import tracing
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.runs import arguments


@pytest.fixture
def inspect(dataset: Path, capsys: pytest.CaptureFixture):
    """Returns a function that runs the verb and returns its output."""

    def run(*options: str, folder: Path = dataset) -> str:
        capsys.readouterr()
        inspection.main([str(folder), *options])
        return capsys.readouterr().out

    return run


def test_the_summary_gives_the_manifests_figures(inspect, dataset: Path):
    stdout = inspect()
    for split in open_dataset(str(dataset)):
        totals = split.manifest["totals"]
        line = next(line for line in stdout.splitlines() if line.startswith(split.name))
        for name in ("documents", "bytes", "tokens", "rows"):
            assert f"{totals[name]:,}" in line
    assert "143 blank documents" in stdout
    assert "attention_mask, input_ids, segment_ids" in stdout


def test_a_record_is_decoded_with_its_documents_and_where_they_stand(inspect, documents, corpus: Path):
    stdout = inspect("--record", "train:0:7")
    assert f"source  {corpus}, bytes " in stdout
    heads = re.findall(r"── tokens (\d+) to (\d+); .*, line (\d+) \(byte (\d+)\)", stdout)
    texts = re.split(r"── .*\n", stdout)[1:]
    assert len(heads) == len(texts) > 0
    lines = corpus.read_bytes()
    for (_, _, number, byte), text in zip(heads, texts, strict=True):
        assert lines[: int(byte)].count(b"\n") == int(number) - 1
        line = lines[int(byte) :].split(b"\n")[0].decode()
        visible_text = text.replace("<s>", "").replace("</s>", "").replace("<pad>", "").strip()
        assert visible_text.split("<unk>")[0].strip() in line


def test_tokens_are_shown_one_by_one(inspect, dataset: Path):
    row = open_dataset(str(dataset))[0].row(0, 7)
    stdout = inspect("--record", "train:0:7", "--tokens", "--trace", "never")
    positions_and_tokens = re.findall(r"^ +(\d+) +(\d+)  \S", stdout, re.MULTILINE)
    assert [(int(position), int(token)) for position, token in positions_and_tokens] == list(
        enumerate(row.ids.tolist())
    )


def test_without_tracing_the_unit_is_named_and_the_records_own_boundaries_are_used(inspect, dataset: Path):
    row = open_dataset(str(dataset))[0].row(0, 7)
    stdout = inspect("--record", "train:0:7", "--trace", "never")
    assert stdout.count("── tokens") == len(row.starts)
    assert ", line" not in stdout


def test_a_tail_is_explained(inspect, dataset: Path):
    split = open_dataset(str(dataset))[0]
    for shard, info in enumerate(split.manifest["shards"]):
        for record in range(info["records"]):
            origin = split.origin(shard, record)
            if origin.is_of_tails:
                stdout = inspect("--record", f"train:{shard}:{record}")
                assert "from the tails" in stdout and "packed from the ends of work units" in stdout
                assert stdout.count("corpus.txt, bytes ") == len(origin.units) > 1
                assert "corpus.txt, line" in stdout  # its documents are found, too
                return
    raise AssertionError("no tails")


def test_a_dataset_whose_source_is_gone_says_so(inspect, tmp_path: Path, tokenizer_folder: Path):
    source = tmp_path / "gone.txt"
    source.write_text("some text of a file\n" * 50)
    out = tmp_path / "out"
    prepare.main(arguments(source, tokenizer_folder, out, "--max_length", "16"))
    source.unlink()
    stdout = inspect("--record", "train:0:0", folder=out)
    assert f"traced  only to its work unit: {source} no longer exists\n" in stdout
    assert "── tokens 0 to 3\nfile</s>\n── tokens 4 to 15\n<s> some text" in stdout


def test_what_would_take_long_is_left_to_be_asked_for(inspect, monkeypatch: pytest.MonkeyPatch):
    ticks = itertools.count(step=100)
    monkeypatch.setattr(tracing.time, "monotonic", lambda: float(next(ticks)))
    monkeypatch.setattr(tracing, "_LEAST_ROWS", 1 << 30)  # not only the first documents
    stdout = inspect("--record", "train:0:0")
    assert re.search(
        r"only to its work unit: finding the documents would take about \d+ s; --trace always", stdout
    )
    assert ", line" not in stdout
    assert ", line" in inspect("--record", "train:0:0", "--trace", "always")


def test_loading_the_tokenizer_is_no_reason_to_leave_the_source_out(
    inspect, tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(f"some text of a file {name}\n" * 50)
    out = tmp_path / "out"
    options = ["--tokenizer", str(tokenizer_folder), "--output", str(out), "--max_length", "16"]
    prepare.main(["--input", str(tmp_path / "*.txt"), *options])
    clock = [0.0]
    encode = DocumentTokenizer.encode

    def slow_at_first(self, batch):
        clock[0] = 100.0
        return encode(self, batch)

    monkeypatch.setattr(DocumentTokenizer, "encode", slow_at_first)
    monkeypatch.setattr(tracing.time, "monotonic", lambda: clock[0])
    assert ".txt, line" in inspect("--record", "train:0:0", folder=out)


def test_grep_finds_a_text_and_the_places_lead_back_to_it(inspect, documents):
    word = max(documents[3].split(), key=len)
    result = re.findall(r"^(\w+:\d+:\d+)  (.*)$", inspect("--grep", word, "--most", "3"), re.MULTILINE)
    assert 0 < len(result) <= 3
    for record, excerpt in result:
        assert word in excerpt
        assert word in inspect("--record", record, "--trace", "never")


def test_grep_stops_at_most_and_takes_regular_expressions(inspect, dataset: Path):
    assert "these are the first 2" in inspect("--grep", "a", "--most", "2")
    with pytest.raises(DataError, match="no record contains"):
        inspect("--grep", "a.*b{2}[0-9]")
    assert inspect("--grep", r"\w \w", "--regex", "--most", "1")
    assert inspect("--grep", "A", "--ignore_case", "--most", "1")
    assert "validation:" in inspect("--grep", "a", "--most", "1", folder=dataset / "validation")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--record", "train:1"], "not SPLIT:SHARD:RECORD"),
        (["--record", "test:0:0"], "only train, validation"),
        (["--tokens"], "requires --record"),
        (["--regex"], "requires --grep"),
        (["--grep", "(", "--regex"], "is not a regular expression"),
        (["--grep", ""], "is empty"),
        (["--grep", "a", "--most", "0"], "must be from 1 to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused(inspect, options, message):
    with pytest.raises(UsageError, match=message):
        inspect(*options)
