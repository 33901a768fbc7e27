from pathlib import Path

import pytest

from beam_pipeline.support import memory
from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments

GB = 10**9


def machine(root: Path, available_kib: int, cgroup: str, files: dict[str, str]) -> str:
    """A folder with the files of /proc and /sys that describe a machine's memory."""
    for name, text in {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable:   {available_kib} kB\n",
        "proc/self/cgroup": cgroup,
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def group(limit: str, usage: int, inactive: int) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {inactive}\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{usage}\n", "memory.stat": stat}


def test_without_a_limit_it_is_the_machines(tmp_path: Path):
    files = {f"sys/fs/cgroup/a/{name}": text for name, text in group("max", 10, 0).items()}
    assert memory.available(machine(tmp_path, 1000, "0::/a\n", files)) == 1000 << 10


def test_the_tightest_group_counts_less_what_it_holds_but_not_its_cache(tmp_path: Path):
    files = {f"sys/fs/cgroup/a/b/{name}": text for name, text in group("max", 10, 0).items()}
    files |= {f"sys/fs/cgroup/a/{name}": text for name, text in group("5000", 3000, 400).items()}
    assert memory.available(machine(tmp_path, 1000, "0::/a/b\n", files)) == 5000 - 3000 + 400


def test_a_container_of_version_1_sees_its_group_at_the_top(tmp_path: Path):
    texts = {"memory.limit_in_bytes": "9000\n", "memory.usage_in_bytes": "1000\n"}
    texts["memory.stat"] = "total_inactive_file 50\n"
    files = {f"sys/fs/cgroup/memory/{name}": text for name, text in texts.items()}
    root = machine(tmp_path, 1000, "5:cpu,cpuacct:/x\n4:memory:/docker/123\n", files)
    assert memory.available(root) == 9000 - 1000 + 50


def test_this_machine_tells():
    assert memory.available() > 1 << 20


def test_text_alone_needs_little_more_memory_if_the_output_is_local(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "available", lambda: 4 * GB)
    small, large, largest = (
        memory.estimate(input_bytes=size, id_bytes=2, groups_rows=False, groups_hashes=False)
        for size in (GB // 10, 10 * GB, 1000 * GB)
    )
    assert small < large == largest < GB
    grouped = memory.estimate(input_bytes=10 * GB, id_bytes=2, groups_rows=True, groups_hashes=False)
    assert 30 * GB < grouped < 35 * GB


@pytest.mark.parametrize(
    ("available_bytes", "rows"), [(None, 1 << 28), (2 << 30, 1 << 28), (1 << 40, 1 << 30)]
)
def test_rows_get_an_eighth_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, available_bytes: int | None, rows: int
):
    monkeypatch.setattr(memory, "available", lambda: available_bytes)
    assert memory.bytes_to_gather() == rows


def test_what_does_not_fit_is_refused_with_the_remedy():
    memory.check(5 * GB, 6 * GB, remedy="x")
    memory.check(5 * GB, None, remedy="x")
    with pytest.raises(
        UsageError, match=r"about 5\.0 GB .* 4\.0 GB are available; buy some, or .*--skip_memory_check"
    ):
        memory.check(5 * GB, 4 * GB, remedy="buy some")


def test_prepare_refuses_before_it_writes_anything_unless_it_is_told_to_run(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)
    command = arguments(corpus, tokenizer_folder, tmp_path / "out")
    with pytest.raises(UsageError, match=r"0\.0 GB are available; use --runner DataflowRunner, or"):
        prepare.main(command)
    assert not (tmp_path / "out").exists()
    prepare.main([*command, "--skip_memory_check"])
    assert (tmp_path / "out" / "train" / "manifest.json").exists()
