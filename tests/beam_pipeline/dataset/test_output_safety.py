"""A run deletes and replaces only files that a run has written. Output paths are never interpreted as globs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from beam_pipeline.__main__ import run as main
from beam_pipeline.dataset import manifest
from beam_pipeline.dataset.bad_records import write_bad_records
from beam_pipeline.steps import tokenize
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs import inspection, prepare, train_tokenizer
from tests.beam_pipeline.runs import arguments, content, defects, fail_before_the_manifests
from tokenmill_reader.format.manifest import FORMAT, VERSION, with_checksum
from tokenmill_reader.format.names import MANIFEST


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    path = tmp_path_factory.mktemp("source") / "text.txt"
    path.write_text("\n".join(documents[:60]), encoding="utf-8")
    return path


SIZE = ["--max_length", "32", "--shard_size", "20"]


@pytest.fixture(scope="module")
def finished_output(tmp_path_factory: pytest.TempPathFactory, source: Path, tokenizer_folder: Path) -> Path:
    """A small dataset."""
    folder = tmp_path_factory.mktemp("made") / "out"
    prepare.main(arguments(source, tokenizer_folder, folder, *SIZE))
    return folder


@pytest.fixture
def out(finished_output: Path, tmp_path: Path) -> Path:
    """A copy of `finished_output`, to change."""
    return Path(shutil.copytree(finished_output, tmp_path / "out"))


@pytest.fixture
def run(tmp_path: Path, source: Path, tokenizer_folder: Path):
    """Returns a function that runs `prepare`, by default as for `finished_output` and into the folder `out`."""

    def run_prepare(
        *options: str, text_input: Path = source, tokenizer: Path = tokenizer_folder, output_name: str = "out"
    ):
        prepare.main(arguments(text_input, tokenizer, tmp_path / output_name, *SIZE, *options))

    return run_prepare


def tokenizer_command(source: Path, output: Path) -> list[str]:
    return ["--input", str(source), "--model", "bpe", "--vocab_size", "300", "--output", str(output)]


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the user's {name}")


OF_A_USER = (
    "_staging/notes",
    "bad_records/notes.txt",
    "removed/notes.txt",
    "report.html",
    "train/notes.txt",
    "data/train/x.txt",
)


@pytest.mark.parametrize(
    "name", ["_staging/notes", "tokenizer/vocab.json", "bad_records/unit-000000.jsonl", "train/a"]
)
def test_a_folder_with_files_of_a_user_is_refused_and_left_as_it_is(run, tmp_path: Path, name: str):
    write(tmp_path / "out", name)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=f"contains files that prepare did not write, .*{name}"):
        run()
    assert content(tmp_path) == before


def test_overwrite_keeps_what_no_run_has_written(run, out: Path):
    write(out, *OF_A_USER)
    run("--overwrite", "--seed", "1")
    after = content(out)
    assert {name: after[name].decode() for name in OF_A_USER} == {
        name: f"the user's {name}" for name in OF_A_USER
    }
    assert manifest.read_manifest(str(out / "train"))["seed"] == 1
    names = {path.name for path in (out / "train").glob("*.tfrecord")}
    assert names == {shard["name"] for shard in manifest.read_manifest(str(out / "train"))["shards"]}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "train/statistics.json",
            "train/train-00000-7.tfrecord",
            "tokenizer/added_tokens.json",
            "tokenizer",
            "removed/unit-000000.parquet",
        ),
        *("train/offsets", "train/transformed_metadata"),
    ],
)
def test_overwrite_refuses_what_is_in_the_way(run, tmp_path: Path, name: str):
    write(tmp_path / "out", name)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=f"contains {name}, which prepare did not write"):
        run("--overwrite")
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["train", "train/offsets", "train/transformed_metadata", "tokenizer", "_staging"]
)
def test_overwrite_writes_through_no_link_out_of_the_folder(run, tmp_path: Path, name: str):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"contains {name}, which prepare did not write"):
        run("--overwrite")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_report_is_not_written_through_a_link(out: Path, tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    (out / "report.html.tmp").symlink_to(tmp_path / "mine")
    assert main("report", [str(out)]) == 0
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (out / "report.html").is_symlink() and not (out / "report.html.tmp").exists()


@pytest.mark.parametrize(
    "name", ["train/units.jsonl", "tokenizer/tokenizer.json", "train/train-00000-20.tfrecord"]
)
def test_overwrite_refuses_what_was_changed_since(run, out: Path, name: str):
    (out / name).write_bytes((out / name).read_bytes() + b"\n")
    before = content(out)
    with pytest.raises(UsageError, match=f"contains {name}, changed since an earlier run"):
        run("--overwrite", "--seed", "1")
    assert content(out) == before


def test_no_manifest_can_outlive_the_files_it_lists_when_the_power_fails(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, synced, renamed_manifests = tmp_path / "new" / "out", set(), []
    sync, rename = os.fsync, filesystem.rename

    def noting_sync(file: int) -> None:
        sync(file)
        synced.add(os.fstat(file).st_ino)

    def publishing(temporary: str, path: str) -> None:
        if Path(path).name == MANIFEST:
            renamed_manifests.append(path)
            parts = [path for path in out.rglob("*") if "_staging" not in path.parts]
            assert len(parts) > 8
            assert {
                str(part) for part in [*parts, out, out.parent] if part.stat().st_ino not in synced
            } == set()
        rename(temporary, path)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(filesystem, "rename", publishing)
    run(output_name="new/out")
    assert renamed_manifests == [str(out / "train" / MANIFEST)]
    assert Path(renamed_manifests[0]).stat().st_ino in synced


def test_names_that_are_not_utf_8_are_refused_before_anything_is_written(
    tmp_path: Path, source: Path, tokenizer_folder: Path, capsys
):
    non_utf8_path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.txt"))
    non_utf8_path.write_bytes(source.read_bytes())
    assert main("prepare", arguments(tmp_path / "*.txt", tokenizer_folder, tmp_path / "out")) == 2
    assert "its name is not UTF-8; rename it" in capsys.readouterr().err
    assert main("prepare", arguments(source, tokenizer_folder, non_utf8_path.with_suffix(".out"))) == 2
    assert "is not UTF-8; rename the file or the folder" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [non_utf8_path]


def test_a_split_whose_shards_would_have_names_too_long_is_refused(run, tmp_path: Path):
    with pytest.raises(UsageError, match="at most 100 letters"):
        run("--split", "x" * 101)
    run("--split", "x" * 100)
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize("text", ["", "\n \n\t\n"])
def test_an_input_without_documents_makes_no_dataset(tmp_path: Path, run, text: str):
    (tmp_path / "input.txt").write_text(text)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="contains no documents"):
        run(text_input=tmp_path / "input.txt")
    assert not list(tmp_path.glob("out/*/manifest.json"))
    assert text or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("damage", ["gone", "longer"])
@pytest.mark.parametrize(
    "name", ["train/train-00001-20.tfrecord", "train/units.jsonl", "tokenizer/tokenizer.json"]
)
def test_a_damaged_dataset_is_not_kept_as_a_finished_one(run, out: Path, name: str, damage: str):
    if damage == "gone":
        (out / name).unlink()
    else:
        (out / name).write_bytes((out / name).read_bytes() + b" ")
    before = content(out)
    with pytest.raises(
        DataError, match=f"contains the same dataset, but {name} is missing or changed; `verify`"
    ):
        run("--resume")
    assert content(out) == before


def test_broken_lists_of_a_runs_files_list_nothing(run, out: Path, finished_output: Path):
    for folder in ("written", "finished"):
        (out / "_staging" / ("a" * 16) / folder).mkdir(parents=True)
        for number, text in enumerate(
            ["[" * 100_000, '[{"path": 1}]', '{"name": 5}', '{"name": "x"}', "3", "null"]
        ):
            (out / "_staging" / ("a" * 16) / folder / f"{number}.json").write_text(text)
    run("--overwrite")
    assert content(out) == content(finished_output)


def test_a_manifest_without_the_form_of_its_version_is_not_ours(run, tmp_path: Path):
    out = tmp_path / "out"
    (out / "train").mkdir(parents=True)
    (out / "train" / "manifest.json").write_bytes(with_checksum({"format": FORMAT, "version": VERSION}))
    with pytest.raises(UsageError, match="which prepare did not write"):
        run("--overwrite")
    with pytest.raises(DataError, match=r"split is missing"):
        inspection.main([str(out)])


@pytest.mark.parametrize("files", [["../../precious.txt"], "tokenizer.json", [1], None])
def test_a_tokenizers_record_can_name_no_file_of_another_folder(tmp_path: Path, source: Path, files: object):
    out, users_file = tmp_path / "a" / "tokenizer", tmp_path / "precious.txt"
    write(tmp_path, "precious.txt", "a/tokenizer/tokenizer.json")
    record = {"format": "tokenmill-tokenizer", "fingerprint": "0" * 64, "files": files}
    (out / "tokenmill.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="contains files that train-tokenizer did not write"):
        train_tokenizer.main([*tokenizer_command(source, out), "--overwrite"])
    assert users_file.exists()


@pytest.mark.parametrize("location", ["tokenizer", "my-tokenizer", "link"])
def test_a_tokenizer_inside_the_output_is_refused(
    run, out: Path, tmp_path: Path, tokenizer_folder: Path, location: str
):
    tokenizer = out / location
    if location == "link":
        (tmp_path / "elsewhere").symlink_to(out / "tokenizer")
        tokenizer = tmp_path / "elsewhere"
    elif location != "tokenizer":
        shutil.copytree(tokenizer_folder, tokenizer)
    before = content(tmp_path)
    for options in ([], ["--overwrite"], ["--resume"]):
        with pytest.raises(UsageError, match="a run must not write where it reads; copy the tokenizer"):
            run(*options, tokenizer=tokenizer)
    assert content(tmp_path) == before


@pytest.mark.parametrize("location", ["name", "link to the folder", "link to the file", "linked split"])
def test_an_input_inside_the_output_is_refused(run, tmp_path: Path, source: Path, location: str):
    out = tmp_path / "out"
    text_file = out / "deep" / "text.txt"
    text_file.parent.mkdir(parents=True)
    shutil.copy(source, text_file)
    if location == "link to the folder":
        (tmp_path / "corpus").symlink_to(out / "deep")
        text_file = tmp_path / "corpus" / "*.txt"
    elif location == "link to the file":
        (tmp_path / "link.txt").symlink_to(text_file)
        text_file = tmp_path / "link.txt"
    elif location == "linked split":
        (out / "deep").rename(tmp_path / "corpus")
        (out / "train").symlink_to(tmp_path / "corpus")
        text_file = tmp_path / "corpus" / "text.txt"
    before = content(tmp_path)
    with pytest.raises(UsageError, match=r"contains the input file .*(text|link)\.txt"):
        run("--overwrite", text_input=text_file)
    assert content(tmp_path) == before


def test_an_output_beside_its_input_and_in_its_tokenizers_folder(
    run, tmp_path: Path, source: Path, tokenizer_folder: Path
):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "all")
    shutil.copy(source, folder)
    run(text_input=folder / "*.txt", tokenizer=folder, output_name="all/out")
    assert defects(folder / "out") == []


def test_a_tokenizers_run_leaves_a_users_partial_folder_alone(tmp_path: Path, source: Path):
    write(tmp_path / "tok.partial", "mine", "new/mine", "old/mine")
    before = content(tmp_path)
    command = tokenizer_command(source, tmp_path / "tok")
    train_tokenizer.main(command)
    assert {name: data for name, data in content(tmp_path).items() if not name.startswith("tok/")} == before
    assert (tmp_path / "tok" / "tokenizer.json").exists()


def test_a_tokenizer_that_was_moved_away_for_a_new_one_comes_back(tmp_path: Path, source: Path):
    command = tokenizer_command(source, tmp_path / "tok")
    train_tokenizer.main(command)
    tokenizer_content = content(tmp_path / "tok")
    staging = tmp_path / "tok.partial" / ("0" * 16)
    staging.mkdir(parents=True)
    (tmp_path / "tok").rename(staging / "old")  # as a run that was killed leaves it
    train_tokenizer.main([*command, "--resume"])
    assert content(tmp_path) == {f"tok/{name}": data for name, data in tokenizer_content.items()}


STRANGE = "da?a [v1] *{x}"


def test_characters_of_patterns_in_paths_mean_themselves(
    run,
    tmp_path: Path,
    finished_output: Path,
    source: Path,
    tokenizer_folder: Path,
    capsys: pytest.CaptureFixture,
):
    for neighbour in ("data v x", "data v1", "daxa [v1] yx"):
        shutil.copytree(finished_output, tmp_path / neighbour)
    shutil.copytree(tokenizer_folder, tmp_path / "tok[en]*")
    shutil.copytree(tokenizer_folder, tmp_path / "toke")
    (tmp_path / "toke" / "special_tokens_map.json").write_text("broken")
    before = content(tmp_path)
    out = tmp_path / STRANGE
    places = {"tokenizer": tmp_path / "tok[en]*", "output_name": STRANGE}
    run("--on_bad_record", "skip", **places)
    assert defects(out) == []
    assert content(out).keys() == content(finished_output).keys()
    inspection.main([str(out), "--record", "train:0:3"])
    assert "text.txt" in capsys.readouterr().out
    with pytest.raises(UsageError, match="contains the same dataset"):
        run("--on_bad_record", "skip", **places)
    run("--overwrite", "--seed", "1", **places)
    assert defects(out) == []
    train_tokenizer.main(tokenizer_command(source, tmp_path / "t[1]"))
    after = content(tmp_path)
    assert {name: after[name] for name in after if name.split("/")[0] not in (STRANGE, "t[1]")} == before


def test_the_records_of_a_failed_run_are_enough_to_delete_it(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run that fails after writing shards leaves them. The next run deletes exactly these, by their records."""
    out = tmp_path / "out"
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="stopped before"):
        patched.setattr("beam_pipeline.steps.write.commit", fail_before_the_manifests)
        run()
    write(out, "train/notes.txt")
    with pytest.raises(UsageError, match="another run's dataset"):
        run("--seed", "1")
    run("--seed", "1", "--overwrite")
    assert (out / "train" / "notes.txt").read_text() == "the user's train/notes.txt"
    assert defects(out) == []


@pytest.mark.parametrize("splits", ["train=1,validation=1e-10", "a=0.5,b=0.5,c=1e-10"])
def test_a_split_for_which_nothing_is_left(run, splits: str):
    with pytest.raises(UsageError, match="leave nothing for"):
        run("--splits", splits)


def test_bad_records_of_a_failed_run_are_not_in_the_way_of_the_next(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jsonl = tmp_path / "some.jsonl"
    jsonl.write_text('{"text": "a"}\n{"text": 3}\n')

    def write_and_fail(*args):
        write_bad_records(*args)
        raise OSError(errno.ENOSPC, "No space left on device", "unit")

    options = ("--on_bad_record", "skip", "--max_bad_ratio", "1")
    with monkeypatch.context() as patched, pytest.raises(DataError, match="No space left"):
        patched.setattr(tokenize, "write_bad_records", write_and_fail)
        run(*options, text_input=jsonl)
    assert list(content(tmp_path / "out")) == ["bad_records/unit-000000.jsonl"]
    run(*options, text_input=jsonl)
    assert defects(tmp_path / "out") == []
