from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from beam_pipeline import __main__
from beam_pipeline.options.command_line import parse
from beam_pipeline.options.dataset_options import BrowseConfig
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import browse


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Starts the verb, and returns its process and the address that it prints."""
    command = [sys.executable, "-m", "beam_pipeline", "browse", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs inherit an ignored SIGINT, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    url = process.stdout.readline().strip()
    assert process.stdout.readline() == "Press Ctrl-C to end.\n"
    return process, url


@pytest.mark.parametrize(
    ("number", "status", "printed"), [(signal.SIGINT, 0, ""), (signal.SIGTERM, 143, "terminated")]
)
def test_it_serves_until_a_signal_ends_it_quietly(
    dataset: Path, number: int, status: int, printed: str
) -> None:
    process, url = start(str(dataset))
    with urllib.request.urlopen(f"{url}row/train/3") as page:
        assert "row 3 of train" in page.read().decode().lower()
    port = int(url.split(":")[2].partition("/")[0])
    held = socket.create_connection(("127.0.0.1", port))  # as a browser holds one
    process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    held.close()
    assert process.returncode == status
    assert output.strip() == "" and (printed in errors if printed else errors == "")


def test_the_address_is_on_this_machine_and_cannot_be_guessed(dataset: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    roots = set()
    for _ in range(2):
        process, url = start(str(dataset), "--port", str(port), "--no_open")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert url.startswith(f"http://127.0.0.1:{port}/")
        roots.add(url.split("/")[3])
    assert len(roots) == 2 and all(len(root) >= 16 for root in roots)


def test_what_is_wrong_is_said_before_a_page_is_served(dataset: Path, tmp_path: Path) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: Address already in use; omit it"):
            browse.main([str(dataset), "--port", str(port)])
    with pytest.raises(DataError, match="no such folder, or it is empty"):
        browse.main([str(tmp_path)])
    with pytest.raises(UsageError, match="--port 65536: must be from 1 to 65535"):
        parse(BrowseConfig, [str(dataset), "--port", "65536"])


def test_the_address_is_all_that_is_printed_if_quiet_and_json_on_request(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(browse.BrowseServer, "serve_forever", lambda self: None)
    (tmp_path / "quiet.yaml").write_text(f"dataset: {dataset}\nquiet: true\n")
    assert __main__.run("browse", ["--config", str(tmp_path / "quiet.yaml")]) == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\S+/\n", capsys.readouterr().out)
    assert __main__.run("browse", [str(dataset), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dataset"] == str(dataset) and document["url"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("options", [[], ["--no_open"]])
def test_a_browser_is_opened_only_for_a_person(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(browse.BrowseServer, "serve_forever", lambda self: None)
    monkeypatch.setenv("DISPLAY", ":0")
    browse.main([str(dataset), *options])
    assert opened == []  # the output of a test is no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(browse.threading.Thread, "start", lambda self: self.run())
    browse.main([str(dataset), *options])
    assert len(opened) == (not options)
    monkeypatch.delenv("DISPLAY")
    assert os.environ.get("WAYLAND_DISPLAY") or not browse._has_display() or sys.platform == "darwin"
