"""The batches, compared with the rows that were written."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import MAX_LENGTH, sequences, write_split
from tokenmill_reader import Mixture, Order
from tpu_trainer.config import TrainConfig
from tpu_trainer.data.batches import EvaluationRows, NumberedBatches, RowStream
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.python_calls import PythonCalls
from tpu_trainer.data.vocabulary import Vocabulary


def mixture(*folders: Path) -> Mixture:
    return open_mixture({str(folder): None for folder in folders})


def take(source: NumberedBatches, first: int, count: int, replicas: int = 1) -> list[dict[str, np.ndarray]]:
    context = tf.distribute.InputContext(num_replicas_in_sync=replicas)
    return list(itertools.islice(source.batches(first)(context).as_numpy_iterator(), count))


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_hold_the_rows_that_their_numbers_name(dataset: Path, replicas: int) -> None:
    stored_rows = sequences(300, 1)
    stream = RowStream(data=mixture(dataset / "train"), batch_size=32, seed=0, window_shards=2)
    batches = stream.batches()(tf.distribute.InputContext(num_replicas_in_sync=replicas))
    rows = 32 // replicas
    assert {name: spec.shape.as_list() for name, spec in batches.element_spec.items()} == {
        "input_ids": [rows, MAX_LENGTH],
        "attention_mask": [rows, MAX_LENGTH],
        "row": [rows],
    }
    assert {spec.dtype for spec in batches.element_spec.values()} == {tf.int32}
    for batch in take(stream, 0, 20, replicas):
        is_token = batch["attention_mask"] > 0
        np.testing.assert_array_equal(batch["input_ids"][is_token], stored_rows[batch["row"]][is_token])
        assert (batch["input_ids"][~is_token] == 1).all()


@pytest.mark.parametrize("mixed", [False, True])
def test_the_stream_follows_the_order_over_epochs_and_resumes_by_step(
    dataset: Path, tmp_path: Path, mixed: bool
) -> None:
    rows = sequences(90, 8)
    other_split = write_split(
        tmp_path / "other" / "train", rows, tokenizer=dataset / "tokenizer", attention_mask=np.ones_like(rows)
    )
    data = open_mixture({str(dataset / "train"): 3} | ({str(other_split): 1} if mixed else {}))
    stored_rows = np.concatenate([sequences(300, 1), rows])
    order = Order(data, seed=9, batch_size=64, window=3)
    stream = RowStream(data=data, batch_size=64, seed=9, window_shards=3)
    for start in (0, 7, 13):
        for step, batch in enumerate(take(stream, start, 20 - start), start):
            assert batch["row"].tolist() == order.rows(step).tolist()
            is_full = batch["row"] != 299  # whose second half is padding
            np.testing.assert_array_equal(batch["input_ids"][is_full], stored_rows[batch["row"][is_full]])
    numbers = [
        (300 if path.startswith(str(other_split)) else 0) + int(path.split("-")[-2]) * 40 + slot
        for path, slot in stream.records(5)
    ]
    assert numbers == order.rows(5).tolist()


def test_a_growing_batch_reads_the_same_rows_in_smaller_steps(dataset: Path) -> None:
    train = TrainConfig(batch_size=24, accumulation=4, batch_ramp=6)
    data = mixture(dataset / "train")
    stream = RowStream(
        data=data, batch_size=24, seed=9, window_shards=3, micro_batch_starts=train.micro_batch_starts
    )
    order, position = Order(data, seed=9, batch_size=1, window=3), 0
    for step, batch in enumerate(take(stream, 0, 9)):
        assert position == train.rows_before(step)
        micro_batches = batch["row"].reshape(-1, 4).T  # as Task divides them
        count = [1, 1, 2, 3, 3, 4, 4, 4, 4][step]
        assert (micro_batches[count:] == -1).all()
        rows = [int(order.rows(position + index)[0]) for index in range(6 * count)]
        assert micro_batches[:count].T.reshape(-1).tolist() == rows
        assert len(stream.records(step)) == len(rows)
        unused = batch["row"] < 0
        np.testing.assert_array_equal(batch["input_ids"][~unused], data[np.array(rows)]["input_ids"])
        assert not batch["attention_mask"][unused].any()
        position += 6 * count
    assert take(stream, 4, 1)[0]["row"].tolist() == stream.rows(4).tolist()


def test_another_number_of_processes_loses_and_repeats_no_row(dataset: Path) -> None:
    """Two processes read the rows of the batches of one, which three continue in the middle of an epoch."""
    stream = RowStream(data=mixture(dataset / "train"), batch_size=12, seed=4, window_shards=2)
    rows_read = []
    for processes, steps in ((2, range(10)), (3, range(10, 25))):
        for process in range(processes):
            slots = np.arange(12).reshape(processes, -1)[process]
            batches = stream.batches(steps.start)(
                tf.distribute.InputContext(), lambda rows, slots=slots: slots
            )
            for step, batch in zip(steps, batches.as_numpy_iterator(), strict=False):
                assert batch["row"].tolist() == stream.rows(step)[slots].tolist()
                rows_read += batch["row"].tolist()
    assert sorted(rows_read) == list(range(300))


@pytest.mark.parametrize("url", [False, True])
def test_a_process_reads_only_its_own_rows(dataset: Path, tmp_path: Path, url: bool) -> None:
    """Rows of other processes may be unreadable here. file:// is read as gs:// is."""
    rows = sequences(40, 3)
    folder = write_split(tmp_path / "train", rows, tokenizer=dataset / "tokenizer", shard_rows=1)
    source = EvaluationRows(
        open_split(f"file://{folder}" if url else str(folder)),
        batch_size=8,
        vocabulary=Vocabulary(size=50, special_ids=(), pad_id=1, mask_id=4, bos_id=0, eos_id=2),
    )
    for row in range(0, 40, 2):
        path = folder / f"train-{row:05d}-1.tfrecord"
        path.write_bytes(bytes(path.stat().st_size))
    slots = np.arange(1, 8, 2)
    for number in range(source.steps):
        batch = source.read(number, slots)
        np.testing.assert_array_equal(batch["input_ids"], rows[8 * number + slots])


@pytest.mark.parametrize(("batch_size", "replicas"), [(32, 1), (67, 1), (100, 1), (8, 4)])
def test_evaluation_reads_every_row_once_and_fills_up(
    dataset: Path, vocabulary: Vocabulary, batch_size: int, replicas: int
) -> None:
    split = open_split(str(dataset / "validation"))
    source = EvaluationRows(split, batch_size=batch_size, vocabulary=vocabulary)
    batches = take(source, 0, source.steps * replicas, replicas)
    rows = np.concatenate([batch["row"] for batch in batches])
    assert rows.tolist() == [*range(67), *[-1] * (source.steps * batch_size - 67)]
    for batch in batches:
        assert batch["input_ids"].shape == (batch_size // replicas, MAX_LENGTH)
        assert (batch["attention_mask"][batch["row"] < 0] == 0).all()
        assert (batch["input_ids"][batch["row"] < 0] == 1).all()


def test_calls_end_before_the_interpreter() -> None:
    """Otherwise a pipeline could wait forever for its thread, which the interpreter has stopped."""
    calls, has_begun, may_finish = PythonCalls(), threading.Event(), threading.Event()

    def read() -> None:
        has_begun.set()
        may_finish.wait()

    call = calls.wrap(read)
    threads = [threading.Thread(target=call), threading.Thread(target=calls.close)]
    threads[0].start()
    has_begun.wait()
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive()
    with pytest.raises(RuntimeError, match="the interpreter is ending"):
        call()
    may_finish.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_rows_without_attention_mask_and_with_position_ids(tmp_path: Path, vocabulary: Vocabulary) -> None:
    rows = sequences(10, 4)
    positions = np.tile(np.arange(MAX_LENGTH) % 5, (10, 1))
    write_split(tmp_path / "train", rows, tokenizer=None, position_ids=positions)
    split = open_split(str(tmp_path / "train"))
    assert (split.max_length, split.features) == (MAX_LENGTH, ("input_ids", "position_ids"))
    source = EvaluationRows(split, batch_size=10, vocabulary=vocabulary)
    assert source.steps == 1
    batch, filler = take(source, 0, 2)
    assert (filler["row"] == -1).all()
    assert list(batch) == ["input_ids", "position_ids", "row"]
    np.testing.assert_array_equal(batch["input_ids"], rows)
    np.testing.assert_array_equal(batch["position_ids"], positions)
