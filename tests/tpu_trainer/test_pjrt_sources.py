"""The figures of each source in a run of several processes are those of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tpu_trainer import cpu_devices
from tests.tpu_trainer.faults import run_all
from tests.tpu_trainer.small_runs import fit_arguments, metrics
from tests.tpu_trainer.test_pjrt_hosts import DIVIDED_ROWS, OPTIONS, meeting_processes
from tests.tpu_trainer.tiny import sequences, write_split

# How two processes with two devices each divide a batch.
MESHES = {
    "rows": {},
    "tokens": DIVIDED_ROWS,
}
STEPS, BATCH = 8, 8


@pytest.mark.wide
@pytest.mark.parametrize("mesh", MESHES)
def test_figures_of_sources_do_not_depend_on_the_processes(
    mesh: str, dataset: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    folders = []
    for seed, name in enumerate("abc"):
        write_split(tmp_path / name / "train", sequences(40, seed), tokenizer=tokenizer_folder)
        folders.append(str(tmp_path / name / "train"))
    first, second, third = folders
    options = MESHES[mesh] | {
        "data.train": json.dumps({first: 3, second: 1}),
        "data.stages": json.dumps([{"from": 4, "weights": {third: 1, first: 1}}]),
        "train.steps": STEPS,
        "train.batch_size": BATCH,
        "train.accumulation": 2,
        "train.log_every": 2,
        "train.evaluate_every": "null",
    }
    one = (
        fit_arguments(dataset, tmp_path / "one", OPTIONS | options),
        {"environment": cpu_devices.environment(4)},
    )
    first_process, second_process = meeting_processes(tmp_path / "two", dataset, options, ({}, {}), ({}, {}))
    for outcomes in run_all(tmp_path, [[first_process], [second_process], [one]]):
        for status, output in outcomes:
            assert status == 0, output
    lines = [
        [record["sources"] for record in metrics(tmp_path / name) if "sources" in record]
        for name in ("one", "two")
    ]
    summaries = [
        json.loads((tmp_path / name / "summary.json").read_text())["sources"] for name in ("one", "two")
    ]
    assert [list(sources) for sources in lines[1]] == 3 * [["a/train", "b/train"]] + 2 * [
        ["a/train", "c/train"]
    ]
    assert sum(source["rows"] for source in summaries[1].values()) == STEPS * BATCH
    for expected, sources in zip([*lines[0], summaries[0]], [*lines[1], summaries[1]], strict=True):
        assert sources.keys() == expected.keys()
        for name, figures in expected.items():
            assert sources[name] == pytest.approx(figures, rel=1e-5)
