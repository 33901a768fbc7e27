"""A run deletes and replaces only files that a run has written. Output paths are never interpreted as globs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from beam_pipeline import filesystem, inspection, prepare, train_tokenizer
from beam_pipeline.__main__ import run
from beam_pipeline.dataset import manifest
from beam_pipeline.dataset.bad_records import write_bad_records
from beam_pipeline.errors import DataError, UsageError
from beam_pipeline.steps import tokenize
from beam_pipeline.verify import check_dataset


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    path = tmp_path_factory.mktemp("source") / "text.txt"
    path.write_text("\n".join(documents[:60]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, source: Path, tokenizer_folder: Path) -> Path:
    """A small dataset for tests to copy."""
    out = tmp_path_factory.mktemp("made") / "out"
    prepare.main(command(source, tokenizer_folder, out))
    return out


def command(source: Path | str, tokenizer: Path | str, output: Path | str, *options: str) -> list[str]:
    what = ["--input", str(source), "--tokenizer", str(tokenizer), "--output", str(output)]
    return [*what, "--max_length", "32", "--shard_size", "20", *options]


def tokenizer_command(source: Path, output: Path) -> list[str]:
    return ["--input", str(source), "--model", "bpe", "--vocab_size", "300", "--output", str(output)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the user's {name}")


def defects(folder: Path) -> list[str]:
    return [defect for _, found in check_dataset(str(folder)) for defect in found]


OF_A_USER = ("_staging/notes", "bad_records/notes.txt", "report.html", "train/notes.txt", "data/train/x.txt")


@pytest.mark.parametrize(
    "name", ["_staging/notes", "tokenizer/vocab.json", "bad_records/unit-000000.jsonl", "train/a"]
)
def test_a_folder_with_files_of_a_user_is_refused_and_left_as_it_is(
    tmp_path: Path, source: Path, tokenizer_folder: Path, name: str
):
    write(tmp_path / "out", name)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=f"contains files that prepare did not write, .*{name}"):
        prepare.main(command(source, tokenizer_folder, tmp_path / "out"))
    assert content(tmp_path) == before


def test_overwrite_keeps_what_no_run_has_written(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path
):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    write(out, *OF_A_USER)
    prepare.main(command(source, tokenizer_folder, out, "--overwrite", "--seed", "1"))
    after = content(out)
    assert {name: after[name].decode() for name in OF_A_USER} == {
        name: f"the user's {name}" for name in OF_A_USER
    }
    assert manifest.read_manifest(str(out / "train"))["seed"] == 1
    names = {path.name for path in (out / "train").glob("*.tfrecord")}
    assert names == {shard["name"] for shard in manifest.read_manifest(str(out / "train"))["shards"]}


@pytest.mark.parametrize(
    "name",
    ["train/statistics.json", "train/train-00000-7.tfrecord", "tokenizer/added_tokens.json", "tokenizer"],
)
def test_overwrite_refuses_what_is_in_the_way(
    tmp_path: Path, source: Path, tokenizer_folder: Path, name: str
):
    write(tmp_path / "out", name)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=f"contains {name}, which prepare did not write"):
        prepare.main(command(source, tokenizer_folder, tmp_path / "out", "--overwrite"))
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["train/units.jsonl", "tokenizer/tokenizer.json", "train/train-00000-20.tfrecord"]
)
def test_overwrite_refuses_what_was_changed_since(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path, name: str
):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    (out / name).write_bytes((out / name).read_bytes() + b"\n")
    before = content(out)
    with pytest.raises(UsageError, match=f"contains {name}, changed since an earlier run"):
        prepare.main(command(source, tokenizer_folder, out, "--overwrite", "--seed", "1"))
    assert content(out) == before


def test_no_manifest_can_outlive_the_files_it_lists_when_the_power_fails(
    tmp_path: Path, source: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    out, synced, seen = tmp_path / "new" / "out", set(), []
    sync, put = os.fsync, filesystem.rename

    def noting_sync(file: int) -> None:
        sync(file)
        synced.add(os.fstat(file).st_ino)

    def publishing(temporary: str, path: str) -> None:
        if Path(path).name == manifest.MANIFEST:
            seen.append(path)
            parts = [path for path in out.rglob("*") if "_staging" not in path.parts]
            assert len(parts) > 8
            assert {
                str(part) for part in [*parts, out, out.parent] if part.stat().st_ino not in synced
            } == set()
        put(temporary, path)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(filesystem, "rename", publishing)
    prepare.main(command(source, tokenizer_folder, out))
    assert seen == [str(out / "train" / manifest.MANIFEST)]
    assert Path(seen[0]).stat().st_ino in synced


def test_an_input_without_documents_leaves_an_empty_folder(tmp_path: Path, tokenizer_folder: Path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="contains no documents"):
        prepare.main(command(tmp_path / "empty.txt", tokenizer_folder, tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


def test_names_that_are_not_utf_8_are_refused_before_anything_is_written(
    tmp_path: Path, source: Path, tokenizer_folder: Path, capsys
):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.txt"))
    odd.write_bytes(source.read_bytes())
    assert run("prepare", command(tmp_path / "*.txt", tokenizer_folder, tmp_path / "out")) == 2
    assert "its name is not UTF-8; rename it" in capsys.readouterr().err
    assert run("prepare", command(source, tokenizer_folder, odd.with_suffix(".out"))) == 2
    assert "is not UTF-8; rename the file or the folder" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [odd]


def test_a_split_whose_shards_would_have_names_too_long_is_refused(
    tmp_path: Path, source: Path, tokenizer_folder: Path
):
    with pytest.raises(UsageError, match="at most 100 letters"):
        prepare.main(command(source, tokenizer_folder, tmp_path / "out", "--split", "x" * 101))
    prepare.main(command(source, tokenizer_folder, tmp_path / "out", "--split", "x" * 100))
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize("damage", ["gone", "longer"])
@pytest.mark.parametrize(
    "name", ["train/train-00001-20.tfrecord", "train/units.jsonl", "tokenizer/tokenizer.json"]
)
def test_a_damaged_dataset_is_not_kept_as_a_finished_one(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path, name: str, damage: str
):
    out = Path(shutil.copytree(made, tmp_path / "out"))
    if damage == "gone":
        (out / name).unlink()
    else:
        (out / name).write_bytes((out / name).read_bytes() + b" ")
    before = content(out)
    with pytest.raises(
        DataError, match=f"contains the same dataset, but {name} is missing or changed; `verify`"
    ):
        prepare.main(command(source, tokenizer_folder, out, "--resume"))
    assert content(out) == before


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '[{"path": 1}]', '{"name": 5}', '{"name": "x"}', "3", "null"]
)
@pytest.mark.parametrize("name", ["written/x.json", "finished/x.json"])
def test_a_broken_list_of_a_runs_files_lists_nothing(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path, name: str, text: str
):
    out = Path(shutil.copytree(made, tmp_path / "out"))
    record = out / "_staging" / ("a" * 16) / name
    record.parent.mkdir(parents=True)
    record.write_text(text)
    prepare.main(command(source, tokenizer_folder, out, "--overwrite"))
    assert content(out) == content(made)


def test_a_manifest_without_the_form_of_its_version_is_not_ours(
    tmp_path: Path, source: Path, tokenizer_folder: Path
):
    out = tmp_path / "out"
    (out / "train").mkdir(parents=True)
    (out / "train" / "manifest.json").write_text('{"format": "tokenmill-dataset", "version": 1}')
    with pytest.raises(UsageError, match="which prepare did not write"):
        prepare.main(command(source, tokenizer_folder, out, "--overwrite"))
    with pytest.raises(DataError, match=r"splits? is missing"):
        inspection.main([str(out)])


@pytest.mark.parametrize("files", [["../../precious.txt"], "tokenizer.json", [1], None])
def test_a_tokenizers_record_can_name_no_file_of_another_folder(tmp_path: Path, source: Path, files: object):
    out, precious = tmp_path / "a" / "tokenizer", tmp_path / "precious.txt"
    write(tmp_path, "precious.txt", "a/tokenizer/tokenizer.json")
    record = {"format": "tokenmill-tokenizer", "fingerprint": "0" * 64, "files": files}
    (out / "tokenmill.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="contains files that train-tokenizer did not write"):
        train_tokenizer.main([*tokenizer_command(source, out), "--overwrite"])
    assert precious.exists()


def test_a_dataset_of_version_1_is_overwritten(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path
):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    path = out / "train" / "manifest.json"
    old = {**json.loads(path.read_bytes()), "version": 1}
    old["config"]["splits"] = dict(old["config"]["splits"])
    for key in ("files", "checksum", "versions", "bytes_version"):
        del old[key]
    del old["tokenizer"]["files"]
    path.write_bytes(manifest.to_bytes(old))
    report = out / "report.html"
    report.write_bytes(b"".join(report.read_bytes().splitlines(keepends=True)[:-1]))  # had no last line then
    prepare.main(command(source, tokenizer_folder, out, "--overwrite"))
    assert content(out) == content(made)


@pytest.mark.parametrize("inside", ["tokenizer", "my-tokenizer", "link"])
def test_a_tokenizer_inside_the_output_is_refused(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path, inside: str
):
    out = tmp_path / "out"
    shutil.copytree(made, out)
    given = out / inside
    if inside == "link":
        (tmp_path / "elsewhere").symlink_to(out / "tokenizer")
        given = tmp_path / "elsewhere"
    elif inside != "tokenizer":
        shutil.copytree(tokenizer_folder, given)
    before = content(tmp_path)
    for options in ([], ["--overwrite"], ["--resume"]):
        with pytest.raises(UsageError, match="a run must not write where it reads; copy the tokenizer"):
            prepare.main(command(source, given, out, *options))
    assert content(tmp_path) == before


@pytest.mark.parametrize("by", ["name", "link to the folder", "link to the file", "linked split"])
def test_an_input_inside_the_output_is_refused(tmp_path: Path, source: Path, tokenizer_folder: Path, by: str):
    out = tmp_path / "out"
    given = out / "deep" / "text.txt"
    given.parent.mkdir(parents=True)
    shutil.copy(source, given)
    if by == "link to the folder":
        (tmp_path / "corpus").symlink_to(out / "deep")
        given = tmp_path / "corpus" / "*.txt"
    elif by == "link to the file":
        (tmp_path / "link.txt").symlink_to(given)
        given = tmp_path / "link.txt"
    elif by == "linked split":
        (out / "deep").rename(tmp_path / "corpus")
        (out / "train").symlink_to(tmp_path / "corpus")
        given = tmp_path / "corpus" / "text.txt"
    before = content(tmp_path)
    with pytest.raises(UsageError, match=r"contains the input file .*(text|link)\.txt"):
        prepare.main(command(given, tokenizer_folder, out, "--overwrite"))
    assert content(tmp_path) == before


def test_an_output_beside_its_input_and_in_its_tokenizers_folder(
    tmp_path: Path, source: Path, tokenizer_folder: Path
):
    folder = tmp_path / "all"
    shutil.copytree(tokenizer_folder, folder)
    shutil.copy(source, folder)
    prepare.main(command(folder / "*.txt", folder, folder / "out"))
    assert defects(folder / "out") == []


def test_a_tokenizers_run_leaves_a_users_partial_folder_alone(tmp_path: Path, source: Path):
    write(tmp_path / "tok.partial", "mine", "new/mine", "old/mine")
    before = content(tmp_path)
    what = tokenizer_command(source, tmp_path / "tok")
    train_tokenizer.main(what)
    assert {name: data for name, data in content(tmp_path).items() if not name.startswith("tok/")} == before
    assert (tmp_path / "tok" / "tokenizer.json").exists()


def test_a_tokenizer_that_was_moved_away_for_a_new_one_comes_back(tmp_path: Path, source: Path):
    what = tokenizer_command(source, tmp_path / "tok")
    train_tokenizer.main(what)
    made = content(tmp_path / "tok")
    (tmp_path / "tok.partial" / ("0" * 16)).mkdir(parents=True)
    (tmp_path / "tok").rename(
        tmp_path / "tok.partial" / ("0" * 16) / "old"
    )  # as a run that was killed leaves it
    train_tokenizer.main([*what, "--resume"])
    assert content(tmp_path) == {f"tok/{name}": data for name, data in made.items()}


STRANGE = "da?a [v1] *{x}"


def test_characters_of_patterns_in_paths_mean_themselves(
    tmp_path: Path, made: Path, source: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture
):
    for neighbour in ("data v x", "data v1", "daxa [v1] yx"):
        shutil.copytree(made, tmp_path / neighbour)
    shutil.copytree(tokenizer_folder, tmp_path / "tok[en]*")
    shutil.copytree(tokenizer_folder, tmp_path / "toke")
    (tmp_path / "toke" / "special_tokens_map.json").write_text("broken")
    before = content(tmp_path)
    out = tmp_path / STRANGE
    prepare.main(command(source, tmp_path / "tok[en]*", out, "--on_bad_record", "skip"))
    assert defects(out) == []
    assert content(out).keys() == content(made).keys()
    inspection.main([str(out), "--record", "train:0:3"])
    assert "text.txt" in capsys.readouterr().out
    with pytest.raises(UsageError, match="contains the same dataset"):
        prepare.main(command(source, tmp_path / "tok[en]*", out, "--on_bad_record", "skip"))
    prepare.main(command(source, tmp_path / "tok[en]*", out, "--overwrite", "--seed", "1"))
    assert defects(out) == []
    train_tokenizer.main(
        ["--input", str(source), "--model", "bpe", "--vocab_size", "300", "--output", str(tmp_path / "t[1]")]
    )
    after = content(tmp_path)
    assert {
        name: data for name, data in after.items() if name.split("/")[0] not in (STRANGE, "t[1]")
    } == before


def test_the_records_of_a_failed_run_are_enough_to_delete_it(
    tmp_path: Path, source: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run that fails after writing shards leaves them. The next run deletes exactly these, by their records."""
    out = tmp_path / "out"

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("stopped before the manifests")

    with monkeypatch.context() as patched:
        patched.setattr("beam_pipeline.steps.write.commit", fail)
        with pytest.raises(RuntimeError, match="stopped before"):
            prepare.main(command(source, tokenizer_folder, out))
    write(out, "train/notes.txt")
    with pytest.raises(UsageError, match="another run's dataset"):
        prepare.main(command(source, tokenizer_folder, out, "--seed", "1"))
    prepare.main(command(source, tokenizer_folder, out, "--seed", "1", "--overwrite"))
    assert (out / "train" / "notes.txt").read_text() == "the user's train/notes.txt"
    assert defects(out) == []


@pytest.mark.parametrize("splits", ["train=1,validation=1e-10", "a=0.5,b=0.5,c=1e-10"])
def test_a_split_for_which_nothing_is_left(tmp_path: Path, source: Path, tokenizer_folder: Path, splits: str):
    with pytest.raises(UsageError, match="leave nothing for"):
        prepare.main(command(source, tokenizer_folder, tmp_path / "out", "--splits", splits))


def test_bad_records_of_a_failed_run_are_not_in_the_way_of_the_next(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    source, out = tmp_path / "some.jsonl", tmp_path / "out"
    source.write_text('{"text": "a"}\n{"text": 3}\n')
    arguments = command(source, tokenizer_folder, out, "--on_bad_record", "skip", "--max_bad_ratio", "1")

    def write_and_fail(*args):
        write_bad_records(*args)
        raise OSError(errno.ENOSPC, "No space left on device", "unit")

    with monkeypatch.context() as patched:
        patched.setattr(tokenize, "write_bad_records", write_and_fail)
        with pytest.raises(DataError, match="No space left"):
            prepare.main(arguments)
    assert list(content(out)) == ["bad_records/unit-000000.jsonl"]
    prepare.main(arguments)
    assert defects(out) == []
