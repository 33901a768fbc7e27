"""What `prepare` notices in a sample of the documents before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, defects
from tests.beam_pipeline.training import train

CODE = "def f(x):\n    return  x\n"
SHORT = "half of the documents have at most"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with trained tokenizers, named as their models."""
    folder = tmp_path_factory.mktemp("tokenizers")
    for model in ("bpe", "wordpiece"):
        (folder / model).mkdir()
        for name, data in train(model, lambda: [CODE] * 9, vocab_size=400).files().items():
            (folder / model / name).write_bytes(data)
    return folder


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def manifest_of(output: Path) -> dict:
    return json.loads((output / "train" / "manifest.json").read_text())


def test_text_that_the_tokenizer_loses(tmp_path: Path, tokenizers: Path, capsys: pytest.CaptureFixture[str]):
    source = write(tmp_path / "a.jsonl", [CODE, "return x"] * 3000)
    entries = []
    for number, options in enumerate(([], ["--unit_bytes", "9000", "--direct_num_workers", "2"])):
        output = tmp_path / f"out{number}"
        prepare.main(arguments(source, tokenizers / "wordpiece", output, *options))
        errors = capsys.readouterr().err
        assert errors.count("does not keep the text") == 1
        assert r"e.g. 'def f(x):\n␣␣␣␣return␣␣x\n' → 'def f ( x ) : return x'." in errors
        entries.append(manifest_of(output)["round_trip"])
    assert abs(entries[0]["changed"] / entries[0]["documents"] - 0.5) < 0.1
    assert entries[0]["lost"]["line breaks"] == 2 * entries[0]["changed"]
    assert not defects(output)
    report = (output / "report.html").read_text()
    assert "The tokenizer does not keep the text: if ids are decoded, " in report


@pytest.mark.parametrize(("model", "text"), [("bpe", CODE), ("wordpiece", "return x")])
def test_text_that_the_tokenizer_keeps(
    model: str, text: str, tmp_path: Path, tokenizers: Path, capsys: pytest.CaptureFixture[str]
):
    source = write(tmp_path / "a.jsonl", [text] * 9)
    prepare.main(arguments(source, tokenizers / model, tmp_path / "out"))
    assert "does not keep" not in capsys.readouterr().err
    assert "round_trip" not in manifest_of(tmp_path / "out")
    assert "does not keep" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("sizes", [[99] * 9, [40] * 3000 + [100_000] * 20])
@pytest.mark.parametrize("options", [[], ["--estimate"]])
def test_short_documents(
    sizes: list[int], options: list[str], tmp_path: Path, tokenizers: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.txt").write_text("".join("x" * size + "\n" for size in sizes))
    prepare.main(arguments(tmp_path / "a.txt", tokenizers / "bpe", tmp_path / "out", *options))
    errors = capsys.readouterr().err
    assert errors.count(f"{SHORT} {sizes[0]} bytes") == 1 and "use --document paragraph or file" in errors


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("a.txt", ("x" * 100 + "\n") * 9, []),
        ("a.txt", "short\n", ["--document", "file"]),
        ("a.md", "short\n", []),
        ("a.jsonl", '{"text": "short"}\n', []),
    ],
)
def test_documents_that_are_long_enough_or_cannot_be_longer(
    name: str,
    text: str,
    options: list[str],
    tmp_path: Path,
    tokenizers: Path,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / name).write_text(text)
    prepare.main(arguments(tmp_path / name, tokenizers / "bpe", tmp_path / "out", *options))
    assert SHORT not in capsys.readouterr().err


def test_a_sample_that_cannot_be_read_is_left_to_the_run(
    tmp_path: Path, tokenizers: Path, capsys: pytest.CaptureFixture[str]
):
    source = write(tmp_path / "a.jsonl", [CODE] * 9)
    source.write_text("{broken\n" + source.read_text())
    options = ["--on_bad_record", "skip", "--max_bad_ratio", "0.5"]
    prepare.main(arguments(source, tokenizers / "wordpiece", tmp_path / "out", *options))
    assert capsys.readouterr().err.count("does not keep the text") == 1
