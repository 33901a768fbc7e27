"""What is a document of a text file, by its extension and by --document."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.document_kinds import WHOLE_FILES
from beam_pipeline.sources.plan import describe_plan, plan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.verbs import inspection, prepare
from tests.beam_pipeline.runs import arguments

TEXT = "# Title\r\n\r\nA line,\nand another.\n"


def documents(folder: Path, **options: str) -> list[str]:
    config = InputConfig(input=(f"{folder}/*",), **options)
    planned = plan(config)
    return [
        text for unit in planned.units for batch in read_unit(unit, planned.config) for text in batch.texts
    ]


@pytest.mark.parametrize("name", ["a.md", "a.RST", "a.html", "a.tex", "a.py", "a.c", "README.md.gz"])
def test_a_file_with_markup_or_code_is_one_document(name: str, tmp_path: Path):
    data = TEXT.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert documents(tmp_path) == [TEXT.replace("\r\n", "\n")]
    assert documents(tmp_path, document="line") == ["# Title", "A line,", "and another."]
    assert documents(tmp_path, document="paragraph") == ["# Title", "A line,\nand another."]


@pytest.mark.parametrize("name", ["a.txt", "a", "a.log", "a.xml", "md"])
def test_a_line_of_any_other_text_file_is_a_document(name: str, tmp_path: Path):
    (tmp_path / name).write_text(TEXT)
    assert documents(tmp_path) == ["# Title", "A line,", "and another."]


def test_files_of_both_kinds_are_read_in_their_own_ways_and_described(tmp_path: Path):
    for name in ("a.md", "b.txt", "c.py"):
        (tmp_path / name).write_text("one\ntwo\n")
    (tmp_path / "d.jsonl").write_text(json.dumps({"text": "a record"}))
    assert documents(tmp_path) == ["one\ntwo\n", "one", "two", "one\ntwo\n", "a record"]
    described = describe_plan(plan(InputConfig(input=(str(tmp_path / "[abc]*"),))))
    assert described.endswith(
        "; each file is a document if it is .md, .py, else each line (--document changes it)"
    )


def test_equal_documents_have_equal_options(tmp_path: Path):
    """So a run's fingerprint does not depend on how they were chosen."""
    for name in ("a.txt", "b.md"):
        (tmp_path / name).write_text(TEXT)

    def kind(pattern: str, **options: str) -> str:
        return plan(InputConfig(input=(str(tmp_path / pattern),), **options)).config.document

    assert kind("*.txt") == kind("*.txt", document="line") == kind("*", document="line") == "line"
    assert kind("*.md") == kind("*.md", document="file") == "file"
    assert kind("*") == "auto"


def test_a_file_that_is_one_document_is_not_cut(tmp_path: Path):
    (tmp_path / "a.md").write_text("line\n" * 1000)
    (tmp_path / "b.txt").write_text("line\n" * 1000)
    planned = plan(InputConfig(input=(str(tmp_path / "*"),), unit_bytes=1000))
    cuts = [(part.name, part.end - part.start) for unit in planned.units for part in unit.parts]
    assert cuts == [("a.md", 5000), *[("b.txt", 1000)] * 5]
    assert planned.longest_known == 5000


def test_a_dataset_of_both_kinds_is_traced(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "a.md").write_text("a title of words\n\n" * 9)
    (tmp_path / "b.txt").write_text("a line of words\n" * 9)
    prepare.main(arguments(tmp_path / "?.*", tokenizer_folder, tmp_path / "out", "--max_length", "512"))
    assert json.loads((tmp_path / "out" / "train" / "manifest.json").read_text())["totals"]["documents"] == 10
    capsys.readouterr()
    inspection.main([str(tmp_path / "out"), "--record", "train:0:0"])
    shown = capsys.readouterr().out
    assert "a.md, line 1 (byte 0)" in shown and "b.txt, line 2 (byte 16)" in shown


def test_extensions_are_in_lower_case():
    assert all(name == name.lower() and name.startswith(".") for name in WHOLE_FILES)
