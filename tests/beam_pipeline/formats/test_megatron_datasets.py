"""`--output_format megatron`: the files that Megatron-LM's preprocess_data.py writes, from any number of units."""

from __future__ import annotations

import json
import os
import shutil
from itertools import chain
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from beam_pipeline.options.command_line import parse
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import inspection, prepare
from beam_pipeline.verbs.report import write_report
from tests.beam_pipeline.megatron import build, read
from tests.beam_pipeline.runs import arguments, content, defects, fail_before_the_manifests

FORMAT = ["--packing", "none", "--output_format", "megatron"]
UNITS = ["--unit_bytes", "20000"]


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    path = tmp_path_factory.mktemp("jsonl") / "corpus.jsonl"
    lines = [json.dumps({"text": "\n".join(documents[n : n + 1 + n % 4])}) for n in range(len(documents))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    """A tokenizer that adds no special tokens."""
    folder = Path(shutil.copytree(tokenizer_folder, tmp_path_factory.mktemp("plain") / "tokenizer"))
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    return folder


@pytest.fixture(scope="module")
def expected(jsonl: Path, tokenizer: Path) -> list[list[int]]:
    """The output of preprocess_data.py with --append-eod: a document for each line, in their order."""
    hf_tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    hf_tokenizer.encode_special_tokens = True
    texts = [json.loads(line)["text"] for line in jsonl.read_text().splitlines()]
    return [[*encoding.ids, 2] for encoding in hf_tokenizer.encode_batch(texts)]


@pytest.fixture(scope="module")
def finished_output(tmp_path_factory: pytest.TempPathFactory, jsonl: Path, tokenizer: Path) -> Path:
    """A dataset of one pair. Tests must not change it."""
    folder = tmp_path_factory.mktemp("megatron") / "out"
    prepare.main(arguments(jsonl, tokenizer, folder, *FORMAT, *UNITS, "--append_eos"))
    return folder


@pytest.fixture
def copy(finished_output: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_output, tmp_path / "out"))


def pairs(folder: Path, split: str = "train") -> list[Path]:
    manifest = json.loads((folder / split / "manifest.json").read_text())
    return [(folder / split / shard["name"]).with_suffix("") for shard in manifest["shards"]]


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if name.endswith((".bin", ".idx"))}


def test_a_pair_has_the_bytes_of_preprocess_data(finished_output: Path, expected: list[list[int]]):
    [prefix] = pairs(finished_output)
    assert prefix.name == f"train-00000-{len(expected)}"
    data, index = build(expected, 400)
    assert prefix.with_suffix(".bin").read_bytes() == data
    assert prefix.with_suffix(".idx").read_bytes() == index


def test_it_does_not_depend_on_units_or_workers(
    finished_output: Path, jsonl: Path, tokenizer: Path, tmp_path: Path
):
    run = arguments(jsonl, tokenizer, tmp_path / "out", *FORMAT, "--append_eos")
    prepare.main([*run, "--unit_bytes", "7000", "--direct_num_workers", "2"])
    assert files_of(tmp_path / "out") == files_of(finished_output)


def test_several_pairs_are_consecutive_parts(
    jsonl: Path, tokenizer: Path, tmp_path: Path, expected: list[list[int]]
):
    run = arguments(jsonl, tokenizer, tmp_path / "out", *FORMAT, *UNITS, "--append_eos", "--num_shards", "7")
    prepare.main(run)
    documents_by_pair = [read(prefix) for prefix in pairs(tmp_path / "out")]
    assert {len(part) for part in documents_by_pair} == {142, 143}
    assert [*chain.from_iterable(documents_by_pair)] == expected
    assert defects(tmp_path / "out") == []


def test_inspect_and_report_show_documents(copy: Path, documents: list[str], jsonl: Path, capsys):
    inspection.main([str(copy)])
    assert "whole documents, in the order of the input" in capsys.readouterr().out
    inspection.main([str(copy), "--record", "train:0:777"])
    printed_text = capsys.readouterr().out
    assert f"{jsonl}, line 778" in printed_text and printed_text.count(", whole") == 1
    inspection.main([str(copy), "--grep", documents[400][:30], "--most", "9"])
    assert "train:0:400  " in capsys.readouterr().out
    os.remove(copy / "report.html")  # noqa: PTH107
    page = Path(write_report(str(copy))).read_text()
    assert "Whole documents" in page and "None" not in page


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_verify_finds_every_damage_of_a_pair(copy: Path, finished_output: Path, suffix: str):
    assert defects(copy) == []
    [prefix] = pairs(copy)
    path = prefix.with_suffix(suffix)
    data = path.read_bytes()
    for place in (0, 5, 20, 40, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert any(f"{path.name}: CRC-32C" in defect for defect in defects(copy)), place
    path.write_bytes(data[:-2])
    assert any(f"{path.name}: {len(data) - 2} bytes" in defect for defect in defects(copy))
    path.unlink()
    assert any(f"{path.name}: missing" in defect for defect in defects(copy))


def test_verify_reads_the_documents_if_all_checksums_were_changed(copy: Path):
    from beam_pipeline.dataset.shards import file_sums
    from tokenmill_reader.format.manifest import with_checksum

    [prefix] = pairs(copy)
    path = prefix.with_suffix(".bin")
    data = bytearray(path.read_bytes())
    data[0:2] = (int.from_bytes(data[0:2], "little") ^ 1).to_bytes(2, "little")
    path.write_bytes(data)
    manifest = json.loads((copy / "train" / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["shards"][0]["crc32c"] = file_sums(str(path))[1]
    (copy / "train" / "manifest.json").write_bytes(with_checksum(manifest))
    assert any("the rows' checksum is" in defect for defect in defects(copy))


def test_a_foreign_file_with_the_name_of_an_index_is_in_the_way(jsonl: Path, tokenizer: Path, tmp_path: Path):
    users_file = tmp_path / "out" / "train" / "train-00000-1000.idx"
    users_file.parent.mkdir(parents=True)
    users_file.write_bytes(b"precious")
    run = arguments(jsonl, tokenizer, tmp_path / "out", *FORMAT, *UNITS)
    for options in ([], ["--overwrite"]):
        with pytest.raises(UsageError, match="did not write"):
            prepare.main([*run, *options])
    assert content(tmp_path / "out") == {"train/train-00000-1000.idx": b"precious"}


LOST = [".bin", "damaged .idx"]
LOST += [pytest.param(name, marks=pytest.mark.wide) for name in ("nothing", ".idx", "damaged .bin")]


@pytest.mark.parametrize("lost_file", LOST)
def test_a_run_that_ended_between_the_files_of_a_pair_is_resumed(
    finished_output: Path, jsonl: Path, tokenizer: Path, tmp_path: Path, monkeypatch, lost_file: str
):
    run = arguments(jsonl, tokenizer, tmp_path / "out", *FORMAT, *UNITS, "--append_eos")
    with monkeypatch.context() as patch:
        patch.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        with pytest.raises(Exception, match="stopped before the manifests"):
            prepare.main(run)
    prefix = tmp_path / "out" / "train" / "train-00000-1000"
    if lost_file.startswith("damaged"):
        path = prefix.with_suffix(lost_file.split()[1])
        path.write_bytes(bytes(path.stat().st_size))
    elif lost_file != "nothing":
        prefix.with_suffix(lost_file).unlink()
    prepare.main([*run, "--resume"])
    assert content(tmp_path / "out") == content(finished_output)


def test_an_error_while_publishing_the_index_leaves_a_run_that_can_be_resumed(
    finished_output: Path, jsonl: Path, tokenizer: Path, tmp_path: Path, monkeypatch
):
    publish = filesystem._move_to_new

    def fail(source: str, target: str) -> None:
        if target.endswith(".idx"):
            raise OSError(28, "No space left on device")
        publish(source, target)

    run = arguments(jsonl, tokenizer, tmp_path / "out", *FORMAT, *UNITS, "--append_eos")
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "_move_to_new", fail)
        with pytest.raises((DataError, OSError), match="No space left"):
            prepare.main(run)
    assert not list((tmp_path / "out").rglob("*.idx"))
    prepare.main([*run, "--resume"])
    assert content(tmp_path / "out") == content(finished_output)


def test_documents_without_tokens_and_empty_splits(tokenizer: Path, tmp_path: Path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "one two"}\n{"text": ""}\n{"text": " "}\n{"text": "three"}\n')
    run = arguments(source, tokenizer, tmp_path / "out", *FORMAT)
    prepare.main([*run, "--splits", "train=0.999,validation=0.001"])
    assert defects(tmp_path / "out") == []
    assert [len(read(prefix)) for prefix in pairs(tmp_path / "out")] == [2]
    assert pairs(tmp_path / "out", "validation") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--packing", "none"], "--output_format tfrecord with --packing none"),
        (["--output_format", "megatron"], "--output_format megatron with --packing concat"),
        ([*FORMAT, "--max_length", "128"], "--max_length: does not apply to --packing none"),
        ([*FORMAT, "--segment_ids"], "--segment_ids: does not apply to --packing none"),
        ([*FORMAT, "--no_attention_mask"], "--no_attention_mask: does not apply to --packing none"),
        ([*FORMAT, "--shuffle", "global"], "--shuffle global: --packing none keeps the order"),
    ],
)
def test_options_that_contradict_each_other(options: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        parse(PrepareConfig, arguments("a", "b", "c", *options))


def test_an_estimate(jsonl: Path, tokenizer: Path, tmp_path: Path, finished_output: Path, capsys):
    prepare.main(arguments(jsonl, tokenizer, tmp_path / "out", *FORMAT, "--append_eos", "--estimate"))
    printed_text = capsys.readouterr().out
    size = sum(map(len, files_of(finished_output).values()))
    assert f"1,000 documents, 1 shard, {size / 1e3:.0f} kB" in printed_text


def test_in_cloud_storage_the_files_are_the_same(gcs, finished_output: Path, jsonl: Path, tokenizer: Path):
    prepare.main(arguments(jsonl, tokenizer, "gs://data/out", *FORMAT, *UNITS, "--append_eos"))
    assert gcs.objects_below("gs://data/out") == content(finished_output)
    assert defects("gs://data/out") == []
