"""The order of the rows as TensorFlow's operations, against NumPy's."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import sequences, write_split
from tpu_trainer.data.batches import RowStream, evaluation_batches
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.order import NUMPY, Order, host_shards, permutation_key
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.data.window_dataset import TENSORS, philox_raw, shuffled_windows, windows_in_sequence

_LARGEST = 2**32 - 1
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}


@pytest.mark.parametrize("n", [1, 5, 4098])
@pytest.mark.parametrize(
    ("seed", "purpose", "epoch", "index"), [(0, 1, 0, 0), (_LARGEST, 2, 2**31 - 1, _LARGEST)]
)
def test_random_words_and_permutations_are_numpys(
    n: int, seed: int, purpose: int, epoch: int, index: int
) -> None:
    key = permutation_key(seed=seed, purpose=purpose, epoch=epoch, index=index)
    expected = np.random.Philox(key=np.array(key, np.uint64)).random_raw(n)

    @tf.function
    def computed(n: tf.Tensor, epoch: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key = permutation_key(seed=seed, purpose=purpose, epoch=epoch, index=index)
        return philox_raw(n, key), TENSORS.permutation(n, key)

    words, permutation = computed(*(tf.constant(value, tf.int64) for value in (n, epoch, index)))
    np.testing.assert_array_equal(words, expected)
    np.testing.assert_array_equal(permutation, NUMPY.permutation(n, key))


@pytest.mark.parametrize(
    ("counts", "window", "hosts"),
    [
        ([5], 4, 1),
        ([3, 0, 9, 4, 4, 4, 1, 2, 7], 2, 2),
        ([1, 100, 1], 2, 3),  # two hosts get most of their rows from the third one's shard
    ],
)
def test_windows_are_those_of_the_order(counts: list[int], window: int, hosts: int) -> None:
    epoch = -(-sum(counts) // hosts)
    for host in range(hosts):
        order = Order(counts=np.array(counts), seed=_LARGEST, window_shards=window, host=host, hosts=hosts)
        # From the beginning, from an epoch's last row, and from within a far epoch on.
        for position in (0, epoch - 1, 1000 * epoch + 1):
            expected = list(itertools.islice(order.windows(position), 12))
            found = list(shuffled_windows(order, position).take(12).as_numpy_iterator())
            for ours, theirs in zip(found, expected, strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)


def test_windows_in_sequence_hold_the_shards_of_a_host() -> None:
    counts = np.array([3, 0, 2, 4])
    for host in range(2):
        windows = list(windows_in_sequence(counts, host=host, hosts=2).as_numpy_iterator())
        assert [w.shards.tolist() for w in windows] == [[s] for s in host_shards(counts, host=host, hosts=2)]
        for window in windows:
            first = int(counts[: window.shards[0]].sum())
            assert window.rows.tolist() == list(range(counts[window.shards[0]]))
            assert window.row_ids.tolist() == [first + row for row in window.rows]


def operations(dataset: tf.data.Dataset) -> set[str]:
    """The types of all operations of a pipeline, those of its functions included."""
    graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op for node in nodes}


def test_no_pipeline_runs_python(dataset: Path, tmp_path: Path, vocabulary: Vocabulary) -> None:
    context = tf.distribute.InputContext(2, 1, num_replicas_in_sync=2)
    rows = sequences(90, 8)
    other = write_split(
        tmp_path / "train", rows, tokenizer=dataset / "tokenizer", attention_mask=np.ones_like(rows)
    )
    alone = open_mixture({str(dataset / "train"): None})
    both = open_mixture({str(dataset / "train"): 3, str(other): 1})
    pipelines = [
        RowStream(data=data, batch_size=8, seed=1, window_shards=2, hosts=2).batches(3)
        for data in (alone, both)
    ]
    pipelines.append(evaluation_batches(alone.splits[0], batch_size=8, vocabulary=vocabulary))
    for pipeline in pipelines:
        assert not operations(pipeline(context)) & _PYTHON
    # What is looked for is found where it is.
    generated = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([]))
    assert operations(generated) & _PYTHON
