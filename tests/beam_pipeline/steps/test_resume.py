"""`--resume` keeps the units and shards that an earlier run finished, and gives the same bytes."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest

from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps import deduplicate, graph, write
from beam_pipeline.steps.deduplicate import HashDocuments
from beam_pipeline.steps.tokenize import TokenizeUnit
from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, content, edit_before_tokenizing, fail_before_the_manifests

OPTIONS = ["--splits", "train=0.8,validation=0.2", "--max_length", "32", "--unit_bytes", "10000"]
OPTIONS += ["--shard_size", "300", "--segment_ids"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """A corpus with some duplicate documents, and a broken line in the second unit."""
    path = tmp_path_factory.mktemp("source") / "in.jsonl"
    lines = [json.dumps({"text": text}) for text in [*documents[:250], *documents[50:150]]]
    lines[60] = '{"text": '
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def run_to(source: Path, tokenizer_folder: Path):
    def run_prepare(folder: Path, *options: str, text: Path = source) -> Path:
        prepare.main(arguments(text, tokenizer_folder, folder, *OPTIONS, "--on_bad_record", "skip", *options))
        return folder

    return run_prepare


@pytest.fixture
def run(tmp_path: Path, run_to):
    return lambda *options, output="out", **source: run_to(tmp_path / output, *options, **source)


@pytest.fixture(scope="module")
def uninterrupted_content(tmp_path_factory: pytest.TempPathFactory, run_to):
    """Returns the files of an undisturbed run with some options."""
    return functools.cache(lambda *options: content(run_to(tmp_path_factory.mktemp("whole"), *options)))


class Watch:
    """Records which units are hashed and which are tokenized, and fails at the unit `fail_at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None):
        self.hashed: list[int] = []
        self.tokenized: list[int] = []
        read, tokenize = deduplicate.curated_batches, TokenizeUnit._tokenize

        def watched_read(unit: WorkUnit, *args, **options):
            self.hashed.append(unit.index)
            return read(unit, *args, **options)

        def tokenizing(step: TokenizeUnit, unit: WorkUnit, *args):
            if unit.index == fail_at:
                raise RuntimeError(f"stopped at unit {fail_at}")
            self.tokenized.append(unit.index)
            return tokenize(step, unit, *args)

        monkeypatch.setattr(deduplicate, "curated_batches", watched_read)
        monkeypatch.setattr(TokenizeUnit, "_tokenize", tokenizing)


@pytest.mark.parametrize("dedup", ["none", "exact"])
def test_only_what_is_not_finished_is_done_again(run, uninterrupted_content, monkeypatch, capsys, dedup):
    options = ("--dedup", dedup)
    expected = uninterrupted_content(*options)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped at unit 3"):
        first = Watch(patch, fail_at=3)
        run(*options)
    assert first.tokenized and 3 not in first.tokenized
    stderr = capsys.readouterr().err
    assert f"{len(first.tokenized)} of " in stderr and "0 shards are finished; --resume keeps them" in stderr
    with monkeypatch.context() as patch:
        second = Watch(patch)
        out = run(*options, "--resume")
    units = {unit for unit, _ in enumerate((out / "train" / "units.jsonl").read_text().splitlines()[:-1])}
    assert set(first.tokenized) | set(second.tokenized) == units
    assert not set(first.tokenized) & set(second.tokenized)
    assert second.hashed == []
    assert sorted(first.hashed) == (sorted(units) if dedup == "exact" else [])
    assert content(out) == expected


def test_a_damaged_or_cut_unit_is_done_again(run, uninterrupted_content, tmp_path, monkeypatch):
    expected = uninterrupted_content("--dedup", "exact")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        Watch(patch, fail_at=4)
        run("--dedup", "exact")
    (damaged_unit, cut, deleted_unit, *_), (hashes, *_) = (
        sorted(tmp_path.glob(f"out/_staging/**/units/unit-*.{kind}")) for kind in ("rows", "hashes")
    )
    data = bytearray(damaged_unit.read_bytes())
    data[len(data) // 2] ^= 4
    damaged_unit.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-100])
    deleted_unit.unlink()
    hashes.write_bytes(hashes.read_bytes()[:-1])
    with monkeypatch.context() as patch:
        second = Watch(patch)
        out = run("--dedup", "exact", "--resume")
    assert {0, 1, 2} <= set(second.tokenized)
    assert second.hashed == [0]
    assert content(out) == expected


def test_units_of_an_input_that_was_edited_in_place_are_done_again(run, source, tmp_path, monkeypatch):
    edited_input = tmp_path / "edited.jsonl"
    edited_input.write_bytes(source.read_bytes())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        Watch(patch, fail_at=4)
        run("--dedup", "exact", text=edited_input)
    data = edited_input.read_bytes()
    edited_input.write_bytes(data[::-1].replace(b"a", b"e", 5)[::-1].replace(b"b", b"d", 5))
    assert len(data) == edited_input.stat().st_size and data != edited_input.read_bytes()
    out = run("--dedup", "exact", "--resume", text=edited_input)
    assert content(out) == content(run("--dedup", "exact", output="whole", text=edited_input))
    # Nor does a later run in this process take rows of the earlier one's files, whose names were the same.
    edited_input.write_bytes(data)
    out = run("--dedup", "exact", "--overwrite", text=edited_input)
    assert content(out) == content(run("--dedup", "exact", output="first", text=edited_input))


def edit_and_keep_the_time(path: Path, old_bytes: bytes, new_bytes: bytes) -> None:
    """Edits a file in place as `touch -r` and `cp -p` allow: its size and time of modification stay."""
    times = path.stat()
    data = path.read_bytes()
    assert len(old_bytes) == len(new_bytes) and old_bytes in data
    path.write_bytes(data.replace(old_bytes, new_bytes))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_units_of_an_edited_input_whose_time_was_set_back_are_done_again(run, source, tmp_path, monkeypatch):
    edited_input = tmp_path / "edited.jsonl"
    edited_input.write_bytes(source.read_bytes())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        Watch(patch, fail_at=4)
        run(text=edited_input)
    edit_and_keep_the_time(edited_input, b" a", b" b")
    out = run("--resume", text=edited_input)
    assert content(out) == content(run(output="whole", text=edited_input))


def test_a_unit_whose_duplicates_changed_is_done_again(run, tmp_path, monkeypatch):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, unique_text in (("a.jsonl", "own"), ("b.jsonl", "other"), ("c.jsonl", "last")):
        (folder / name).write_text("".join(f'{{"text": "{text}"}}\n' for text in ("shared", unique_text)))
    options = ["--dedup", "exact", "--unit_bytes", "40"]
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        Watch(patch, fail_at=2)
        run(*options, text=folder)
    edit_and_keep_the_time(folder / "a.jsonl", b"shared", b"edited")  # now the text of b.jsonl is the first
    assert content(run(*options, "--resume", text=folder)) == content(
        run(*options, output="whole", text=folder)
    )


def test_an_input_that_changes_between_hashing_and_tokenizing_is_an_error(run, source, tmp_path, monkeypatch):
    edited_input = tmp_path / "edited.jsonl"
    edited_input.write_bytes(source.read_bytes())
    edit_before_tokenizing(monkeypatch, 2, lambda: edit_and_keep_the_time(edited_input, b" a", b" b"))
    with pytest.raises(
        DataError, match=r"edited\.jsonl: has changed since .* unit 2 differs; use --overwrite"
    ):
        run("--dedup", "exact", text=edited_input)


@pytest.mark.parametrize("step", ["hash", "tokenize"])
def test_an_input_that_changes_before_a_unit_is_retried_is_an_error(run, source, tmp_path, monkeypatch, step):
    edited_input = tmp_path / "edited.jsonl"
    edited_input.write_bytes(source.read_bytes())
    kind = HashDocuments if step == "hash" else TokenizeUnit
    process = kind.process

    def process_twice(self, element):
        first = list(process(self, element))
        if element[0].index == 1:
            edit_and_keep_the_time(edited_input, b" a", b" b")
            return list(process(self, element))
        return first

    monkeypatch.setattr(kind, "process", process_twice)
    with pytest.raises(
        DataError, match=r"edited\.jsonl: has changed since .* unit 1 differs; use --overwrite"
    ):
        run("--dedup", "exact" if step == "hash" else "none", text=edited_input)


@pytest.mark.parametrize("has_fewer_rows", [False, True])
def test_shards_of_an_input_that_was_edited_in_place_end_the_run_with_the_remedy(
    run, source, tmp_path, monkeypatch, has_fewer_rows
):
    edited_input = tmp_path / "edited.jsonl"
    edited_input.write_bytes(source.read_bytes())
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(write, "commit", fail_before_the_manifests)
        run(text=edited_input)
    data = edited_input.read_bytes()
    fewer_rows = json.dumps({"text": "o" * (len(data) - len('{"text": ""}'))}).encode()
    edited_input.write_bytes(fewer_rows if has_fewer_rows else data.replace(b" a", b" b", 50))
    assert edited_input.stat().st_size == len(data)
    with pytest.raises(DataError, match="If the input has changed since, use --overwrite"):
        run("--resume", text=edited_input)
    out = run("--overwrite", text=edited_input)
    assert content(out) == content(run(output="whole", text=edited_input))


def test_bad_records_that_are_gone_are_written_again(run, uninterrupted_content, tmp_path, monkeypatch):
    expected = uninterrupted_content()
    assert any(name.startswith("bad_records/") for name in expected)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        Watch(patch, fail_at=4)
        run()
    for path in tmp_path.glob("out/bad_records/*"):
        path.unlink()
    assert content(run("--resume")) == expected


def test_without_resume_nothing_of_the_earlier_run_is_used(run, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        Watch(patch, fail_at=4)
        run()
    with monkeypatch.context() as patch:
        second = Watch(patch)
        run()
    assert second.tokenized == sorted(second.tokenized) and second.tokenized[0] == 0


def test_rows_that_the_runner_groups_make_the_same_bytes(run, uninterrupted_content, monkeypatch):
    expected = uninterrupted_content()
    monkeypatch.setattr(graph, "_gather", graph._group)
    assert content(run()) == expected


def test_tails_in_many_blocks_make_the_same_bytes(run, monkeypatch):
    expected = content(run("--max_length", "500", output="whole"))
    monkeypatch.setattr("beam_pipeline.rows.blocks.BLOCK_BYTES", 2000)  # two rows of 500 tokens
    assert content(run("--max_length", "500", output="small blocks")) == expected
