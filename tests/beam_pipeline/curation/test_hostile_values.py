"""Filters on hostile values: odd addresses and lists, long words and lines, names and numbers."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.curation.filters import check_filters
from beam_pipeline.curation.functions import UserFunction
from beam_pipeline.curation.pii import spans
from beam_pipeline.curation.removals import Removals
from beam_pipeline.curation.urls import BlockList
from beam_pipeline.options.curation_options import CurationConfig, parse_thresholds
from beam_pipeline.sources.conversations import message_texts
from beam_pipeline.support.errors import UsageError


def test_an_address_in_a_long_text_without_spaces_is_searched_in_linear_time() -> None:
    # The square of the length would take hours.
    text = "jo@example.com " + "QUJD" * 250_000
    assert [(span.start, span.kind) for span in spans(text)] == [(0, "email")]


@pytest.mark.parametrize("url", ["http://[bad/x", "http://\u2100.com/", "", "/relative", "good.com."])
def test_what_is_no_address_is_not_blocked(url: str) -> None:
    assert BlockList.of_lines(["evil.com"]).entry_of(url) is None


def test_a_block_list_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "blocked.txt"
    path.write_bytes(b"\xef\xbb\xbfevil.com\nexample.com.\n")
    blocked = BlockList.read(str(path))
    assert blocked.entry_of("http://evil.com/a") == "evil.com"
    assert blocked.entry_of("http://example.com") == "example.com"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9.fr\n", "is not a text file in UTF-8"),
        (b"# list\n*.evil.com\n", r"line 2: '\*\.evil\.com' is neither a domain"),
        (b"0.0.0.0 bad.org\n", "line 1"),
        (b"http://\n", "line 1"),
    ],
)
def test_lines_of_block_lists_that_would_never_match_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "blocked.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        check_filters(CurationConfig(filter=("urls",), url_block_list=str(tmp_path / "blocked.txt")))


def test_evidence_may_have_values_that_json_and_utf8_lack() -> None:
    evidence = [{"url": "a\ud800"}, {"day": datetime.date(2020, 1, 1)}]
    removals = Removals.of_rule("MyFilters.keep", np.array([0, 1]), [1.0, 1.0], evidence)
    kept = Removals.from_bytes(removals.to_bytes()).table["evidence"].to_pylist()
    assert list(map(json.loads, kept)) == [{"url": "a\ud800"}, {"day": "2020-01-01"}]


def test_modules_without_a_file_and_those_that_cannot_be_imported_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--filter sys:exit: there is no module 'sys'"):
        _ = UserFunction("sys:exit").function
    (tmp_path / "broken_filters.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"importing broken_filters \(.*\) fails: ZeroDivisionError"):
        _ = UserFunction("broken_filters:keep").function


def test_thresholds_must_be_finite() -> None:
    with pytest.raises(UsageError, match=r"'fineweb\.short_line=inf' is not FILTER\.NAME=NUMBER"):
        parse_thresholds("fineweb.short_line=inf")


def test_numbers_in_calls_of_tools_are_part_of_a_conversations_text() -> None:
    call = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}],
    }
    assert message_texts(json.dumps({"messages": [call]})) == "add\n1\n2.5"
