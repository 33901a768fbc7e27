"""Opening a split, and what is said where it is not whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tpu_trainer.tiny import MAX_LENGTH, sequences, write_manifest, write_split
from tpu_trainer.data.dataset import open_split, same_rows
from tpu_trainer.data.mixture import Mixture, describe
from tpu_trainer.data.vocabulary import Vocabulary, load_tokenizer, load_vocabulary
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


@pytest.fixture
def split_folder(tmp_path: Path, tokenizer_folder: Path) -> Path:
    return write_split(tmp_path / "train", sequences(90, 3), tokenizer=tokenizer_folder)


def edit_manifest(folder: Path, **changes: object) -> None:
    write_manifest(folder, json.loads((folder / "manifest.json").read_text()) | changes)


def test_manifest_and_names_say_the_same(split_folder: Path, tokenizer_folder: Path) -> None:
    whole = open_split(str(split_folder))
    (split_folder / "manifest.json").unlink()
    bare = open_split(str(split_folder), tokenizer=str(tokenizer_folder))
    assert whole.shards == bare.shards
    assert whole.counts.tolist() == [40, 40, 10]
    assert (whole.num_rows, whole.max_length, whole.features) == (90, MAX_LENGTH, {"input_ids"})
    assert (bare.num_rows, bare.max_length, bare.features) == (90, MAX_LENGTH, {"input_ids"})
    assert load_vocabulary(whole) == load_vocabulary(bare)


def test_replaced_shards_without_a_manifest_are_other_rows(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", sequences(90, 3), tokenizer=None)
    (folder / "manifest.json").unlink(missing_ok=True)
    fingerprint = open_split(str(folder)).fingerprint
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert same_rows(fingerprint, open_split(str(copy)).fingerprint)
    shard = sorted(copy.glob("*.tfrecord"))[1]
    content = shard.read_bytes()
    # Another row in place of the last one, of the same size; then a shard of another size.
    for changed in (content[:-40] + bytes(36) + content[-4:], content + bytes(1)):
        shard.write_bytes(changed)
        assert not same_rows(fingerprint, open_split(str(copy)).fingerprint)


def test_fingerprints_of_earlier_releases_and_of_buckets_are_compared_as_far_as_possible() -> None:
    names, sizes = "a-0-1.tfrecord,a-1-1.tfrecord", "/sizes=0123456789abcdef"
    local, bucket = f"{names}{sizes}/ends={'0' * 16}", f"{names}{sizes}/crc32c={'1' * 16}"
    assert same_rows(names, local)
    assert same_rows(local, bucket)
    assert same_rows(f"1×{names} + 2×{names}", f"1×{local} + 2×{bucket}")
    assert not same_rows(f"1×{names} + 2×{names}", f"2×{local} + 1×{bucket}")
    assert not same_rows(f"1×{names}", f"1×{local} + 2×{bucket}")
    assert not same_rows(local, local.replace("0" * 16, "2" * 16))
    assert not same_rows(bucket, local.replace("abcdef", "abcde0"))
    assert not same_rows("feed/train", "feed/validation")
    assert not same_rows(names, f"b{local}")


def test_names_of_the_keras_example_are_read(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", sequences(30, 3), tokenizer=None, shard_rows=10)
    for number in range(3):
        (folder / f"train-{number:05d}-10.tfrecord").rename(folder / f"wikitext-shard-{number}-10.tfrecord")
    assert open_split(str(folder)).counts.tolist() == [10, 10, 10]


def test_the_vocabulary_is_the_tokenizers(split_folder: Path, vocabulary: Vocabulary) -> None:
    assert load_vocabulary(open_split(str(split_folder))) == vocabulary
    assert vocabulary.padded_size == 128


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere: no such folder"):
        open_split(str(tmp_path / "nowhere"))


def test_the_folder_above_the_splits(dataset: Path) -> None:
    with pytest.raises(UsageError, match=r"neither manifest.json nor files named .* such as OUT/train"):
        open_split(str(dataset))


def test_another_format(split_folder: Path) -> None:
    edit_manifest(split_folder, version=4)
    with pytest.raises(UsageError, match=r"manifest.json: format and version are 'tokenmill-dataset' and 4"):
        open_split(str(split_folder))


def test_shards_that_are_not_tfrecords(split_folder: Path) -> None:
    edit_manifest(split_folder, output_format="parquet")
    with pytest.raises(UsageError, match=r"its shards are parquet files; this trainer reads TFRecords"):
        open_split(str(split_folder))


@pytest.mark.parametrize(
    "old, new", [(b'"num_records": 90', b'"num_records": 91'), (b"checksum", b"chucksum")]
)
def test_a_changed_manifest_is_refused(split_folder: Path, old: bytes, new: bytes) -> None:
    data = (split_folder / "manifest.json").read_bytes()
    assert old in data
    (split_folder / "manifest.json").write_bytes(data.replace(old, new))
    with pytest.raises(UsageError, match=r"manifest.json: its checksum is .* it was changed"):
        open_split(str(split_folder))


def test_a_manifest_cut_off(split_folder: Path) -> None:
    for cut in (b'{"format": "tokenm', b'{"format": "\xff"}'):
        (split_folder / "manifest.json").write_bytes(cut)
        with pytest.raises(UsageError, match=r"manifest.json: invalid JSON"):
            open_split(str(split_folder))


HOSTILE = ["../../x", "", "a\0b", 10**30, -1, 1.5, True, None, float("nan"), {}, {"a": 1}, [1, "a"], [[[]]]]


def test_a_hostile_value_in_any_field_is_named(split_folder: Path) -> None:
    whole = json.loads((split_folder / "manifest.json").read_text())
    refused = 0
    for key in whole:
        inner = whole[key] if isinstance(whole[key], dict) else {None: None}
        first = whole[key][0] if key == "shards" else {}
        for value in HOSTILE:
            cases = [value if name is None else whole[key] | {name: value} for name in inner]
            cases += [[first | {name: value}, *whole[key][1:]] for name in first]
            for case in cases:
                write_manifest(split_folder, whole | {key: case})
                try:
                    split = open_split(str(split_folder))
                    load_vocabulary(split)
                    describe(Mixture(splits=(split,), shares=(1,)), None)
                except UsageError:
                    refused += 1
                else:
                    assert all(Path(shard.path).parent == split_folder for shard in split.shards)
    assert refused > 150


def test_a_missing_shard(split_folder: Path) -> None:
    (split_folder / "train-00001-40.tfrecord").unlink()
    with pytest.raises(UsageError, match=r"train-00001-40.tfrecord: listed in .* but missing"):
        open_split(str(split_folder))
    (split_folder / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"a shard is missing or duplicated"):
        open_split(str(split_folder))


def test_a_shard_cut_off(split_folder: Path) -> None:
    path = split_folder / "train-00001-40.tfrecord"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"train-00001-40.tfrecord: \d+ bytes, but .* specifies \d+"):
        open_split(str(split_folder))


def test_a_shard_with_another_checksum_than_the_manifest(
    split_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a listing has checksums, as Cloud Storage's has, they are compared before anything is read."""
    manifest = json.loads((split_folder / "manifest.json").read_text())
    edit_manifest(split_folder, shards=[entry | {"crc32c": "0a1b2c3d"} for entry in manifest["shards"]])
    listed = {
        name: replace(each, crc32c="0a1b2c3d") for name, each in files.list_files(str(split_folder)).items()
    }
    monkeypatch.setattr(files, "list_files", lambda folder: listed)
    assert open_split(str(split_folder)).num_rows == 90
    listed["train-00001-40.tfrecord"] = replace(listed["train-00001-40.tfrecord"], crc32c="00000000")
    with pytest.raises(
        UsageError, match=r"train-00001-40.tfrecord: its CRC-32C is 00000000, but .* 0a1b2c3d"
    ):
        open_split(str(split_folder))


def test_an_empty_bare_shard(split_folder: Path) -> None:
    (split_folder / "manifest.json").unlink()
    (split_folder / "train-00001-40.tfrecord").write_bytes(b"")
    with pytest.raises(UsageError, match=r"train-00001-40.tfrecord: empty, but its name specifies 40 rows"):
        open_split(str(split_folder))


def test_an_empty_split(split_folder: Path) -> None:
    edit_manifest(split_folder, shards=[])
    with pytest.raises(UsageError, match="the split has no rows"):
        open_split(str(split_folder))


def test_two_splits_in_one_folder(split_folder: Path) -> None:
    (split_folder / "manifest.json").unlink()
    (split_folder / "test-00003-5.tfrecord").touch()
    with pytest.raises(UsageError, match=r"shards of several splits \(test, train\)"):
        open_split(str(split_folder))


def test_a_tokenizer_that_does_not_fit(split_folder: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(tmp_path / "larger")
    with pytest.raises(UsageError, match=r"larger: 51 tokens, but the manifest specifies 50"):
        load_vocabulary(open_split(str(split_folder), tokenizer=str(tmp_path / "larger")))
    changed = tmp_path / "changed"
    load_tokenizer(str(tokenizer_folder)).save_pretrained(changed)
    text = (changed / "tokenizer.json").read_text()
    (changed / "tokenizer.json").write_text(text.replace('"w44"', '"v44"'))
    with pytest.raises(UsageError, match=r"tokenizer.json: its SHA-256 is .*, but the manifest specifies"):
        load_vocabulary(open_split(str(split_folder), tokenizer=str(changed)))


def test_a_tokenizer_without_mask_token(tmp_path: Path, split_folder: Path, tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "no-mask")
    with pytest.raises(UsageError, match="no-mask: the tokenizer has no mask token"):
        load_vocabulary(open_split(str(split_folder), tokenizer=str(tmp_path / "no-mask")))


def test_bare_shards_without_a_tokenizer(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", sequences(10, 3), tokenizer=None)
    with pytest.raises(UsageError, match=r"give the tokenizer.s folder with --data.tokenizer"):
        load_vocabulary(open_split(str(folder)))


def test_a_folder_that_is_no_tokenizer(tmp_path: Path, split_folder: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UsageError, match=r"other: contains neither tokenizer.json nor tokenizer_config.json"):
        load_vocabulary(open_split(str(split_folder), tokenizer=str(other)))
    (other / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match="other: AutoTokenizer cannot load it"):
        load_vocabulary(open_split(str(split_folder), tokenizer=str(other)))


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", '{"token_counts": [1, 2]}', '{"token_counts": null}', "NaN", "-1", '"1"', "bigram"],
)
def test_damaged_statistics_are_an_error(dataset: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    path = tmp_path / "copy" / "train" / "statistics.json"
    counts = json.loads(path.read_text())["token_counts"]
    if content == "bigram":
        content = json.dumps({"token_counts": counts, "bigram_entropy": "x"})
    elif not content.startswith(("{", "[")):  # one of the counts
        content = json.dumps({"token_counts": ["it", *counts[1:]]}).replace('"it"', content)
    path.write_text(content)
    message = r"statistics.json: (damaged: .* remove it to train without it|not a JSON object)"
    with pytest.raises(UsageError, match=message):
        open_split(str(tmp_path / "copy" / "train")).statistics()
