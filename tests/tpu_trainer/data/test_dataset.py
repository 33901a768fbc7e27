"""Opening a split, and the messages if it is incomplete."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import MAX_LENGTH, sequences, write_manifest, write_split
from tokenmill_reader import Mixture
from tpu_trainer.data.dataset import open_split, reading, token_counts
from tpu_trainer.data.mixture import describe
from tpu_trainer.data.vocabulary import Vocabulary, load_tokenizer, load_vocabulary
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def split_folder(tmp_path: Path, tokenizer_folder: Path) -> Path:
    return write_split(tmp_path / "train", sequences(90, 3), tokenizer=tokenizer_folder)


def edit_manifest(folder: Path, **changes: object) -> None:
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()) | changes)


def test_manifest_and_names_say_the_same(split_folder: Path, tokenizer_folder: Path) -> None:
    with_manifest = open_split(str(split_folder))
    (split_folder / "manifest.json").unlink()
    without_manifest = open_split(str(split_folder))
    for split in (with_manifest, without_manifest):
        assert split.counts.tolist() == [40, 40, 10]
        assert (len(split), split.max_length, split.features) == (90, MAX_LENGTH, ("input_ids",))
    assert with_manifest.names == without_manifest.names
    assert load_vocabulary(with_manifest) == load_vocabulary(
        without_manifest, tokenizer=str(tokenizer_folder)
    )


@pytest.mark.parametrize("verb", ["fit", "plan", "evaluate"])
def test_a_url_of_an_unknown_kind_is_a_message(
    verb: str, run_verb: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--config", "tiny-clm", "--data.train", "s3://bucket/train"]
    if verb == "fit":
        options += ["--output_dir", tmp_path / "run"]
    if verb == "evaluate":
        options = ["--run", "s3://bucket/run"]
    assert run_verb(verb, *options) == 2
    shown = capsys.readouterr().err
    assert "s3://bucket/" in shown and "a URL of a kind that the trainer cannot read" in shown
    assert "gs:// are possible" in shown and "Traceback" not in shown


@pytest.mark.parametrize("broken", ["exists", "isdir", "GFile"])
def test_a_dataset_that_cannot_be_reached_is_a_message(
    broken: str, split_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object) -> None:
        raise tf.errors.UnavailableError(None, None, "could not resolve host:\n\tstorage.example")

    monkeypatch.setattr(tf.io.gfile, broken, unreachable)
    with pytest.raises(
        UsageError, match=r"train.*: cannot be read \(could not resolve host: storage.example\); check"
    ):
        open_split(f"file://{split_folder}")


def test_a_shard_that_cannot_be_reached_any_more_is_a_message(
    split_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = open_split(f"file://{split_folder}")

    def unreachable(path: str) -> None:
        raise tf.errors.PermissionDeniedError(None, None, "401")

    monkeypatch.setattr(tf.io, "read_file", unreachable)
    with pytest.raises(UsageError, match=r"train-00000-40.tfrecord: cannot be read \(401\)"), reading():
        split[np.arange(3)]


def test_the_vocabulary_is_the_tokenizers(split_folder: Path, vocabulary: Vocabulary) -> None:
    assert load_vocabulary(open_split(str(split_folder))) == vocabulary
    assert vocabulary.padded_size == 128


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere: no such folder"):
        open_split(str(tmp_path / "nowhere"))


HOSTILE = ["../../x", "", "a\0b", 10**30, -1, 1.5, True, None, float("nan"), {}, {"a": 1}, [1, "a"], [[[]]]]


def test_a_hostile_value_in_any_field_is_named(split_folder: Path) -> None:
    manifest = json.loads((split_folder / "manifest.json").read_text())
    refusals = 0
    for key in manifest:
        fields = manifest[key] if isinstance(manifest[key], dict) else {None: None}
        first = manifest[key][0] if key == "shards" else {}
        for value in HOSTILE:
            cases = [value if name is None else manifest[key] | {name: value} for name in fields]
            cases += [[first | {name: value}, *manifest[key][1:]] for name in first]
            for case in cases:
                write_manifest(split_folder, manifest | {key: case})
                try:
                    split = open_split(str(split_folder))
                    load_vocabulary(split)
                    describe(Mixture([split], [1]), np.array([1]), {})
                except UsageError:
                    refusals += 1
                else:
                    assert all(Path(split_folder, name).parent == split_folder for name in split.names)
    assert refusals > 150


def test_a_shard_cut_off(split_folder: Path) -> None:
    path = split_folder / "train-00001-40.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        UsageError, match=r"train-00001-40.tfrecord: \d+ bytes, but the manifest specifies \d+"
    ):
        open_split(str(split_folder))


def test_a_shard_with_another_checksum_than_the_manifest(
    split_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a listing has checksums, as Cloud Storage's does, they are compared before anything is read."""
    manifest = json.loads((split_folder / "manifest.json").read_text())
    edit_manifest(split_folder, shards=[entry | {"crc32c": "0a1b2c3d"} for entry in manifest["shards"]])
    url = f"file://{split_folder}"
    listing = {name: replace(each, crc32c="0a1b2c3d") for name, each in files.list_files(url).items()}
    monkeypatch.setattr(files, "list_files", lambda folder: listing)
    assert len(open_split(url)) == 90
    listing["train-00001-40.tfrecord"] = replace(listing["train-00001-40.tfrecord"], crc32c="00000000")
    with pytest.raises(
        UsageError, match=r"train-00001-40.tfrecord: its CRC-32C is 00000000, but .* 0a1b2c3d"
    ):
        open_split(url)


def test_an_empty_split(split_folder: Path) -> None:
    edit_manifest(split_folder, shards=[], num_records=0)
    with pytest.raises(UsageError, match="the split has no rows"):
        open_split(str(split_folder))


def test_a_tokenizer_that_does_not_fit(split_folder: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(tmp_path / "larger")
    with pytest.raises(UsageError, match=r"larger: 51 tokens, but the manifest specifies 50"):
        load_vocabulary(open_split(str(split_folder)), tokenizer=str(tmp_path / "larger"))
    other_tokenizer = tmp_path / "changed"
    load_tokenizer(str(tokenizer_folder)).save_pretrained(other_tokenizer)
    text = (other_tokenizer / "tokenizer.json").read_text()
    (other_tokenizer / "tokenizer.json").write_text(text.replace('"w44"', '"v44"'))
    with pytest.raises(UsageError, match=r"tokenizer.json: its SHA-256 is .*, but the manifest specifies"):
        load_vocabulary(open_split(str(split_folder)), tokenizer=str(other_tokenizer))


def test_a_tokenizer_without_mask_token(tmp_path: Path, split_folder: Path, tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "no-mask")
    with pytest.raises(UsageError, match="no-mask: the tokenizer has no mask token"):
        load_vocabulary(open_split(str(split_folder)), tokenizer=str(tmp_path / "no-mask"))


def test_bare_shards_without_a_tokenizer(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", sequences(10, 3), tokenizer=None)
    with pytest.raises(UsageError, match=r"give the tokenizer.s folder with --data.tokenizer"):
        load_vocabulary(open_split(str(folder)))


def test_a_folder_that_is_no_tokenizer(tmp_path: Path, split_folder: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    with pytest.raises(UsageError, match=r"other: contains no tokenizer.json"):
        load_vocabulary(open_split(str(split_folder)), tokenizer=str(other_folder))
    (other_folder / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match=r"other.tokenizer.json: not JSON"):
        load_vocabulary(open_split(str(split_folder)), tokenizer=str(other_folder))


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", '{"token_counts": [1, 2]}', '{"token_counts": null}', "NaN", "-1", '"1"'],
)
def test_damaged_statistics_are_an_error(dataset: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    path = tmp_path / "copy" / "train" / "statistics.json"
    counts = json.loads(path.read_text())["token_counts"]
    if not content.startswith(("{", "[")):  # one of the counts
        content = json.dumps({"token_counts": ["it", *counts[1:]]}).replace('"it"', content)
    path.write_text(content)
    message = r"statistics.json: (damaged: .* remove it to train without it|not a JSON object)"
    with pytest.raises(UsageError, match=message):
        token_counts(open_split(str(tmp_path / "copy" / "train")))
