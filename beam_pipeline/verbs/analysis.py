"""The verb `analyze`: runs tensorflow-transform on a dataset's statistics and saves each split's `transform_fn/`.

It analyzes aggregates (the count of each token, histograms of document lengths), not rows. It therefore takes seconds
whatever the dataset's size, and runs in the launcher whichever runner made the dataset. Only this module imports
TensorFlow, and only while it analyzes.

`transform_fn/` computes, from features of a document or a record, their position within the whole split:

    input_ids        → input_ids_rank: each id's rank by frequency. `assets/token_ids` lists all ids by frequency, and
                       `assets/token_counts` also has their counts.
    document_tokens, → …_percentile: the percentage of documents that are shorter (0 to 99);
    document_bytes     …_quantiles: the 99 percentiles of the lengths; …_mean: the mean length
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beam_pipeline.dataset import lock
from beam_pipeline.dataset.own_files import SAVED_MODEL_RECORD, own_saved_model
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.dataset_options import AnalyzeConfig
from beam_pipeline.support import extras, filesystem
from beam_pipeline.support.console import print_document
from beam_pipeline.support.lean_beam import import_beam
from beam_pipeline.views.reading import FinishedSplit, open_dataset
from tokenmill_reader.format.manifest import describe_file
from tokenmill_reader.format.names import TRANSFORM_FN

_LENGTHS = ("document_tokens", "document_bytes")
_BUCKETS = 100
_IDS_PER_INSTANCE = 4096
_POINTS_PER_BIN = 16


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        UsageError: If tensorflow-transform is not installed.
        DataError: If the folder is not a finished dataset.
    """
    config, _ = parse(AnalyzeConfig, argv)
    extras.require("analyze")
    dataset = filesystem.absolute(config.dataset)
    with lock.hold_dataset(dataset, verb="analyze"):
        analyzed = {}
        for name, lengths in analyze(dataset):
            analyzed[name] = lengths
            if not config.console.json:
                print(describe_lengths(name, lengths), flush=True)
    if config.console.json:
        print_document({"dataset": dataset, "splits": analyzed})


Lengths = dict[str, dict[str, float]]
"""`document_tokens` and `document_bytes` → `mean` and `median` of a split; empty if it has no documents."""


def analyze(dataset: str) -> Iterator[tuple[str, Lengths]]:
    """Analyzes every split of a dataset, or the one split in the folder.

    Yields:
        The name of each split when it is done, and the lengths of its documents.

    Raises:
        DataError: If the folder is not a finished dataset.
    """
    for split in open_dataset(dataset):
        yield split.name, _analyze_split(split)


def describe_lengths(name: str, lengths: Lengths) -> str:
    """Describes a split that is analyzed in one line."""
    if not lengths:
        return f"{name}: contains no documents: nothing to analyze"
    medians = ", ".join(
        f"{length['median']:,.0f} {unit.rpartition('_')[2]} (mean {length['mean']:,.1f})"
        for unit, length in lengths.items()
    )
    return f"{name}: {TRANSFORM_FN} written; the median document has {medians}"


def _analyze_split(split: FinishedSplit) -> Lengths:
    if not split.manifest["totals"]["documents"]:
        return {}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import_beam()
    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from tensorflow_transform.tf_metadata import dataset_metadata, schema_utils

    from beam_pipeline.runners import beam_options
    from beam_pipeline.runners.run import run

    names = ("input_ids", "input_ids_count")
    columns = [name for length in _LENGTHS for name in (length, f"{length}_count", f"{length}_sum")]
    spec = {
        name: tf.io.RaggedFeature(
            tf.float32 if name in columns and name.endswith("_count") else tf.int64, row_splits_dtype=tf.int64
        )
        for name in (*names, *columns)
    }
    metadata = dataset_metadata.DatasetMetadata(schema_utils.schema_from_feature_spec(spec))
    instances = list(_instances(split.statistics(), spec))
    with tempfile.TemporaryDirectory() as folder:

        def build(pipeline: beam.Pipeline) -> None:
            with tft_beam.Context(temp_dir=str(Path(folder, "temp"))):
                dataset = (pipeline | "Aggregates" >> beam.Create(instances), metadata)
                analyzed = dataset | "Analyze" >> tft_beam.AnalyzeDataset(_preprocessing_fn(tf, tft))
                _ = analyzed | "Write" >> tft_beam.WriteTransformFn(str(Path(folder, "out")))

        run(build, beam_options.parse([]))
        lengths = _look_up_lengths(tf, tft, str(Path(folder, "out")))
        _publish(Path(folder, "out", TRANSFORM_FN), split.folder)
    return lengths


def _instances(statistics: Mapping[str, Any], features: Sequence[str]) -> Iterator[dict[str, list]]:
    """Yields the aggregates as instances for tensorflow-transform. In each, features without values are empty."""
    empty: dict[str, list] = {name: [] for name in features}
    counts = np.array(statistics["token_counts"], np.int64)
    ids = np.flatnonzero(counts)
    for start in range(0, len(ids), _IDS_PER_INSTANCE):
        batch = ids[start : start + _IDS_PER_INSTANCE]
        yield {**empty, "input_ids": batch.tolist(), "input_ids_count": counts[batch].tolist()}
    for name in _LENGTHS:
        values, weights = _histogram_points(statistics[name])
        total = statistics["tokens" if name == "document_tokens" else "bytes"]
        # The sum of the lengths is exact; a sum over the histogram's points would not be.
        yield {**empty, name: values, f"{name}_count": weights, f"{name}_sum": [total]}


def _histogram_points(histogram: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Approximates a histogram by weighted points: spreads the documents of each bin evenly over it.

    Returns:
        Lengths, and the number of documents for each.
    """
    values: list[int] = []
    weights: list[float] = []
    for count, low, high in zip(
        histogram["counts"], histogram["edges"], histogram["edges"][1:], strict=False
    ):
        if count:
            points = np.unique(np.linspace(low, high - 1, _POINTS_PER_BIN).astype(np.int64))
            values += np.minimum(points, histogram["max"]).tolist()
            weights += [count / len(points)] * len(points)
    return values, weights


def _preprocessing_fn(tf: Any, tft: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns the function from which tensorflow-transform derives its analysis and `transform_fn`."""

    def preprocessing_fn(inputs: Mapping[str, Any]) -> dict[str, Any]:
        ids, counts = inputs["input_ids"], inputs["input_ids_count"]
        vocabulary = tft.vocabulary(ids.flat_values, weights=counts.flat_values, vocab_filename="token_ids")
        tft.vocabulary(
            ids.flat_values, weights=counts.flat_values, vocab_filename="token_counts", store_frequency=True
        )
        outputs = {"input_ids_rank": tft.apply_vocabulary(ids, vocabulary)}
        for name in _LENGTHS:
            lengths, weights = inputs[name], inputs[f"{name}_count"].flat_values
            boundaries = tft.quantiles(lengths.flat_values, _BUCKETS, epsilon=0.001, weights=weights)
            documents = tf.cast(tft.sum(weights), tf.float64)
            mean = tf.cast(tft.sum(inputs[f"{name}_sum"].flat_values), tf.float64) / documents
            outputs[f"{name}_percentile"] = tft.apply_buckets(lengths, boundaries)
            rows = lengths.nrows()
            outputs[f"{name}_quantiles"] = tf.repeat(boundaries, rows, axis=0)
            outputs[f"{name}_mean"] = tf.repeat(tf.cast(mean, tf.float32)[tf.newaxis], rows)
        return outputs

    return preprocessing_fn


def _look_up_lengths(tf: Any, tft: Any, folder: str) -> Lengths:
    """Returns the lengths from the saved function. This also proves that it can be loaded."""
    lengths = {name: tf.ragged.constant([[1]], tf.int64) for name in _LENGTHS}
    outputs = tft.TFTransformOutput(folder).transform_raw_features(lengths)
    return {
        name: {
            "mean": float(outputs[f"{name}_mean"][0]),
            "median": float(outputs[f"{name}_quantiles"][0][_BUCKETS // 2 - 1]),
        }
        for name in _LENGTHS
    }


def _publish(saved_model: Path, split_folder: str) -> None:
    """Copies the saved function into the split's folder. An interrupted copy cannot be mistaken for a model.

    Raises:
        DataError: If the target contains files that this program did not write.
    """
    target = filesystem.join(split_folder, TRANSFORM_FN)
    old_files = own_saved_model(target)
    files = sorted(
        filter(Path.is_file, saved_model.rglob("*")), key=lambda path: path.name == "saved_model.pb"
    )
    record = [describe_file(file.relative_to(saved_model).as_posix(), file.read_bytes()) for file in files]
    (saved_model / SAVED_MODEL_RECORD).write_text(json.dumps(record))
    if filesystem.is_local(split_folder):
        temporary = Path(f"{target}.{uuid.uuid4().hex}")
        try:
            temporary.mkdir()
            shutil.copy(saved_model / SAVED_MODEL_RECORD, temporary)
            shutil.copytree(saved_model, temporary, dirs_exist_ok=True)
            if Path(target).exists():
                shutil.rmtree(target)
            temporary.replace(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return
    filesystem.delete(old_files)
    # saved_model.pb is written last, since without it nothing can be loaded.
    for file in [saved_model / SAVED_MODEL_RECORD, *files]:
        filesystem.write_bytes(
            filesystem.join(target, file.relative_to(saved_model).as_posix()), file.read_bytes()
        )
