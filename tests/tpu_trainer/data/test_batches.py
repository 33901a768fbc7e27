"""The input pipelines, against the rows that were written."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import MAX_LENGTH, sequences, write_split
from tpu_trainer.data.batches import RowStream, evaluation_batches, evaluation_steps
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import MixedOrder, Mixture, open_mixture
from tpu_trainer.data.order import Order
from tpu_trainer.data.vocabulary import Vocabulary


def context(host: int = 0, hosts: int = 1, replicas: int = 1) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(
        num_input_pipelines=hosts, input_pipeline_id=host, num_replicas_in_sync=replicas
    )


def mixture(*folders: Path) -> Mixture:
    return open_mixture({str(folder): None for folder in folders})


def take(dataset: tf.data.Dataset, batches: int) -> list[dict[str, np.ndarray]]:
    return list(itertools.islice(dataset.as_numpy_iterator(), batches))


def test_batches_hold_the_rows_that_their_numbers_name(dataset: Path) -> None:
    data = mixture(dataset / "train")
    written = sequences(300, 1)
    batches = RowStream(data=data, batch_size=32, seed=0, window_shards=2).batches(0)(context())
    assert {name: spec.shape.as_list() for name, spec in batches.element_spec.items()} == {
        "input_ids": [32, MAX_LENGTH],
        "attention_mask": [32, MAX_LENGTH],
        "row": [32],
    }
    assert {spec.dtype for spec in batches.element_spec.values()} == {tf.int32}
    for batch in take(batches, 20):
        real = batch["attention_mask"] > 0
        np.testing.assert_array_equal(batch["input_ids"][real], written[batch["row"]][real])
        assert (batch["input_ids"][~real] == 1).all()


def test_the_stream_follows_the_order_over_epochs_and_resumes_by_step(dataset: Path) -> None:
    data = mixture(dataset / "train")
    split = data.splits[0]
    order = Order(counts=split.counts, seed=9, window_shards=3)
    expected = list(
        itertools.islice(itertools.chain.from_iterable(w.row_ids.tolist() for w in order.windows()), 1280)
    )
    for start in (0, 7, 13):
        batches = RowStream(data=data, batch_size=64, seed=9, window_shards=3).batches(start)(context())
        rows = np.concatenate([batch["row"] for batch in take(batches, 20 - start)])
        assert rows.tolist() == expected[start * 64 :]


def test_each_host_reads_only_its_own_shards(dataset: Path) -> None:
    data = mixture(dataset / "train")
    seen = []
    for host in range(2):
        order = Order(counts=data.splits[0].counts, seed=0, window_shards=2, host=host, hosts=2)
        batches = RowStream(data=data, batch_size=10, seed=0, window_shards=2, hosts=2).batches(0)(
            context(host, hosts=2, replicas=2)
        )
        rows = np.concatenate([batch["row"] for batch in take(batches, 30)])
        assert set(rows // 40) == set(order.shards(0).tolist())
        seen += rows.tolist()
    assert sorted(seen) == list(range(300))


@pytest.mark.parametrize(
    ("batch_size", "hosts", "replicas"), [(32, 1, 1), (67, 1, 1), (100, 1, 1), (8, 2, 4)]
)
def test_evaluation_reads_every_row_once_and_fills_up(
    dataset: Path, vocabulary: Vocabulary, batch_size: int, hosts: int, replicas: int
) -> None:
    split = open_split(str(dataset / "validation"))
    per_host = [
        take(
            evaluation_batches(split, batch_size=batch_size, vocabulary=vocabulary)(
                context(host, hosts, replicas)
            ),
            evaluation_steps(split, batch_size=batch_size, hosts=hosts) * replicas // hosts,
        )
        for host in range(hosts)
    ]
    # All replicas take part in every step, so all must have as many batches.
    assert len({len(batches) for batches in per_host}) == 1
    assert len(per_host[0]) % (replicas // hosts) == 0
    rows = np.concatenate([batch["row"] for batches in per_host for batch in batches])
    assert sorted(rows[rows >= 0].tolist()) == list(range(67))
    for batch in itertools.chain.from_iterable(per_host):
        assert batch["input_ids"].shape == (batch_size // replicas, MAX_LENGTH)
        assert (batch["attention_mask"][batch["row"] < 0] == 0).all()


def test_rows_without_attention_mask_and_with_position_ids(tmp_path: Path, vocabulary: Vocabulary) -> None:
    rows = sequences(10, 4)
    positions = np.tile(np.arange(MAX_LENGTH) % 5, (10, 1))
    write_split(tmp_path / "train", rows, tokenizer=None, position_ids=positions)
    split = open_split(str(tmp_path / "train"))
    assert (split.max_length, split.features) == (MAX_LENGTH, {"input_ids", "position_ids"})
    assert evaluation_steps(split, batch_size=10, hosts=1) == 1
    batch, filler = take(evaluation_batches(split, batch_size=10, vocabulary=vocabulary)(context()), 2)
    assert (filler["row"] == -1).all()
    assert set(batch) == {"input_ids", "position_ids", "row"}
    np.testing.assert_array_equal(batch["input_ids"], rows)
    np.testing.assert_array_equal(batch["position_ids"], positions)


@pytest.mark.parametrize("promised", [9, 11])
def test_a_shard_with_another_count_than_its_name(tmp_path: Path, promised: int) -> None:
    folder = write_split(tmp_path / "train", sequences(10, 4), tokenizer=None)
    (folder / "train-00000-10.tfrecord").rename(folder / f"train-00000-{promised}.tfrecord")
    batches = RowStream(data=mixture(folder), batch_size=2, seed=0, window_shards=1).batches(0)(context())
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"train-00000-{promised}\.tfrecord"):
        take(batches, 1)


def test_a_mixture_interleaves_its_datasets_and_resumes_by_step(dataset: Path, tmp_path: Path) -> None:
    rows = sequences(90, 8)
    other = write_split(
        tmp_path / "other" / "train", rows, tokenizer=dataset / "tokenizer", attention_mask=np.ones_like(rows)
    )
    data = open_mixture({str(dataset / "train"): 3, str(other): 1})
    assert data.num_rows == 390
    order = MixedOrder(data, seed=9, window_shards=2)
    expected = list(itertools.islice(order.rows(), 640))
    numbers = [row + 300 * index for index, row in expected]
    written = np.concatenate([sequences(300, 1), rows])
    for start in (0, 7, 13):
        batches = RowStream(data=data, batch_size=32, seed=9, window_shards=2).batches(start)(context())
        found = take(batches, 20 - start)
        rows = np.concatenate([batch["row"] for batch in found])
        assert rows.tolist() == numbers[start * 32 :]
        ids = np.concatenate([batch["input_ids"] for batch in found])
        full = rows != 299  # whose second half is padding
        np.testing.assert_array_equal(ids[full], written[rows[full]])
    records = RowStream(data=data, batch_size=32, seed=9, window_shards=2).records(5)
    assert [
        (0 if path.startswith(str(dataset)) else 1, int(path.split("-")[-2]) * 40 + slot)
        for path, slot in records
    ] == expected[5 * 32 : 6 * 32]
