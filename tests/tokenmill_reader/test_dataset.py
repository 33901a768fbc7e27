"""Opening datasets, and reading rows by their numbers."""

from __future__ import annotations

import functools
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import google_crc32c
import numpy as np
import pytest

from tests.tokenmill_reader.written import describe, random_rows, write_manifest, write_split
from tokenmill_reader import Dataset, DatasetError
from tokenmill_reader.files import ListingEntry, LocalFolder
from tokenmill_reader.fingerprints import same_rows

IDS = random_rows(95, 12)
MASK = (np.arange(12) < np.arange(95)[:, None] % 13).astype(np.int64)


@pytest.fixture(scope="module", params=["manifest", "names", "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """95 rows in ten shards: with and without a manifest, and on a file system of fsspec."""
    folder = write_split(
        tmp_path_factory.mktemp("rows") / "train",
        {"attention_mask": MASK, "input_ids": IDS},
        manifest=request.param != "names",
    )
    if request.param != "memory":
        return Dataset.open(folder, check=1)
    files = fsspec.filesystem("memory")
    files.put(str(folder), "/rows/train", recursive=True)
    return Dataset.open("memory://rows/train", check=1, cache_bytes=4000)  # of about 7,000


def test_rows_by_number(dataset: Dataset) -> None:
    assert len(dataset) == 95
    assert (dataset.max_length, dataset.features) == (12, ("attention_mask", "input_ids"))
    assert dataset[7]["input_ids"].tolist() == IDS[7].tolist()
    assert dataset[-1]["attention_mask"].tolist() == MASK[-1].tolist()
    for index in ([94, 0, 0, 50], np.arange(95)[::-1], slice(8, 33), slice(None, None, -7), slice(5, 5), []):
        rows = dataset[index]
        np.testing.assert_array_equal(rows["input_ids"], IDS[index].reshape(-1, 12))
        np.testing.assert_array_equal(rows["attention_mask"], MASK[index].reshape(-1, 12))
        assert {values.dtype for values in rows.values()} == {np.dtype(np.int32)}
    assert [row["input_ids"].tolist() for row in dataset] == IDS.tolist()
    assert dataset.locate(94) == ("train-00009-5.tfrecord", 4)
    dataset.verify()


def test_numbers_of_any_type_of_integers(tmp_path: Path) -> None:
    ids = random_rows(300, 4)
    dataset = Dataset.open(write_split(tmp_path / "train", {"input_ids": ids}))
    for kind in "bBhHiIqQ":  # 300 does not fit into bytes
        rows = np.array([5, 100], kind)
        np.testing.assert_array_equal(dataset[rows]["input_ids"], ids[[5, 100]])
        np.testing.assert_array_equal(dataset[rows[0]]["input_ids"], ids[5])
    assert dataset[np.int8(-1)]["input_ids"].tolist() == ids[-1].tolist()
    with pytest.raises(IndexError, match="no row 18446744073709551615"):
        dataset[np.uint64(2**64 - 1)]
    with pytest.raises(TypeError, match="not a whole number"):
        Dataset.open(tmp_path / "train", seed=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [95, -96, [3, 95], 10**18])
def test_rows_that_do_not_exist(dataset: Dataset, index: Any) -> None:
    with pytest.raises(IndexError, match="has 95 rows, but no row"):
        dataset[index]


@pytest.mark.parametrize("index", [1.0, "1", None, [True, False], [[1, 2]]])
def test_numbers_that_are_none(dataset: Dataset, index: Any) -> None:
    with pytest.raises(TypeError, match="by an integer"):
        dataset[index]


def test_a_relative_path_is_that_of_the_folder_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = random_rows(30, 4)
    write_split(tmp_path / "train", {"input_ids": ids})
    monkeypatch.chdir(tmp_path)
    dataset = Dataset.open("train")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(dataset[:]["input_ids"], ids)


def test_a_dataset_is_read_by_http(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    ids = random_rows(30, 4)
    write_split(tmp_path / "train", {"input_ids": ids})
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        dataset = Dataset.open(f"http://127.0.0.1:{server.server_port}/train")
        read_ids = dataset[:]["input_ids"]
        server.shutdown()
    np.testing.assert_array_equal(read_ids, ids)


def _put_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "create",
    [_put_pipe, Path.mkdir, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "folder", "endless device"],
)
@pytest.mark.parametrize("name", ["manifest.json", "train-00000-30.tfrecord"])
def test_what_is_not_a_regular_file_is_not_read(
    tmp_path: Path, name: str, create: Callable[[Path], None]
) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": random_rows(30, 4)}, shard_rows=30)
    (folder / name).unlink(missing_ok=True)
    create(folder / name)
    with pytest.raises(DatasetError, match=f"{name}: not a file"):
        Dataset.open(folder)[0]


@pytest.mark.parametrize("path", ["foo://x", "a\0b", "x" * 300, "loop"])
def test_paths_that_cannot_be_opened(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(DatasetError, match=r"cannot be opened|no such folder"):
        Dataset.open(path)


def test_a_shard_that_shrinks_or_is_replaced_is_noticed(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    dataset = Dataset.open(folder)
    before = dataset[:]["input_ids"]
    path = folder / dataset.locate(94)[0]
    data = path.read_bytes()
    copy = path.with_name("copy")
    copy.write_bytes(data)
    copy.replace(path)
    np.testing.assert_array_equal(dataset[:]["input_ids"], before)
    os.truncate(path, 10)  # reading its old pages would raise SIGBUS
    with pytest.raises(DatasetError, match=r"10 bytes, but the manifest specifies"):
        dataset[94]
    path.write_bytes(data)
    np.testing.assert_array_equal(dataset[:]["input_ids"], before)
    path.unlink()
    with pytest.raises(DatasetError, match="missing"):
        dataset[94]


def test_threads_copies_and_forks_read_the_same(dataset: Dataset) -> None:
    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 95, 40)
        return bool((dataset[rows]["input_ids"] == IDS[rows]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(60)))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset))[:]["input_ids"], IDS)
    child = os.fork()
    if not child:
        os._exit(0 if all(map(read, range(5))) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_reading_ahead_loads_the_shards_in_the_background(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    fsspec.filesystem("memory").put(str(folder), "/ahead/train", recursive=True)
    dataset = Dataset.open("memory://ahead/train")
    dataset.read_ahead(np.array([12, 33]))
    shards = dataset._shards._open
    assert sorted(shards) == [1, 3]
    assert shards[1].result(timeout=30).data.size == (folder / "train-00001-10.tfrecord").stat().st_size
    np.testing.assert_array_equal(dataset[10:40]["input_ids"], IDS[10:40])


def test_the_folder_of_all_splits(tmp_path: Path) -> None:
    write_split(tmp_path / "train", {"input_ids": IDS})
    with pytest.raises(DatasetError, match="give the folder of a split, such as OUT/train"):
        Dataset.open(tmp_path)
    with pytest.raises(DatasetError, match="no such folder"):
        Dataset.open(tmp_path / "validation")


def set_value(*path: str | int, value: Any) -> Callable[[dict], None]:
    def change(manifest: dict) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value("version", value=4), "version are 'tokenmill-dataset' and 4"),
        (set_value("format", value="other"), "install a newer release"),
        (set_value("version", value=True), "version are"),
        (set_value("shards", 1, "name", value="../../secret-00001-10.tfrecord"), "shards[1].name is"),
        (set_value("shards", 1, "name", value="train-00001-11.tfrecord"), "shards[1] is named"),
        (set_value("shards", 1, "name", value=7), "shards[1].name is 7, not text"),
        (set_value("shards", 1, "records", value=-10), "shards[1].records is -10, not"),
        (set_value("shards", 1, "bytes", value=10**30), "shards[1].bytes is 1000"),
        (set_value("shards", 1, value={}), "shards[1].name is missing"),
        (set_value("shards", value=None), "shards is None, not a list"),
        (set_value("num_records", value=96), "num_records is 96, but its shards have 95 records"),
        (set_value("split", value="../x"), "split is '../x', not text of the form"),
        (set_value("splits", value=["other"]), "split is 'train', which is not one of its splits"),
        (set_value("max_length", value=0), "max_length is 0, not a whole number"),
        (set_value("max_length", value=10**12), "max_length is 1000000000000, not"),
        (set_value("features", value=["attention_mask"]), "lacks input_ids"),
        (set_value("features", value=["input_ids", "../x"]), "features[1] is '../x', not"),
        (set_value("tokenizer", "path", value="../../../etc"), "tokenizer.path is"),
        (set_value("tokenizer", "path", value="/etc"), "tokenizer.path is"),
        (set_value("tokenizer", value=None), "tokenizer is None, not an object"),
        (set_value("fingerprint", value=None), "fingerprint is None, not text"),
        (
            set_value("output_format", value="parquet"),
            "its shards are parquet files; this reader reads TFRecords",
        ),
    ],
)
def test_a_manifest_that_lies(tmp_path: Path, change: Callable[[dict], None], message: str) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    manifest = describe(folder, sorted(folder.glob("*.tfrecord")), ["input_ids"], 12)
    change(manifest)
    write_manifest(folder, manifest)
    with pytest.raises(DatasetError, match=re.escape(message)) as error:
        Dataset.open(folder)
    assert str(folder / "manifest.json") in str(error.value)


def test_a_manifest_that_was_changed_or_cut(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"max_length": 12', '"max_length": 13'))
    with pytest.raises(DatasetError, match="it was changed after the dataset was prepared"):
        Dataset.open(folder)
    path.write_text(text[:200])
    with pytest.raises(DatasetError, match="it may be truncated"):
        Dataset.open(folder)
    path.write_text("[" * 100_000)
    with pytest.raises(DatasetError, match="broken"):
        Dataset.open(folder)


def test_another_tokenizer(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    assert Dataset.open(folder).tokenizer_path is None
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(DatasetError, match="not the tokenizer that the dataset was prepared with"):
        _ = Dataset.open(folder).tokenizer_path


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, shard_rows=1)
    dataset = Dataset.open(folder)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 40, limits[1]))
    try:
        with pytest.raises(DatasetError, match=r"shards are open, .* raise its limit \(ulimit -n\)"):
            dataset[:]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    np.testing.assert_array_equal(dataset[:]["input_ids"], IDS)


def test_names_of_the_keras_example_are_read(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, manifest=False)
    for path in folder.glob("*.tfrecord"):
        _, number, count = path.stem.split("-")
        path.rename(folder / f"wikitext-shard-{int(number)}-{count}.tfrecord")
    np.testing.assert_array_equal(Dataset.open(folder)[:]["input_ids"], IDS)


def test_a_tokenizer_of_python_code_without_a_manifest(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, manifest=False)
    assert Dataset.open(folder).tokenizer_path is None
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text("{}")
    assert Dataset.open(folder).tokenizer_path == str(tmp_path / "tokenizer")


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("is_remote", [True, False])
def test_sizes_are_compared_before_anything_is_read(tmp_path: Path, manifest: bool, is_remote: bool) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, manifest=manifest)
    path = folder / "train-00003-10.tfrecord"
    path.write_bytes(path.read_bytes()[:-1] if manifest else b"")
    message = "bytes, but the manifest specifies" if manifest else "0 bytes are too few for the 10 records"
    with pytest.raises(DatasetError, match=rf"train-00003-10.tfrecord: .*{message}"):
        Dataset.open(f"file://{folder}" if is_remote else folder, check_sizes=not is_remote)
    if not is_remote:
        Dataset.open(folder)  # asks no file for its size


class _Listing(LocalFolder):
    """A folder whose listing has checksums, as that of an object store."""

    is_local = False
    crcs: ClassVar[dict[str, int]] = {}

    def list_files(self, *, sizes: bool) -> dict[str, ListingEntry]:
        files = super().list_files(sizes=True)
        return {name: each._replace(crc32c=self.crcs.get(name)) for name, each in files.items()}


def test_checksums_of_a_listing_are_compared_before_anything_is_read(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    crcs = {path.name: google_crc32c.value(path.read_bytes()) for path in folder.glob("*.tfrecord")}
    listing = _Listing(str(folder))
    listing.crcs = crcs
    np.testing.assert_array_equal(Dataset.open(listing)[:]["input_ids"], IDS)
    listing.crcs = crcs | {"train-00003-10.tfrecord": 7}
    with pytest.raises(DatasetError, match=r"train-00003-10.tfrecord: its CRC-32C is 00000007, but"):
        Dataset.open(listing)


def test_replaced_shards_without_a_manifest_are_other_rows(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, manifest=False)
    fingerprint = Dataset.open(folder).fingerprint
    # Checkpoints have it: it must stay the same.
    assert zlib.crc32(fingerprint.encode()) == 105946620
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert same_rows(fingerprint, Dataset.open(copy).fingerprint)
    assert same_rows(fingerprint, Dataset.open(f"file://{copy}").fingerprint)
    shard = sorted(copy.glob("*.tfrecord"))[1]
    content = shard.read_bytes()
    # Another row in place of the last one, of the same size; then a shard of another size.
    for other_content in (content[:-20] + bytes(16) + content[-4:], content + bytes(1)):
        shard.write_bytes(other_content)
        assert not same_rows(fingerprint, Dataset.open(copy).fingerprint)


def test_fingerprints_of_disks_and_buckets_are_compared_as_far_as_possible() -> None:
    names, sizes = "a-0-1.tfrecord,a-1-1.tfrecord", "/sizes=0123456789abcdef"
    disk, bucket = f"{names}{sizes}/ends={'0' * 16}", f"{names}{sizes}/crc32c={'1' * 16}"
    assert same_rows(names, disk)
    assert same_rows(disk, bucket)
    assert same_rows(f"1×{names} + 2×{names}", f"1×{disk} + 2×{bucket}")
    assert not same_rows(f"1×{names} + 2×{names}", f"2×{disk} + 1×{bucket}")
    assert not same_rows(f"1×{names}", f"1×{disk} + 2×{bucket}")
    assert not same_rows(disk, disk.replace("0" * 16, "2" * 16))
    assert not same_rows(bucket, disk.replace("abcdef", "abcde0"))
    assert not same_rows("feed/train", "feed/validation")
    assert not same_rows(names, f"b{disk}")


def test_missing_and_surplus_shards(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS})
    (folder / "train-00003-10.tfrecord").unlink()
    with pytest.raises(DatasetError, match=r"train-00003-10.tfrecord: listed in .* but missing"):
        Dataset.open(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(DatasetError, match="found where shard 3 is expected"):
        Dataset.open(folder)
    (folder / "validation-00000-1.tfrecord").write_bytes(b"")
    with pytest.raises(DatasetError, match="several splits"):
        Dataset.open(folder)


@pytest.mark.parametrize("count", [9, 11, 10**9, 0])
def test_a_name_with_another_count(tmp_path: Path, count: int) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, manifest=False)
    (folder / "train-00003-10.tfrecord").rename(folder / f"train-00003-{count}.tfrecord")
    dataset = Dataset.open(folder)
    with pytest.raises(DatasetError, match=rf"train-00003-{count}.tfrecord: .*prepare the dataset again"):
        dataset[28:40] if count else dataset.verify()


def test_checksums_are_compared_on_request_and_in_a_seeded_sample(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": IDS}, shard_rows=95, manifest=False)
    path = folder / "train-00000-95.tfrecord"
    data = path.read_bytes()
    offset = data.index(IDS[40].astype(np.uint8)[0].tobytes(), 2500)
    record = None
    for offset in range(2500, 2560):  # a byte of an id that still is one
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        try:
            ids = Dataset.open(folder, check=0)[:]["input_ids"]
        except DatasetError:
            continue
        record = int(np.flatnonzero((ids != IDS).any(axis=1))[0])
        break
    assert record is not None
    message = rf"record {record}: the checksum of its data is wrong"
    for open_and_read in (
        lambda: Dataset.open(folder, check=1)[record],
        lambda: Dataset.open(folder, check=0).verify(),
    ):
        with pytest.raises(DatasetError, match=message):
            open_and_read()

    def is_noticed(seed: int) -> bool:
        try:
            Dataset.open(folder, check=0.25, seed=seed)[record]
        except DatasetError:
            return True
        return False

    outcomes = [is_noticed(seed) for seed in range(200)]
    assert 25 <= sum(outcomes) <= 75
    assert outcomes[:20] == [is_noticed(seed) for seed in range(20)]


def test_verify_finds_ids_beyond_the_vocabulary(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "train", {"input_ids": np.minimum(IDS, 5000)})
    manifest = describe(folder, sorted(folder.glob("*.tfrecord")), ["input_ids"], 12)
    manifest["tokenizer"]["vocab_size"] = 5000
    write_manifest(folder, manifest)
    with pytest.raises(DatasetError, match="has ids that the tokenizer does not have"):
        Dataset.open(folder).verify()


def test_importing_loads_numpy_and_crc32c_only() -> None:
    code = "import sys; old = set(sys.modules); import tokenmill_reader; print(*set(sys.modules) - old)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tokenmill_reader" in loaded
    assert loaded.isdisjoint(
        {"tensorflow", "fsspec", "pyarrow", "torch", "jax", "grain", "datasets", "google.protobuf"}
    )
    foreign_modules = {name for name in loaded - set(sys.stdlib_module_names) if not name.startswith("_")}
    assert foreign_modules <= {"tokenmill_reader", "numpy", "google_crc32c", "google", "mkl"}
