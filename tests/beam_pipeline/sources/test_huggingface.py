from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from beam_pipeline.options.input_options import DatasetConfig, InputConfig
from beam_pipeline.sources import arrow
from beam_pipeline.sources.plan import plan
from beam_pipeline.sources.reading import describe
from beam_pipeline.support.errors import UsageError

TRAIN = [f"train {number} é\nsecond line" for number in range(3500)]
TEST = [f"test {number}" for number in range(40)]


@pytest.fixture(scope="module", autouse=True)
def _offline() -> None:
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset as a folder of json files, as people keep them."""
    path = tmp_path_factory.mktemp("hf") / "corpus"
    path.mkdir()
    for name, texts in (("train", TRAIN), ("test", TEST)):
        lines = (json.dumps({"id": index, "text": text}) for index, text in enumerate(texts))
        (path / f"{name}.jsonl").write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, saved with save_to_disk: a folder of splits, the large one in three files."""
    path = tmp_path_factory.mktemp("saved")
    loaded = datasets.load_dataset(str(folder), cache_dir=str(path / "cache"))
    loaded.save_to_disk(path / "both", num_shards={"train": 3, "test": 1})
    loaded["train"].shuffle(seed=0).save_to_disk(path / "shuffled")
    return path


@pytest.fixture
def load(folder: Path, tmp_path_factory: pytest.TempPathFactory, read) -> Callable:
    cache = str(tmp_path_factory.getbasetemp() / "cache")

    def load_dataset(
        name: Path | str = folder, text_key: str = "text", unit_bytes: int = 1 << 20, **options: str
    ):
        config = DatasetConfig(str(name), **{"cache": cache, **options})
        return read(dataset=config, text_key=text_key, unit_bytes=unit_bytes)

    return load_dataset


@pytest.mark.parametrize("unit_bytes", [1, 20_000, 1 << 20])
def test_a_folder(load, unit_bytes: int) -> None:
    result = load(unit_bytes=unit_bytes)
    assert result.texts == TRAIN
    assert [place for _, place, _ in result.documents] == list(range(len(TRAIN)))
    assert (len(result.units) > 1) == (unit_bytes < 1 << 20)
    assert {name for name, _, _ in result.documents} == {"corpus-train.arrow"}


@pytest.mark.parametrize(
    "split",
    [
        "train",
        "test",
        "train[:10%]",
        "train[33%:66%]",
        "train[-7:]",
        "train[1500:2500]",
        "train[999:1001]",
        "test[10:20]+train[5:6]+train[2000:]",
        "test+train",
        "train[:1%](pct1_dropremainder)",
    ],
)
@pytest.mark.parametrize("unit_bytes", [5_000, 1 << 20])
def test_a_split_is_what_the_library_says(load, folder: Path, split: str, unit_bytes: int) -> None:
    expected = datasets.load_dataset(str(folder), split=split)["text"] if "(" not in split else TRAIN[:35]
    actual = load(split=split, unit_bytes=unit_bytes)
    assert sorted(actual.texts) == sorted(expected)
    for name, place, text in actual.documents:
        assert text == {"corpus-train.arrow": TRAIN, "corpus-test.arrow": TEST}[name][place]


def test_a_saved_dataset_of_several_files(load, saved: Path) -> None:
    result = load(saved / "both", unit_bytes=10_000)
    assert result.texts == TRAIN
    assert len(result.plan.files) == 3
    assert load(saved / "both", split="test+train[1000:1200]").texts == TEST + TRAIN[1000:1200]
    assert load(saved / "both" / "test", split="test[:5]").texts == TEST[:5]


def test_a_saved_selection(load, saved: Path) -> None:
    result = load(saved / "shuffled")
    assert result.texts == datasets.load_from_disk(saved / "shuffled")["text"]
    assert sorted(result.texts) == sorted(TRAIN)


def test_the_file_formats_that_the_library_reads(load, tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    datasets.Dataset.from_dict({"body": TEST, "n": range(40)}).to_csv(tmp_path / "csv" / "all.csv")
    assert load(tmp_path / "csv", text_key="body").texts == TEST


def test_a_dataset_of_the_hub_comes_from_the_local_cache(load, tmp_path: Path, monkeypatch) -> None:
    """The library defines the cache's layout. What it has prepared once works without a network."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    prepared = Path(load().plan.root)
    cached = Path(shutil.copytree(prepared, tmp_path / "acme___poems" / "large" / "0.0.0" / prepared.name))
    for split in ("train", "test"):
        (cached / f"corpus-{split}.arrow").rename(cached / f"poems-{split}.arrow")
    info = cached / "dataset_info.json"
    info.write_text(info.read_text().replace('"config_name": "default"', '"config_name": "large"'))
    assert load("acme/poems", config="large", cache=str(tmp_path)).texts == TRAIN
    with pytest.raises(
        UsageError, match=r"cannot be loaded: .*'small' Available configs in the cache: \['large'\]"
    ):
        load("acme/poems", config="small", cache=str(tmp_path))
    with pytest.raises(UsageError, match="--dataset_name acme/prose: cannot be loaded: "):
        load("acme/prose", cache=str(tmp_path))


def test_reading_begins_at_the_units_own_batch(load) -> None:
    result = load(unit_bytes=5_000)
    batches = arrow.record_batches(result.plan.files[0].path, InputConfig())
    assert len(batches) > 1
    batch_starts = {batch.batch_start for batch in batches}
    assert all(part.batch_start in batch_starts for unit in result.units for part in unit.parts)
    assert all(part.batch_start[1] == part.start for unit in result.units for part in unit.parts)


def test_null_is_a_bad_record(load, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a", None, "c"]}).save_to_disk(tmp_path / "saved")
    result = load(tmp_path / "saved")
    assert result.texts == ["a", "c"]
    assert describe(result.units[0], result.bad[0]).endswith(
        "data-00000-of-00001.arrow, row 1 (counted from 0): null instead of a text"
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"split": "validation"}, "--dataset_split validation: .*the dataset's splits are train, test"),
        ({"split": "train[:x]"}, r"--dataset_split train\[:x\]: "),
        ({"split": "train[:3]+train[2:5]"}, "selects rows 2 to 2 of train twice"),
        ({"split": "train[5:5]"}, "has no rows"),
        ({"config": "large"}, "cannot be loaded: BuilderConfig 'large' not found"),
        ({"text_key": "body"}, "has no column 'body' .* its columns are id, text"),
        ({"text_key": "id"}, "its column 'id' .* has type int64, not string; its string columns are text"),
    ],
)
def test_what_is_not_there_is_an_error_while_planning(load, options: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        load(**options)


def test_a_folder_without_data_is_an_error(load, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--dataset_name .*: cannot be loaded: "):
        load(tmp_path)
    with pytest.raises(UsageError, match=r"--dataset_name .*nothing: cannot be loaded: "):
        load(tmp_path / "nothing")


def test_data_that_the_library_cannot_prepare(load, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"this is no parquet file")
    with pytest.raises(UsageError, match=r"cannot be loaded: Parquet magic bytes not found"):
        load(tmp_path)


def test_a_saved_folder_has_no_configurations(load, saved: Path) -> None:
    with pytest.raises(UsageError, match="leave --dataset_config and --dataset_revision out"):
        load(saved / "both", config="large")


def test_workers_elsewhere_need_a_cache_they_see(folder: Path, tmp_path: Path) -> None:
    config = InputConfig(dataset=DatasetConfig(str(folder), cache=str(tmp_path)))
    with pytest.raises(UsageError, match="--dataset_cache gs://…, or export the dataset to parquet files"):
        plan(config, local_files=False)


def test_a_remote_cache(folder: Path, load, bucket: Path, read) -> None:
    remote_result = load(cache="box://datasets", split="train[1000:]", unit_bytes=10_000)
    local_result = load(split="train[1000:]", unit_bytes=10_000)
    assert remote_result.documents == local_result.documents
    assert [unit.parts for unit in remote_result.units] == [unit.parts for unit in local_result.units]
    assert remote_result.plan.root.startswith("box://datasets/")
    (copy,) = (path for path in bucket.rglob("*") if path.is_file())
    time_written = copy.stat().st_mtime_ns
    config = InputConfig(dataset=DatasetConfig(str(folder), cache="box://datasets"))
    assert plan(config, local_files=False).files == remote_result.plan.files
    assert copy.stat().st_mtime_ns == time_written, "what is there already is not copied again"
    # A truncated upload does not count as a copy.
    copy.write_bytes(b"half")
    assert load(cache="box://datasets", split="train[1000:]").texts == TRAIN[1000:]


def test_an_arrow_file_that_became_shorter_is_an_error(
    load, saved: Path, tmp_path: Path, read, monkeypatch
) -> None:
    from beam_pipeline.sources import reading as sources
    from beam_pipeline.support.errors import DataError

    path = Path(shutil.copytree(saved / "both" / "train", tmp_path / "copy"))
    open_file = sources.filesystem.open_file

    def shorten_and_open(name: str):
        with pa.ipc.open_stream(Path(name).read_bytes()) as stream:
            first = stream.read_next_batch()
        with pa.ipc.new_stream(name, first.schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pydict(first.slice(0, 5).to_pydict(), schema=first.schema))
        return open_file(name)

    monkeypatch.setattr(sources.filesystem, "open_file", shorten_and_open)
    with pytest.raises(
        DataError, match=r"\.arrow: ends at row 5, but had at least \d+ rows when it was listed"
    ):
        load(path)
