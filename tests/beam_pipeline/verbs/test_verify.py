"""`verify` names each defect that a dataset can have."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from beam_pipeline.checks import at_scale, shards
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import prepare, verify
from beam_pipeline.verbs.verify import check_dataset
from tests.beam_pipeline.runs import arguments, defects
from tokenmill_reader.format.manifest import checksum_of, describe_file, with_checksum
from tokenmill_reader.format.names import MANIFEST


@pytest.fixture(scope="module")
def finished_dataset(tmp_path_factory, corpus: Path, tokenizer_folder: Path) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    splits = ["--splits", "train=0.8,validation=0.2", "--max_length", "32", "--shard_size", "300"]
    prepare.main(arguments(corpus, tokenizer_folder, out, *splits))
    return out


@pytest.fixture
def dataset(finished_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the dataset, for tests to damage."""
    return Path(shutil.copytree(finished_dataset, tmp_path / "dataset"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit(path: Path, change) -> None:
    """Changes a JSON file. In a manifest, also updates the checksum, so that only recomputed values differ."""
    data = json.loads(path.read_bytes())
    change(data)
    if path.name == MANIFEST:
        data.pop("checksum")
        path.write_bytes(with_checksum(data))
    else:
        path.write_text(json.dumps(data))


def rewrite(path: Path, change) -> None:
    """Changes the text of a manifest, and updates its checksum."""
    text = re.sub(r'  "checksum": .*\n', "", path.read_text())
    new_text = change(text)
    assert new_text != text
    checksum_line = f'  "checksum": "{checksum_of(new_text.encode())}",\n'
    path.write_text(new_text.replace('  "config"', checksum_line + '  "config"', 1))


def replace_beside_manifest(split: Path, name: str, data: bytes) -> None:
    """Replaces a file that the manifest lists, and updates its entry."""
    (split / name).write_bytes(data)

    def describe(manifest: dict) -> None:
        manifest["files"] = [
            describe_file(name, data) if entry["path"] == name else entry for entry in manifest["files"]
        ]

    edit(split / MANIFEST, describe)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def reversed_counts(path: Path) -> bytes:
    statistics = json.loads(path.read_bytes())
    statistics["token_counts"].reverse()
    return json.dumps(statistics).encode()


def shard(dataset: Path) -> Path:
    return sorted((dataset / "train").glob("*.tfrecord"))[1]


def offsets(dataset: Path) -> Path:
    return dataset / "train" / "offsets" / f"{shard(dataset).stem}.offsets"


def train_manifest(**values: object) -> Callable[[Path], None]:
    """Returns a function that changes values in the manifest of the split train."""
    return lambda dataset: edit(dataset / "train" / MANIFEST, lambda manifest: manifest.update(values))


DAMAGE = {
    "a shard deleted": (lambda d: shard(d).unlink(), "train-00001-300.tfrecord: missing"),
    "a record's data flipped": (lambda d: flip(shard(d), 500), "the checksum of the record's data is wrong"),
    "a shard truncated": (
        lambda d: shard(d).write_bytes(shard(d).read_bytes()[:-5]),
        "the file ends within the record",
    ),
    "a shard replaced": (
        lambda d: shard(d).write_bytes((d / "train" / "train-00000-300.tfrecord").read_bytes()),
        "the rows' checksum is",
    ),
    "a shard too many": (
        lambda d: shutil.copy(shard(d), d / "train" / "train-00077-300.tfrecord"),
        "train-00077-300.tfrecord: a shard that the manifest does not name",
    ),
    "no offsets": (lambda d: offsets(d).unlink(), "train-00001-300.offsets: missing"),
    "offsets of another shard": (
        lambda d: offsets(d).write_bytes((offsets(d).parent / "train-00000-300.offsets").read_bytes()),
        "train-00001-300.offsets: 2408 bytes that are not the offsets of the records in train-00001-300.tfrecord",
    ),
    "another checksum of offsets": (
        lambda d: edit(d / "train" / MANIFEST, lambda m: m["shards"][1].update(offsets_crc32c="0" * 8)),
        "train-00001-300.offsets: its CRC-32C is not 00000000",
    ),
    "offsets of some shards": (
        lambda d: edit(d / "train" / MANIFEST, lambda m: m["shards"][1].pop("offsets_crc32c")),
        "shards[1].offsets_crc32c is missing",
    ),
    "no manifest": (
        lambda d: (d / "validation" / "manifest.json").unlink(),
        "validation: no manifest.json, so this is not a finished dataset",
    ),
    "a split gone": (lambda d: shutil.rmtree(d / "validation"), "validation: no manifest.json"),
    "a broken manifest": (
        lambda d: (d / "train" / "manifest.json").write_text("{"),
        "manifest.json: broken JSON",
    ),
    "a later version": (
        train_manifest(version=4),
        "and 4; this program supports 'tokenmill-dataset', 3",
    ),
    "another tokenizer": (lambda d: flip(d / "tokenizer" / "tokenizer.json", 9), "its SHA-256 differs"),
    "no tokenizer": (lambda d: shutil.rmtree(d / "tokenizer"), "tokenizer.json: missing"),
    "other statistics": (
        lambda d: replace_beside_manifest(
            d / "train", "statistics.json", reversed_counts(d / "train" / "statistics.json")
        ),
        "its token counts differ from those of the shards",
    ),
    "no statistics": (lambda d: (d / "train" / "statistics.json").unlink(), "statistics.json: missing"),
    "no schema": (
        lambda d: (d / "train" / "transformed_metadata" / "schema.pbtxt").unlink(),
        "schema.pbtxt: missing",
    ),
    "a wrong number of tokens": (
        lambda d: edit(d / "train" / "manifest.json", lambda m: m["totals"].update(tokens=7)),
        "tokens in the shards, 7 in the manifest",
    ),
    "a vocabulary too small": (
        lambda d: edit(d / "train" / "manifest.json", lambda m: m["tokenizer"].update(vocab_size=50)),
        "outside of the vocabulary",
    ),
    "another length": (train_manifest(max_length=31), "config.max_length is 32, but max_length is 31"),
    "a manifest nested too deeply": (
        lambda d: (d / "train" / MANIFEST).write_text("[" * 100_000),
        "broken JSON (nested too deeply)",
    ),
    "a key that is there twice": (
        lambda d: rewrite(
            d / "train" / MANIFEST,
            lambda text: text.replace('  "num_records"', '  "num_records": 1,\n  "num_records"'),
        ),
        "the key 'num_records' occurs twice",
    ),
    "a share that is no number": (
        lambda d: rewrite(d / "train" / MANIFEST, lambda text: text.replace("0.8]", "NaN]")),
        "NaN is not a JSON number",
    ),
    "a version that is no whole number": (
        train_manifest(version=2.0),
        "format and version are 'tokenmill-dataset' and 2.0;",
    ),
    "no features": (train_manifest(features=[]), "features is [], but"),
    "statistics nested too deeply": (
        lambda d: replace_beside_manifest(d / "train", "statistics.json", b"[" * 100_000),
        "statistics.json: cannot be read",
    ),
    "units nested too deeply": (
        lambda d: replace_beside_manifest(d / "train", "units.jsonl", b"[" * 100_000 + b"\n[]"),
        "units.jsonl: cannot be read",
    ),
    "a tokenizer's config nested too deeply": (
        lambda d: (d / "tokenizer" / "tokenizer_config.json").write_text('{"a":' * 100_000),
        "tokenizer_config.json: ",
    ),
    "a pipe instead of a shard": (lambda d: to_pipe(shard(d)), "not a regular file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_defect_is_named(dataset: Path, damage: str, capsys):
    apply, message = DAMAGE[damage]
    apply(dataset)
    with pytest.raises(DataError, match=r"has \d+ defect"):
        verify.main([str(dataset)])
    defect_lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DEFECT ")]
    assert any(message in line for line in defect_lines), defect_lines
    assert all(str(dataset) in line for line in defect_lines)


def test_a_whole_dataset_and_each_of_its_splits_are_fine(finished_dataset: Path, capsys):
    verify.main([str(finished_dataset)])
    verify.main([str(finished_dataset / "validation")])
    assert capsys.readouterr().out.count(": whole") == 3


def test_what_does_not_belong_is_named(dataset: Path, capsys):
    foreign_names = [
        "train/notes.txt",
        "train/offsets/x",
        "notes.txt",
        "plots/loss.png",
        "_staging/x",
        "bad_records/x",
    ]
    for name in foreign_names:
        (dataset / name).parent.mkdir(exist_ok=True)
        (dataset / name).write_text("mine")
    (dataset / "loop").symlink_to("loop")
    verify.main([str(dataset)])
    lines = capsys.readouterr().out.splitlines()
    notes = [f"NOTE {dataset}/{name}: is not part of the dataset" for name in [*foreign_names, "loop"]]
    assert sorted(line for line in lines if line.startswith("NOTE")) == sorted(notes)
    assert len([line for line in lines if line.endswith(": whole")]) == 3
    shutil.copytree(dataset / "train", dataset / "train-copy")
    messages_by_split = dict(check_dataset(str(dataset)))
    assert any(
        "contains the split 'train'" in defect for defect in messages_by_split[f"{dataset}/train-copy"]
    )
    assert any(
        "not one of the splits that" in defect for defect in messages_by_split[f"{dataset}/train-copy"]
    )


@pytest.mark.parametrize("name", ["chat_template.jinja", "added_tokens.json", "a/b.json"])
def test_a_file_that_autotokenizer_may_load_is_a_defect(dataset: Path, name: str):
    (dataset / "tokenizer" / name).parent.mkdir(exist_ok=True)
    (dataset / "tokenizer" / name).write_text("{}")
    message = "is not a part of the dataset's tokenizer and may change what is loaded; delete it"
    assert defects(dataset) == [f"{dataset}/tokenizer/{name}: {message}"] * 2


def test_a_manifest_beside_the_splits_does_not_hide_them(dataset: Path):
    (dataset / MANIFEST).write_text("{}")
    flip(shard(dataset), 500)
    messages = defects(dataset)
    assert any("is wrong" in defect for defect in messages)
    assert messages[-1].startswith(f"{dataset}/{MANIFEST}: is not part of the dataset")


REPLACEMENTS = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "huge file": lambda path: (path.touch(), os.truncate(path, 1 << 42)),
}
LISTED = (
    *("train/statistics.json", "train/units.jsonl", "train/transformed_metadata/schema.pbtxt"),
    *("train/train-00001-300.tfrecord", "train/offsets/train-00001-300.offsets"),
    *("tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"),
)


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_what_is_not_a_file_is_a_defect_of_its_own(dataset: Path, replacement: str):
    for name in LISTED if replacement == "huge file" else (*LISTED, "train/manifest.json"):
        original = dataset.with_name("kept")
        (dataset / name).rename(original)
        REPLACEMENTS[replacement](dataset / name)
        flip(dataset / "validation" / "units.jsonl", 5)
        messages = defects(dataset)
        assert any(
            defect.startswith((f"{dataset}/{name}: ", f"{dataset}/train: no manifest")) for defect in messages
        )
        assert any("validation/units.jsonl: CRC-32C" in defect for defect in messages)
        other_messages = [
            defect for defect in messages if name not in defect and "validation/units.jsonl" not in defect
        ]
        assert all("tokenizer" in name or "manifest" in name for _ in other_messages), other_messages
        flip(dataset / "validation" / "units.jsonl", 5)
        (dataset / name).rmdir() if replacement == "folder" else (dataset / name).unlink()
        original.rename(dataset / name)
    assert defects(dataset) == []


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
):
    exists = filesystem.exists

    def refuse(path: str) -> bool:  # as for a user without the permission, which root always has
        if "/secret/" in path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return exists(path)

    monkeypatch.setattr(filesystem, "exists", refuse)
    (dataset / "secret").mkdir()
    flip(shard(dataset), 500)
    messages = defects(dataset)
    assert any("is wrong" in defect for defect in messages)
    assert any(
        "secret/manifest.json: cannot be read: [Errno 13] Permission denied" in defect for defect in messages
    )


def test_a_run_that_was_killed_behind_its_last_manifest_has_made_a_whole_dataset(dataset: Path, capsys):
    fingerprint = json.loads((dataset / "train" / MANIFEST).read_bytes())["fingerprint"]
    staging = dataset / "_staging" / fingerprint[:16]
    (staging / "written").mkdir(parents=True)
    (staging / "written" / "tokenizer.json").write_text("[]")
    (dataset / "_staging" / "run.lock").touch()
    verify.main([str(dataset)])
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NOTE")]
    assert len(notes) == 1
    assert (
        "killed after it had finished; the dataset is complete, and the same command with --resume"
        in notes[0]
    )
    flip(shard(dataset), 500)
    assert any("left behind by a run that failed or was killed" in defect for defect in defects(dataset))


def test_splits_of_two_runs_are_told_apart(dataset: Path):
    edit(dataset / "validation" / MANIFEST, lambda m: m.update(fingerprint="0" * 64))
    messages_by_split = dict(check_dataset(str(dataset)))
    assert any("made by another run than" in defect for defect in messages_by_split[f"{dataset}/train"])


def test_what_is_no_dataset_is_said(tmp_path: Path):
    assert "no such folder, or it is empty" in defects(tmp_path / "nowhere")[0]
    (tmp_path / "letter.txt").touch()
    assert "is not a finished dataset" in defects(tmp_path)[0]


def test_all_cores_find_what_one_finds(dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    flip(shard(dataset), 500)
    expected = defects(dataset / "train")
    assert len(expected) == 2
    monkeypatch.setattr(verify, "_BYTES_FOR_ALL_CORES", 0)
    monkeypatch.setattr(verify, "_SHARDS_AT_A_TIME", 1)
    monkeypatch.setattr(verify, "MOMENT", 0.0)  # show progress at once
    with pytest.raises(DataError, match="has 2 defects"):
        verify.main([str(dataset)])
    captured = capsys.readouterr()
    assert [
        line.removeprefix("DEFECT ") for line in captured.out.splitlines() if "DEFECT" in line
    ] == expected
    assert captured.err.startswith("verify: 0.0 of ")


@pytest.mark.parametrize("options", [["--runner", "DirectRunner"], ["--direct_num_workers", "1"]])
def test_a_beam_pipeline_finds_what_this_machine_finds(
    dataset: Path, options: list[str], monkeypatch, capsys
):
    monkeypatch.setattr(at_scale, "_GROUP_BYTES", 1)  # a shard each
    verify.main([str(dataset), *options])
    expected = capsys.readouterr().out
    verify.main([str(dataset)])
    assert capsys.readouterr().out == expected
    flip(shard(dataset), 500)
    shard(dataset).with_name("train-00000-300.tfrecord").unlink()
    output = []
    for extra_options in ([], options):
        with pytest.raises(DataError, match="has 3 defects"):
            verify.main([str(dataset), *extra_options])
        output.append(capsys.readouterr().out)
    assert output[0] == output[1]


def test_more_defects_than_can_be_told_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "MAX_DEFECTS", 2)
    parts = []
    for first in (4, 0, 2):
        part = shards.ShardFindings.empty(3)
        for number in (first, first + 1):
            part.add_defect(number, f"shard {number} is broken")
        parts.append(part)
    merged = at_scale.merge_findings(parts)
    expected = ["shard 0 is broken", "shard 1 is broken", "out/train: 4 more defects in its shards"]
    assert list(merged.messages("out/train")) == expected
