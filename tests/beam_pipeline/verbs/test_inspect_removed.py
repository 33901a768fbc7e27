"""`inspect --removed`, and the report's table of rules."""

import json
from pathlib import Path

import pytest

from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import inspection, prepare

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
    assert "Removed by rules" in page and "removed_functions.long_ones + removed_functions.no_map" in page
    command = "--filter</span> <span>removed_functions:long_ones,removed_functions:no_map"
    assert command in page
