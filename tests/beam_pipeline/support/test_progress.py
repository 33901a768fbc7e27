"""Long steps show their progress on a terminal; short steps and other outputs show none."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import re
import select
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.support import progress
from beam_pipeline.support.progress import ProgressDisplay, UnitProgress, tracked
from beam_pipeline.verbs import verify


@pytest.fixture(autouse=True)
def short_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MOMENT", 0.05)
    monkeypatch.setattr(verify, "MOMENT", 0.0)


@contextlib.contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Makes stderr a terminal in this context; yields a function that returns what it has shown."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, 120))

    def read_terminal() -> str:
        text = b""
        while select.select([master], [], [], 0.2)[0]:  # what was written arrives a moment later
            text += os.read(master, 1 << 16)
        return text.decode()

    with os.fdopen(slave, "w", buffering=1) as stream, contextlib.redirect_stderr(stream):
        yield read_terminal
    os.close(master)


def slow_items(count: int, seconds: float) -> Iterator[int]:
    for item in range(count):
        time.sleep(seconds)
        yield item


def test_a_long_loop_shows_a_bar_with_rate_and_time_left_that_vanishes() -> None:
    with terminal() as read_terminal:
        assert list(tracked(slow_items(5, 0.15), 5, label="check", unit="files")) == list(range(5))
        text = read_terminal()
    assert re.search(r"check +\d+%\|.*\| \d/5 files \[00:00<00:00, +\d+\.\d+ files/s\]", text)
    assert text.endswith("\r")  # the line is cleared


def test_short_work_shows_nothing() -> None:
    with terminal() as read_terminal:
        assert len(list(tracked(range(1000), 1000, label="check", unit="files"))) == 1000
        assert read_terminal() == ""


def test_a_file_or_pipe_gets_nothing(capsys: pytest.CaptureFixture) -> None:
    assert list(tracked(slow_items(3, 0.05), 3, label="check", unit="files")) == [0, 1, 2]
    with ProgressDisplay([("verify", "MB", 1e6)], 1, delay=60.0):
        pass
    assert capsys.readouterr().err == ""


def test_verify_shows_a_bar_and_prints_its_lines_above_it(
    dataset: Path, capsys: pytest.CaptureFixture
) -> None:
    with terminal() as read_terminal:
        verify.main([str(dataset)])
        assert re.search(r"verify +\d+%\|.*MB/s\]", read_terminal())
    stdout = capsys.readouterr().out
    assert re.findall(r"^\S+: whole$", stdout, re.MULTILINE) == [
        f"{dataset}/{name}: whole" for name in ("train", "validation")
    ]


def test_small_totals_are_shown_with_tenths() -> None:
    for total, unit, scale, line in (
        (400_000, "MB", 1e6, "read: 0.0 of 0.4 MB 0%"),
        (20_000_000, "MB", 1e6, "read: 0 of 20 MB 0%"),
        (3, "rows", 1.0, "read: 0 of 3 rows 0%"),
        (0, "MB", 1e6, "read: 0.0 of 0.0 MB"),
    ):
        stream = io.StringIO()
        with ProgressDisplay([("read", unit, scale)], total, stream):
            pass
        assert stream.getvalue() == f"{line}\n"


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_unit_advances_while_it_is_read(name: str, tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(2500).hex() for number in range(4000)]
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.table({"text": texts}), path)
    else:
        lines = [text if name == "a.txt" else json.dumps({"text": text, "id": 1}) for text in texts]
        data = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    config = InputConfig(input=(str(path),))
    (unit,) = plan(config).units
    reports: list[int] = []
    reporter = SimpleNamespace(add=lambda stage, done, for_next_stage=0: reports.append(done))
    unit_progress = UnitProgress(reporter, "tokenize", unit.bytes)
    shown = []
    for _ in read_unit(unit, config, unit_progress.advance):
        shown.append(sum(reports))
    assert 0 < shown[0] < unit.bytes / 2
    assert len(set(shown)) > 2
    assert shown == sorted(shown)
    assert shown[-1] < unit.bytes
    unit_progress.finish()
    assert sum(reports) == unit.bytes
