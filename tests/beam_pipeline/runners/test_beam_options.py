from __future__ import annotations

import copy

import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from beam_pipeline.options.beam_names import check_names
from beam_pipeline.runners import beam_options
from beam_pipeline.support.errors import UsageError


@pytest.mark.parametrize("runner", ["", "DirectRunner", "FnApiRunner", "PrismRunner", "DataflowRunner"])
def test_which_runners_start_worker_processes(runner: str) -> None:
    argv = ["--runner", runner] if runner else []
    assert not beam_options.starts_workers_here(beam_options.parse(argv))
    options = beam_options.parse([*argv, "--direct_running_mode", "multi_processing"])
    assert beam_options.starts_workers_here(options) == (runner in ("", "DirectRunner", "FnApiRunner"))


@pytest.mark.parametrize(
    ("argv", "visible"),
    [
        ([], True),
        (["--runner", "DirectRunner"], True),
        (["--runner", "direct"], True),
        (["--runner", "apache_beam.runners.portability.fn_api_runner.FnApiRunner"], True),
        (["--runner", "PrismRunner"], True),
        (["--runner", "DataflowRunner"], False),
        (["--runner", "DataflowRunner", "--environment_type", "LOOPBACK"], False),
        (["--runner", "FlinkRunner"], False),
        (["--runner", "PortableRunner", "--environment_type", "DOCKER"], False),
        (["--runner", "PortableRunner", "--environment_type", "LOOPBACK"], True),
    ],
)
def test_which_workers_see_local_files(argv: list[str], visible: bool) -> None:
    assert beam_options.workers_see_local_files(beam_options.parse(argv)) == visible


def test_a_runner_that_beam_lacks_is_an_error_before_the_input_is_listed() -> None:
    with pytest.raises(UsageError, match=r"--runner FlinkRuner: .* did you mean FlinkRunner[?]"):
        beam_options.parse(["--runner", "FlinkRuner"])


def test_a_wrong_value_is_one_error_without_beams_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        UsageError, match=r"^--direct_num_workers: invalid int value: 'x' .an option of Beam.$"
    ):
        check_names(["--direct_num_workers", "x"], [])
    assert capsys.readouterr() == ("", "")


def test_views_are_made_once_and_share_their_values(monkeypatch) -> None:
    options = beam_options.parse(["--direct_num_workers", "3"])
    direct_options = options.view_as(DirectOptions)
    direct_options.direct_num_workers = 4
    options.view_as(StandardOptions)
    options_copy = copy.deepcopy(options)
    options_copy.view_as(DirectOptions).direct_num_workers = 5

    def fail(*_) -> None:
        raise AssertionError("a view was made again")

    monkeypatch.setattr(PipelineOptions, "__init__", fail)
    assert options.view_as(DirectOptions) is direct_options
    assert options.view_as(DirectOptions).direct_num_workers == 4
    assert options.view_as(StandardOptions).runner is None
    monkeypatch.undo()
    assert options.get_all_options()["direct_num_workers"] == 4
    assert options_copy.get_all_options()["direct_num_workers"] == 5
