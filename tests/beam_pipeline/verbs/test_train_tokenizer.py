"""The verb train-tokenizer, as users run it."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from transformers import AutoTokenizer

from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.tokenization.tokenizer_folder import RECORD, lock_folder
from beam_pipeline.tokenization.word_counts import WordCounter, merge
from beam_pipeline.verbs import corpus_words, train_tokenizer


@pytest.fixture(scope="module")
def corpus_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files: text, jsonl, and an empty one."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(500)]
    lines = [" ".join(rng.choices(words, k=rng.randint(3, 30))) for _ in range(1500)]
    (folder / "a.txt").write_text("\n".join(lines[:700]) + "\n\n")
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines[700:]))
    (folder / "empty.txt").write_text("")
    return folder


def run(corpus_files: Path, output: Path, *options: str) -> None:
    inputs = [str(corpus_files / name) for name in ("a.txt", "b.jsonl", "empty.txt")]
    train_tokenizer.main(["--input", *inputs, "--output", str(output), "--vocab_size", "400", *options])


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("model", ["unigram", "bpe", "wordpiece"])
def test_a_tokenizer_and_what_it_was_made_from(
    model: str, corpus_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    output = tmp_path / "deep" / "tokenizer"
    run(corpus_files, output, "--model", model)
    assert len(AutoTokenizer.from_pretrained(output)) == 400
    record = json.loads((output / RECORD).read_text())
    assert record["text"]["documents"] == 1500
    words = record["words"]
    assert 0 < words["different"] == words["trained_on"] and words["share"] == 1
    assert record["config"]["model"] == model
    size = sum(path.stat().st_size for path in corpus_files.iterdir())
    assert record["inputs"] == {"files": 3, "bytes": size}
    summary, log = capsys.readouterr()
    assert f"{model} tokenizer of 400 tokens from 1,500 documents" in summary
    assert f"{record['bytes_per_token']:.2f} bytes per token" in summary
    assert "in text files, a document is a line (--document paragraph or file changes it)" in log
    assert [path.name for path in output.parent.iterdir()] == ["tokenizer"]  # nothing else is left


def test_runner_and_bundling_change_nothing(
    corpus_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run(corpus_files, tmp_path / "one", "--unit_bytes", "5000")
    inputs = [str(corpus_files / name) for name in ("b.jsonl", "empty.txt", "a.txt", "*.txt")]
    options = ["--input", *inputs, "--output", str(tmp_path / "two"), "--vocab_size", "400"]
    workers = ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"]
    train_tokenizer.main([*options, *workers, "--unit_bytes", "5000"])
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    # With many buckets, and words that are passed on after every batch.
    monkeypatch.setattr(corpus_words, "_BYTES_PER_BUCKET", 10_000)
    monkeypatch.setattr(corpus_words.CountWords.__init__, "__defaults__", (0,))
    run(corpus_files, tmp_path / "three", "--unit_bytes", "1000000")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "three")


def test_counts_are_exact_whatever_is_passed_on(corpus_files: Path, tmp_path: Path):
    """The words and sizes that the launcher reads are those of the texts, and a bound leaves out the rarest."""
    texts = (corpus_files / "a.txt").read_text().splitlines()
    expected = count(texts)
    parts = [texts[:100], texts[100:], []]
    streams = [corpus_words._to_stream([count(part)]) for part in parts]
    corpus_words.write_words((3, streams), str(tmp_path))
    sampled = pa.record_batch([[b"one", b"two"], [0, 1]], schema=corpus_words._SAMPLE_SCHEMA)
    for file, unit in ((0, (7, 2, 6, sampled)), (1, (9, 1, 4, sampled.slice(0, 1)))):
        corpus_words.write_sample((file, [unit]), str(tmp_path))
    corpus = corpus_words.CountedCorpus(str(tmp_path))
    assert (corpus.documents, corpus.bytes, corpus.sample) == (3, 10, ["two"])
    words = corpus.words(1 << 30)
    assert words.table.equals(expected) and (words.different, words.share) == (len(expected), 1)
    counts = np.sort(expected["count"].to_numpy())[::-1]
    bounded = corpus.words(2000)
    kept = set(bounded.table["word"].to_pylist())
    assert sum(map(len, kept)) <= 2000 and len(kept) < len(expected)
    rarest_kept = min(bounded.table["count"].to_pylist())
    assert rarest_kept == bounded.min_count
    assert len(kept) == (counts >= rarest_kept).sum()
    assert bounded.share == pytest.approx(counts[: len(kept)].sum() / counts.sum())
    assert f"those that occur {rarest_kept} times or more" in bounded.describe()
    assert len(corpus.words(0).table) == 0


def count(texts: list[str]) -> pa.Table:
    counter = WordCounter("bpe")
    counter.add(texts)
    return merge([counter.take()])


def test_documents_that_are_too_long_for_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No document is chosen for the summary, so the beginnings of the first ones are measured."""
    monkeypatch.setattr(corpus_words, "_SAMPLED_BYTES", 1e-9)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} long text\n" * 9)
    options = ["--input", f"{tmp_path}/*.txt", "--document", "file", "--vocab_size", "300"]
    train_tokenizer.main([*options, "--output", str(tmp_path / "out")])
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["text"]["documents"] == 2 and record["round_trip"]["documents"] >= 1
    assert record["bytes_per_token"] > 1


def test_a_folder_in_use(corpus_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "out"
    output.mkdir()  # an empty folder is fine
    run(corpus_files, output, "--model", "bpe")
    files = files_of(output)
    with pytest.raises(
        UsageError, match="already contains this tokenizer; use --resume to keep it, or --overwrite"
    ):
        run(corpus_files, output, "--model", "bpe")
    capsys.readouterr()
    run(corpus_files, output, "--model", "bpe", "--resume")
    assert "nothing to do" in capsys.readouterr().out
    for second in ([], ["--resume"]):
        with pytest.raises(UsageError, match="made from other input or with other options"):
            run(corpus_files, output, "--model", "bpe", "--seed", "1", *second)
    assert files_of(output) == files
    run(corpus_files, output, "--model", "wordpiece", "--overwrite")
    assert files_of(output)["tokenizer.json"] != files["tokenizer.json"]
    (output / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"would delete \['thesis.txt'\]"):
        run(corpus_files, output, "--model", "bpe", "--overwrite")
    with pytest.raises(UsageError, match="contradict each other"):
        run(corpus_files, output, "--overwrite", "--resume")


def test_a_folder_of_others_is_left_alone(corpus_files: Path, tmp_path: Path):
    (tmp_path / RECORD).write_text('{"format": "something else"}')
    for options in ([], ["--overwrite"], ["--resume"]):
        with pytest.raises(UsageError, match="contains files that train-tokenizer did not write"):
            run(corpus_files, tmp_path, *options)
    assert (tmp_path / RECORD).read_text() == '{"format": "something else"}'


def test_a_run_that_fails_leaves_what_was_there(
    corpus_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"
    run(corpus_files, output, "--model", "bpe")
    files = files_of(output)
    with pytest.raises(DataError, match="--vocab_size 90000"):
        run(corpus_files, output, "--model", "bpe", "--vocab_size", "90000", "--strict", "--overwrite")
    replace_path, calls = Path.replace, []

    def replace(self: Path, target: Path | str) -> Path:
        calls.append(str(target))
        if str(target) == str(output) and len(calls) == len(set(calls)):
            raise OSError(28, "No space left on device")
        return replace_path(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="No space left"):
        run(corpus_files, output, "--model", "wordpiece", "--overwrite")
    assert files_of(output) == files
    assert not Path(lock_folder(str(output))).exists()


def test_what_a_killed_run_left_is_cleared_away(corpus_files: Path, tmp_path: Path):
    output = tmp_path / "out"
    leftover_folder = Path(lock_folder(str(output)), "0123456789abcdef")
    leftover_folder.mkdir(parents=True)
    (leftover_folder / "sample-07.arrow").write_bytes(b"half a sample")
    run(corpus_files, output, "--model", "bpe")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocab_size", "299"], "must be from 300"),
        (["--lowercase"], "requires --model wordpiece"),
        (["--normalize", "--model", "wordpiece"], "folds white space anyway"),
        (["--push_to_hub", "a/b/c"], "--push_to_hub a/b/c: "),
        (["--colour", "red"], "--colour"),
    ],
)
def test_wrong_options(options: list[str], message: str, corpus_files: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=message):
        run(corpus_files, tmp_path / "out", *options)
    assert not list(tmp_path.iterdir())


def test_a_corpus_without_text(tmp_path: Path):
    (tmp_path / "blank.txt").write_text("\n \n\t\n")
    with pytest.raises(DataError, match=r"nothing to train on: .* in the input \(1 file, 5 bytes\)"):
        train_tokenizer.main(["--input", str(tmp_path / "blank.txt"), "--output", str(tmp_path / "out")])
    assert [path.name for path in tmp_path.iterdir()] == ["blank.txt"]


def test_bad_records(corpus_files: Path, tmp_path: Path):
    bad_file = tmp_path / "bad.jsonl"
    bad_file.write_text((corpus_files / "b.jsonl").read_text() + "{broken\n")
    options = ["--input", str(bad_file), "--output", str(tmp_path / "out"), "--vocab_size", "400"]
    with pytest.raises(DataError, match=r"bad.jsonl, line 801 \(byte \d+\): broken JSON"):
        train_tokenizer.main(options)
    train_tokenizer.main([*options, "--on_bad_record", "skip"])
    assert json.loads((tmp_path / "out" / RECORD).read_text())["text"]["documents"] == 800


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "bpe",
            r"nothing is lost in a sample of 2 documents, e.g. 'def f\(x\):\\n␣␣␣␣return␣␣x\\n' → the same",
        ),
        ("unigram", r"nothing is lost in a sample of 2 documents, e.g. 'def .*' → the same"),
        (
            "wordpiece",
            r"100.0% of 2 documents .* \(.*line breaks .*\), e.g. 'def f.*\\n.*' → 'def f \( x \) : .*'",
        ),
    ],
)
def test_every_run_shows_what_is_left_of_a_real_passage(
    model: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("def f(x):\n    return  x\n")
    train_tokenizer.main(["--input", f"{tmp_path}/*.py", "--output", str(tmp_path / "out"), "--model", model])
    shown = capsys.readouterr()
    assert re.search(rf"^round trip: {expected}$", shown.out, re.MULTILINE)
    # A newcomer has less text than the default vocabulary needs.
    assert re.search(r"--vocab_size 25000: the text supports \d+ tokens only", shown.err)
    assert json.loads((tmp_path / "out" / RECORD).read_text())["round_trip"]["documents"] == 2
