from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.verbs import analysis, prepare
from beam_pipeline.views.reading import FinishedSplit, open_dataset
from tests.beam_pipeline.runs import arguments, content, defects


@pytest.fixture(scope="module")
def analyzed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(dataset, tmp_path_factory.mktemp("analyzed") / "out"))
    analysis.main([str(folder)])
    return folder


@pytest.fixture(scope="module")
def split(analyzed: Path) -> FinishedSplit:
    return open_dataset(str(analyzed))[0]


@pytest.fixture(scope="module")
def tft_output(split: FinishedSplit):
    import tensorflow_transform as tft

    return tft.TFTransformOutput(split.folder)


def test_the_shards_are_parsed_with_the_transformed_feature_spec(split, tft_output):
    import tensorflow as tf

    paths = [split.shard_path(shard) for shard in range(len(split.manifest["shards"]))]
    records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    parsed = tf.io.parse_example(records, tft_output.transformed_feature_spec())
    assert sorted(parsed) == split.manifest["features"]
    rows = [row for shard in range(len(paths)) for row in split.rows(shard)]
    lengths = parsed["attention_mask"].numpy().sum(axis=1)
    assert lengths.tolist() == [len(row.ids) for row in rows]
    for ids, row in zip(parsed["input_ids"].numpy(), rows, strict=True):
        assert (ids[: len(row.ids)] == row.ids).all()


def test_the_vocabulary_is_weighted_by_the_token_counts(split, tft_output):
    counts = np.array(split.statistics()["token_counts"])
    assets = Path(split.folder, "transform_fn", "assets")
    ids = [int(token) for token in tft_output.vocabulary_by_name("token_ids")]
    assert sorted(ids) == np.flatnonzero(counts).tolist()
    assert (np.diff(counts[ids]) <= 0).all()
    lines = (assets / "token_counts").read_text().splitlines()
    assert [tuple(map(int, line.split())) for line in lines] == [(counts[token], token) for token in ids]


def test_a_records_ids_become_ranks_and_nothing_else_is_made_of_them(split, tft_output):
    import tensorflow as tf

    row = split.row(0, 0)
    outputs = tft_output.transform_raw_features(
        {"input_ids": tf.RaggedTensor.from_tensor(row.ids[np.newaxis])}
    )
    assert list(outputs) == ["input_ids_rank"]
    ids_by_rank = [int(token) for token in tft_output.vocabulary_by_name("token_ids")]
    assert [ids_by_rank[rank] for rank in outputs["input_ids_rank"].to_list()[0]] == row.ids.tolist()


@pytest.mark.parametrize("name", ["document_tokens", "document_bytes"])
def test_lengths_have_their_mean_and_quantiles(split, tft_output, name):
    import tensorflow as tf

    histogram = split.statistics()[name]
    lengths = [histogram["edges"][0], int(histogram["mean"]), histogram["max"] + 1]
    outputs = tft_output.transform_raw_features({name: tf.ragged.constant([lengths, []], tf.int64)})
    assert outputs[f"{name}_mean"].numpy() == pytest.approx([histogram["mean"]] * 2)
    quantiles = outputs[f"{name}_quantiles"].numpy()
    assert quantiles.shape == (2, 99) and (quantiles[0] == quantiles[1]).all()
    # Each quantile is within a bin of the one that the histogram's counts give.
    edges, counts = np.array(histogram["edges"]), np.array(histogram["counts"])
    bins = np.searchsorted(np.cumsum(counts), np.arange(1, 100) / 100 * counts.sum())
    result = np.searchsorted(edges, quantiles[0], side="right") - 1
    assert (np.abs(result - bins) <= 1).all()
    first, median, maximum = outputs[f"{name}_percentile"].to_list()[0]
    assert first == 0 < median < maximum == 99


def test_nothing_else_changes_and_it_can_be_done_again(analyzed: Path, dataset: Path):
    other_files = {name: data for name, data in content(analyzed).items() if "transform_fn" not in name}
    assert other_files == content(dataset)
    assert defects(analyzed) == []
    before = sorted(path.name for path in (analyzed / "train").iterdir())
    analysis.main([str(analyzed / "train")])
    assert sorted(path.name for path in (analyzed / "train").iterdir()) == before
    (analyzed / "train" / "transform_fn" / "mine").touch()
    with pytest.raises(DataError, match="transform_fn/mine: `analyze` did not write this file"):
        analysis.main([str(analyzed / "train")])
    (analyzed / "train" / "transform_fn" / "mine").unlink()


def test_a_failure_leaves_the_old_function_in_place(analyzed: Path, monkeypatch: pytest.MonkeyPatch):
    before = sorted(analyzed.rglob("*"))

    def fail_with_full_disk(source: Path, target: Path, **options: bool) -> None:
        (target / "assets").mkdir(parents=True)
        raise OSError("no space left")

    monkeypatch.setattr(analysis.shutil, "copytree", fail_with_full_disk)
    with pytest.raises(OSError, match="no space left"):
        analysis._publish(analyzed / "train" / "transform_fn", str(analyzed / "train"))
    assert sorted(analyzed.rglob("*")) == before


def test_prepare_adds_it_once_and_overwrite_clears_it_away(
    tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture
):
    source = tmp_path / "text.txt"
    source.write_text("".join(f"some text, number {number}\n" for number in range(30)))
    out = tmp_path / "out"
    command = arguments(source, tokenizer_folder, out, "--max_length", "16")
    model = out / "train" / "transform_fn" / "saved_model.pb"
    prepare.main([*command, "--analyze"])
    assert model.is_file() and (out / "report.html").is_file()
    assert "the median document has" in capsys.readouterr().out
    prepare.main([*command, "--resume", "--analyze"])
    assert "the median document has" not in capsys.readouterr().out
    prepare.main([*command, "--overwrite"])
    assert not model.parent.exists()


def test_preparing_without_it_imports_no_tensorflow():
    code = "import sys, beam_pipeline.verbs.prepare; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_on_object_stores_the_model_itself_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model_folder = tmp_path / "made"
    (model_folder / "assets").mkdir(parents=True)
    for name in ("saved_model.pb", "assets/token_ids", "fingerprint.pb"):
        (model_folder / name).write_text(name)
    written_urls: list[str] = []
    monkeypatch.setattr(analysis, "own_saved_model", lambda folder: [])
    monkeypatch.setattr(filesystem, "write_bytes", lambda path, data: written_urls.append(path))
    analysis._publish(model_folder, "gs://bucket/out/train")
    assert written_urls[-1] == "gs://bucket/out/train/transform_fn/saved_model.pb"
    assert "gs://bucket/out/train/transform_fn/assets/token_ids" in written_urls and len(written_urls) == 4


def test_no_dataset(tmp_path: Path):
    with pytest.raises(DataError, match="no such folder, or it is empty"):
        analysis.main([str(tmp_path)])
