"""Messages on stderr: readable beside a progress bar, and none of Beam's."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest
from tqdm import tqdm

from tokenmill_reader.console.logs import log_to_stderr

_log = logging.getLogger("beam_pipeline.a_module")


def test_a_message_gets_a_line_of_its_own_above_the_progress_bar(monkeypatch: pytest.MonkeyPatch):
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    log_to_stderr("beam_pipeline")
    with tqdm(total=3, desc="tokenize", ascii=True) as bar:
        bar.update(1)
        _log.info("100% of the input is text")
    printed_text = terminal.getvalue()
    assert "\r100% of the input is text\n\rtokenize:" in printed_text
    assert printed_text.count("100% of the input is text") == 1


def test_only_the_messages_of_this_package_are_shown(capsys: pytest.CaptureFixture):
    log_to_stderr("beam_pipeline")
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    logging.getLogger("apache_beam.runners").info("a stage")
    _log.info("a message")
    _log.debug("a detail")
    assert capsys.readouterr().err == "a message\n"
    assert (root.level, root.handlers) == (level, handlers)


def test_what_native_code_prints_is_discarded_also_if_stdout_is_closed():
    code = "import os, sys; from beam_pipeline.support.console import without_stdout\n"
    code += "with without_stdout(): os.write(1, b'native') if sys.stdout else None; print('python')\n"
    code += "print('after'); print('done', file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "after\n"
    command = ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == "done\n"
