from __future__ import annotations

import pytest

from beam_pipeline import beam_options


@pytest.mark.parametrize("runner", ["", "DirectRunner", "FnApiRunner", "PrismRunner", "DataflowRunner"])
def test_which_runners_start_worker_processes(runner: str) -> None:
    argv = ["--runner", runner] if runner else []
    assert not beam_options.starts_workers_here(beam_options.parse(argv))
    options = beam_options.parse([*argv, "--direct_running_mode", "multi_processing"])
    assert beam_options.starts_workers_here(options) == (runner in ("", "DirectRunner", "FnApiRunner"))


@pytest.mark.parametrize(
    ("argv", "seen"),
    [
        ([], True),
        (["--runner", "DirectRunner"], True),
        (["--runner", "apache_beam.runners.portability.fn_api_runner.FnApiRunner"], True),
        (["--runner", "PrismRunner"], True),
        (["--runner", "DataflowRunner"], False),
        (["--runner", "DataflowRunner", "--environment_type", "LOOPBACK"], False),
        (["--runner", "FlinkRunner"], False),
        (["--runner", "PortableRunner", "--environment_type", "DOCKER"], False),
        (["--runner", "PortableRunner", "--environment_type", "LOOPBACK"], True),
    ],
)
def test_which_workers_see_local_files(argv: list[str], seen: bool) -> None:
    assert beam_options.workers_see_local_files(beam_options.parse(argv)) == seen
