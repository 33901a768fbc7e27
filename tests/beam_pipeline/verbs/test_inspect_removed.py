"""`inspect --removed`, and the report's table of rules."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import convert, inspection, prepare
from beam_pipeline.views.reading import open_dataset
from tests.beam_pipeline.runs import defects

FUNCTIONS = """
def long_ones(texts, columns):
    return {"keep": [len(text) < 40 for text in texts], "value": list(map(len, texts))}

def no_map(texts, columns):
    return ["map" not in text for text in texts]
"""
TEXTS = [
    "We saw two rivers.",
    "A map.",
    "We saw two rivers.",
    "An old map that shows two rivers and a long bridge.",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, tokenizer_folder) -> Path:
    folder = tmp_path_factory.mktemp("removed")
    (folder / "removed_functions.py").write_text(FUNCTIONS)
    (folder / "a.txt").write_text("\n".join(TEXTS))
    argv = ["--input", str(folder / "a.txt"), "--tokenizer", str(tokenizer_folder), "--dedup", "exact"]
    functions = "removed_functions:long_ones,removed_functions:no_map"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        prepare.main([*argv, "--output", str(folder / "out"), "--filter", functions, "--max_length", "8"])
    return folder / "out"


def test_counts_and_samples_of_a_rule_are_shown(dataset, capsys):
    inspection.main([str(dataset), "--removed", "removed_functions"])
    output = capsys.readouterr().out
    source = dataset.parent / "a.txt"
    assert output.splitlines() == [
        "           2  removed_functions.no_map",
        "           1  removed_functions.long_ones",
        "",
        f"── {source}, 19: removed_functions.no_map",
        "A map.",
        "",
        f"── {source}, 45: removed_functions.long_ones, value 51",
        TEXTS[3],
        "",
        f"── {source}, 45: removed_functions.no_map",
        TEXTS[3],
    ]
    inspection.main([str(dataset), "--removed", "exact"])
    assert f"equal to {source}, 0:\n{TEXTS[0]}" in capsys.readouterr().out


def test_json_has_the_evidence_and_both_texts(dataset, capsys):
    inspection.main([str(dataset), "--removed", "all", "--json", "--most", "2"])
    document = json.loads(capsys.readouterr().out)
    assert sum(entry["documents"] for entry in document["counts"]) == 4 and len(document["samples"]) == 2
    inspection.main([str(dataset), "--removed", "exact", "--json"])
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert (sample["document"], sample["evidence"], sample["text"]) == (2, {"kept": [0, 0]}, TEXTS[0])
    assert sample["kept"] == {"path": sample["path"], "place": 0, "text": TEXTS[0]}


def test_a_rule_that_removed_nothing_is_an_error_with_those_that_did(dataset):
    with pytest.raises(
        DataError, match=r"--removed gopher: .* rules that did: exact, removed_functions\.long_ones"
    ):
        inspection.main([str(dataset), "--removed", "gopher"])


def test_differences_are_marked_and_a_changed_source_is_noticed(dataset, capsys):
    source = dataset.parent / "a.txt"
    original = source.read_text()
    try:
        source.write_text(original.replace("saw two rivers", "saw ten rivers", 1))
        inspection.main([str(dataset), "--removed", "exact"])
        assert "We saw [-two -]{+ten +}rivers." in capsys.readouterr().out
        source.unlink()
        inspection.main([str(dataset), "--removed", "exact"])
        assert "(the source no longer has this document)" in capsys.readouterr().out
    finally:
        source.write_text(original)


def test_the_report_has_a_table_of_rules(dataset):
    page = (dataset / "report.html").read_text()
    assert "<h2>Removed documents</h2>" in page and "<del>" not in page
    assert (
        f"<small>kept instead: {dataset.parent / 'a.txt'}, 0</small>" in page
        and "removed_functions.long_ones + removed_functions.no_map" in page
    )
    command = "--filter</span> <span>removed_functions:long_ones,removed_functions:no_map"
    assert command in page


def test_counts_by_source_and_column_are_shown(tokenizer_folder, tmp_path, capsys):
    for name in ("news", "shop"):
        (tmp_path / name).mkdir()
        rows = [
            {
                "text": f"Page {number % 5} of the {name}. " * 3,
                "url": f"https://{name}{number % 2}.org/{number}",
            }
            for number in range(8 if name == "news" else 9)
        ]
        (tmp_path / name / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [
        "--input",
        str(tmp_path / "*" / "a.jsonl"),
        "--tokenizer",
        str(tokenizer_folder),
        "--dedup",
        "exact",
    ]
    prepare.main([*argv, "--output", str(tmp_path / "out"), "--keep_columns", "url", "--max_length", "16"])
    capsys.readouterr()
    inspection.main([str(tmp_path / "out"), "--removed", "all", "--most", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "           7  exact",
        "by source:",
        "           4  shop/: exact 4",
        "           3  news/: exact 3",
    ]
    assert lines[4:7] == ["by url:", "           2  news1.org: exact 2", "           2  shop0.org: exact 2"]
    inspection.main([str(tmp_path / "out"), "--removed", "exact", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["by_source"][1] == {"name": "news/", "documents": 3, "rules": {"exact": 3}}
    assert len(document["by_column"]["url"]) == 4
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td><code>shop/</code></td><td>4</td><td>4</td>" in page and "shop0.org" in page


def test_masked_personal_data_are_listed_shown_and_can_be_restored(tokenizer_folder, tmp_path, capsys):
    texts = [
        "We saw a map.",
        "Mail jo@example.com or 8.8.8.8 about the map of two rivers.",
        "Call +49 30 123456 today.",
    ]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    argv = ["--input", str(tmp_path / "a.txt"), "--tokenizer", str(tokenizer_folder), "--filter", "pii"]
    argv += ["--packing", "none", "--output_format", "parquet"]
    prepare.main([*argv, "--output", str(tmp_path / "out")])
    (path,) = (tmp_path / "out" / "removed").iterdir()
    table = pq.read_table(path)
    assert json.loads(table["evidence"][0].as_py()) == {"spans": [[5, 19, "email"], [23, 30, "ip"]]}
    assert table["document"].to_pylist() == [1, 2] and "example.com" not in str(table.to_pydict())
    manifest = json.loads((tmp_path / "out" / "train" / "manifest.json").read_bytes())
    assert manifest["totals"]["documents"] == 3 and "removed" not in manifest
    assert "jo@example.com" not in (tmp_path / "out" / "report.html").read_text()
    capsys.readouterr()
    inspection.main([str(tmp_path / "out"), "--removed", "pii"])
    assert (
        "Mail [-jo@example.com-]{+<email>+} or [-8.8.8.8-]{+<ip>+} about the map" in capsys.readouterr().out
    )
    pq.write_table(table.slice(0, 1), tmp_path / "restore.parquet")
    prepare.main(
        [*argv, "--output", str(tmp_path / "restored"), "--restore", str(tmp_path / "restore.parquet")]
    )
    listed = pq.read_table(tmp_path / "restored" / "removed")
    assert listed["document"].to_pylist() == [2]
    sizes = [split.manifest["totals"]["bytes"] for split in open_dataset(str(tmp_path / "restored"))]
    masked = len("jo@example.com8.8.8.8") - len("<email><ip>")
    assert sizes == [manifest["totals"]["bytes"] + masked]
    for record in ("train:0:1", "train:0:2"):  # traced with and without masks
        inspection.main([str(tmp_path / "restored"), "--record", record, "--trace", "always"])
    assert "a.txt, line 3" in capsys.readouterr().out


def test_a_converted_dataset_has_the_list(dataset, tmp_path, capsys):
    convert.main([str(dataset), "--output_format", "parquet", "--output", str(tmp_path / "out")])
    names = sorted(path.name for path in (dataset / "removed").iterdir())
    assert sorted(path.name for path in (tmp_path / "out" / "removed").iterdir()) == names
    capsys.readouterr()
    inspection.main([str(tmp_path / "out"), "--removed", "exact"])
    assert f"equal to {dataset.parent / 'a.txt'}, 0" in capsys.readouterr().out
    assert defects(tmp_path / "out") == []
    convert.main([str(dataset), "--output_format", "mds", "--output", str(tmp_path / "out"), "--overwrite"])
    assert sorted(path.name for path in (tmp_path / "out" / "removed").iterdir()) == names


DROPPING = """
def dropping(texts, columns):
    return {"keep": [True] * len(texts), "texts": [text.partition("DROP")[0] for text in texts]}
"""
NOTICE = "We use cookies to improve your experience of this site."


@pytest.fixture(scope="module")
def masked_dataset(tmp_path_factory, tokenizer_folder) -> Path:
    """A dataset with personal data that a filter drops before others are masked, and with removed paragraphs."""
    folder = tmp_path_factory.mktemp("masked")
    (folder / "dropping_functions.py").write_text(DROPPING)
    rows = [
        {
            "text": f"Write to joe{number}@example.com, number {number}.\n{NOTICE}\nDROP jane@secret.org",
            "author": f"amy{number % 2}@dup.org",
        }
        for number in range(4)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["--input", str(folder / "a.jsonl"), "--tokenizer", str(tokenizer_folder), "--max_length", "8"]
    argv += ["--filter", "dropping_functions:dropping,pii", "--keep_columns", "author"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        prepare.main(
            [*argv, "--dedup", "paragraphs", "--paragraph_copies", "2", "--output", str(folder / "out")]
        )
    return folder / "out"


def test_a_report_has_no_personal_data_of_texts_or_columns(masked_dataset):
    page = (masked_dataset / "report.html").read_text()
    assert "dropping_functions" in page
    assert NOTICE in page
    for data in ("joe0@", "jane@", "amy0@", "amy1@"):
        assert data not in page


def test_without_the_module_of_a_filter_samples_have_the_text_as_it_was_read(
    masked_dataset, tmp_path, capsys, caplog, monkeypatch
):
    monkeypatch.delitem(sys.modules, "dropping_functions")
    inspection.main([str(masked_dataset), "--removed", "paragraphs", "--most", "1"])
    output = capsys.readouterr().out
    assert f"\n{NOTICE}\n" in output
    assert "[-" not in output
    assert "removed passages are not shown: " in caplog.text
    assert "dropping_functions" in caplog.text
    convert.main([str(masked_dataset), "--output", str(tmp_path / "converted"), "--output_format", "parquet"])
    assert defects(tmp_path / "converted") == []
