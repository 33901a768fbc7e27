"""Attributes first, decisions later: `annotate`, then `prepare --attributes --keep`, and `--restore`."""

import json
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from beam_pipeline.steps.annotate import AnnotateUnit
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import annotate, prepare
from tests.beam_pipeline.runs import content

FUNCTION = """
def measure(texts, columns):
    assert texts
    return {"digits": [sum(map(str.isdigit, text)) for text in texts], "keep": [True] * len(texts)}
"""
COMMON = ("--unit_bytes", "400")


@pytest.fixture
def source(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "annotate_functions.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "web.jsonl"
    rows = [
        {"text": f"Line {number} of a list" * (number % 3), "lang": "en" if number % 2 else None}
        for number in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield path
    sys.modules.pop("annotate_functions", None)


@pytest.fixture
def annotated(tmp_path, source):
    def run(*options: str, output: str = "attributes") -> Path:
        functions = ["--measure", "annotate_functions:measure", "--keep_columns", "lang"]
        argv = ["--input", str(source), *functions, "--output", str(tmp_path / output), *COMMON]
        annotate.main([*argv, *options])
        return tmp_path / output

    return run


@pytest.fixture
def run(tmp_path, source, tokenizer_folder):
    def run_prepare(*options: str, output: str = "out") -> Path:
        argv = ["--input", str(source), "--tokenizer", str(tokenizer_folder), "--max_length", "16", *COMMON]
        prepare.main([*argv, "--output", str(tmp_path / output), *options])
        return tmp_path / output

    return run_prepare


def totals(out: Path) -> int:
    return json.loads((out / "train" / "manifest.json").read_bytes())["totals"]["documents"]


def test_thresholds_change_without_measuring_again(annotated, run):
    folder = annotated()
    table = pq.read_table(sorted(folder.glob("*.parquet")))
    assert len(list(folder.glob("*.parquet"))) > 2 and table.num_rows == 26
    record = json.loads((folder / "_attributes.json").read_bytes())
    assert record["documents"] == 26 and record["columns"]["digits"] == "int64"
    assert set(table.column_names) == {
        *("document", "place", "checksum", "bytes", "characters", "digits", "measure_keep", "lang")
    }
    for keep, condition in (
        ("digits >= 2", pc.field("digits") >= 2),
        ("lang == 'en'", pc.field("lang") == "en"),
    ):
        out = run("--attributes", str(folder), "--keep", keep, output=keep.partition(" ")[0])
        assert totals(out) == table.filter(condition).num_rows
        removed = pq.read_table(out / "removed")
        assert set(removed["rule"].to_pylist()) == {"keep"} and totals(out) + len(removed) == 26
    assert {json.loads(row)["lang"] for row in removed["evidence"].to_pylist()} == {None}


def test_a_second_run_keeps_what_is_finished(annotated, monkeypatch, source):
    measure = AnnotateUnit._table
    units = []

    def failing(step, unit, progress):
        if unit.index == 2:
            raise RuntimeError("stopped")
        units.append(unit.index)
        return measure(step, unit, progress)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(AnnotateUnit, "_table", failing)
        annotated()
    with pytest.raises(UsageError, match="contains attributes; use --resume"):
        annotated()
    first = sorted(units)
    monkeypatch.setattr(AnnotateUnit, "_table", lambda *args: units.append(args[1].index) or measure(*args))
    folder = annotated("--resume")
    assert sorted(units) == list(range(max(units) + 1)) and first
    assert content(annotated(output="whole")) == content(folder)
    annotated("--resume")
    with pytest.raises(UsageError, match="of other input or options"):
        annotated("--resume", "--keep_columns", "text")
    (folder / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"notes\.txt, which annotate did not write"):
        annotated("--overwrite")


@pytest.mark.parametrize("lengths", [(), (5, 1000), (1000, 5)])
def test_units_without_documents_are_annotated(annotated, run, source, lengths):
    pytest.importorskip("spacy")
    source.write_text(
        "".join(json.dumps({"text": "a " * length, "lang": "en"}) + "\n" for length in (0, *lengths))
    )
    measures = "annotate_functions:measure,gopher,gopher_repetition,c4,fineweb,pii"
    folder = annotated("--measure", measures)
    assert pq.read_table(folder).num_rows == len(lengths)
    if lengths:
        out = run("--attributes", str(folder), "--keep", 'gopher_words > 500 or lang == "de"')
        assert totals(out) == 1


def test_attributes_of_other_texts_are_refused(annotated, run, source):
    folder = annotated()
    with pytest.raises(
        UsageError, match=r"divided into other work units; use the same --input and --unit_bytes \(400\)"
    ):
        run("--attributes", str(folder), "--keep", "digits > 1", "--unit_bytes", "500")
    with pytest.raises(UsageError, match="there is no attribute 'digit'"):
        run("--attributes", str(folder), "--keep", "digit > 1")
    with pytest.raises(UsageError, match="contains no finished attributes; make them with annotate"):
        run("--attributes", str(source.parent), "--keep", "digits > 1")
    text = source.read_text()
    source.write_text(text.replace("Line 1 of a list", "Line 1 of à list"[:-1]))
    with pytest.raises(DataError, match="has changed since annotate measured it"):
        run("--attributes", str(folder), "--keep", "digits > 1")


@pytest.mark.parametrize("rule", ["keep", "exact"])
def test_removed_documents_can_be_restored(annotated, run, source, tmp_path, rule):
    options = ("--attributes", str(annotated()), "--keep", "digits >= 3")
    if rule == "exact":
        source.write_text(source.read_text().replace("Line 7", "Line 1").replace("Line 10", "Line 1"))
        source.write_text(source.read_text().replace("Line 13", "Line 1").replace("Line 4 ", "Line 1 "))
        options = ("--dedup", "exact")
    out = run(*options)
    removed = pq.read_table(out / "removed", columns=["path", "place", "rule"])
    assert set(removed["rule"].to_pylist()) == {rule}
    pq.write_table(removed.slice(0, 3), tmp_path / "restore.parquet")
    restored = run(*options, "--restore", str(tmp_path / "restore.parquet"), output="restored")
    assert totals(restored) == totals(out) + 3
    places = pq.read_table(restored / "removed", columns=["path", "place"]).to_pylist()
    assert places == removed.slice(3).drop(["rule"]).to_pylist()
    with pytest.raises(UsageError, match="is not a parquet file with the columns path and place"):
        run(*options, "--restore", str(source), output="other")
    identities = [
        json.loads((folder / "train" / "manifest.json").read_bytes())["fingerprint"]
        for folder in (out, restored)
    ]
    assert identities[0] != identities[1]
