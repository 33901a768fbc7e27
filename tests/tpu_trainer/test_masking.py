"""Which tokens are masked, and with what."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.masking import MaskedRows, Masking, targets_by_length
from tpu_trainer.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=1000, special_ids=(0, 1, 2, 3, 999), pad_id=1, mask_id=999, bos_id=0, eos_id=2)
LENGTH = 64
KEY = (tf.constant(5, tf.uint32), tf.constant(6, tf.uint32))


def batch(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of random words with special tokens among them and padding at the end; and their attention mask."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, 999, size=(rows, LENGTH)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.1] = 2
    mask = (np.arange(LENGTH) < rng.integers(0, LENGTH + 1, size=(rows, 1))).astype(np.int32)
    ids[mask == 0] = 1
    return ids, mask


def apply(
    ids: np.ndarray, mask: np.ndarray | None, *, row: np.ndarray | None = None, compiled: bool = False
) -> MaskedRows:
    masking = Masking(vocabulary=VOCABULARY, max_length=LENGTH, probability=0.15)
    row = np.arange(len(ids), dtype=np.int32) if row is None else row
    call = tf.function(masking.__call__, jit_compile=compiled)
    return MaskedRows(
        *(
            value.numpy()
            for value in call(
                input_ids=tf.constant(ids),
                attention_mask=None if mask is None else tf.constant(mask),
                row=tf.constant(row),
                key=KEY,
            )
        )
    )


def test_number_of_targets_rounds_half_up_and_exactly() -> None:
    table = targets_by_length(512, 0.15)
    assert table.shape == (513,)
    # 0.15 · 10 = 1.5 and 0.15 · 30 = 4.5 come out below a half in binary.
    assert [table[n] for n in (0, 3, 4, 10, 30, 128, 512)] == [0, 0, 1, 2, 5, 19, 77]


def test_each_row_has_exactly_its_targets_and_none_is_special_or_padding() -> None:
    ids, mask = batch(200)
    masked = apply(ids, mask)
    table = targets_by_length(LENGTH, 0.15)
    special = np.isin(ids, VOCABULARY.special_ids)
    for row in range(len(ids)):
        chosen = masked.positions[row][masked.weights[row] > 0]
        assert len(chosen) == min(table[mask[row].sum()], (mask[row] & ~special[row]).sum())
        assert len(set(chosen.tolist())) == len(chosen)
        assert mask[row, chosen].all()
        assert not special[row, chosen].any()
        np.testing.assert_array_equal(masked.targets[row][masked.weights[row] > 0], ids[row, chosen])


def test_nothing_but_the_chosen_tokens_changes() -> None:
    ids, mask = batch(100)
    masked = apply(ids, mask)
    for row in range(len(ids)):
        chosen = masked.positions[row][masked.weights[row] > 0]
        others = np.setdiff1d(np.arange(LENGTH), chosen)
        np.testing.assert_array_equal(masked.input_ids[row, others], ids[row, others])


def test_eighty_ten_ten_and_random_tokens_are_never_special() -> None:
    ids = np.random.default_rng(1).integers(4, 999, size=(4000, LENGTH)).astype(np.int32)
    masked = apply(ids, None)
    assert masked.weights.all()  # rows are full: every place is used
    seen = np.take_along_axis(masked.input_ids, masked.positions, axis=1).ravel()
    targets = masked.targets.ravel()
    n = len(seen)
    assert n == 4000 * 10
    replaced = seen[(seen != 999) & (seen != targets)]
    for share, expected in (
        ((seen == 999).mean(), 0.8),
        (len(replaced) / n, 0.1),
        ((seen == targets).mean(), 0.1),
    ):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / n)
    assert not np.isin(replaced, VOCABULARY.special_ids).any()
    assert len(np.unique(replaced)) > 950  # of 995: the whole vocabulary is drawn from


def test_all_positions_are_equally_likely() -> None:
    ids = np.full((6000, LENGTH), 7, np.int32)
    hits = np.bincount(apply(ids, None).positions.ravel(), minlength=LENGTH) / 6000
    expected = 10 / LENGTH
    assert np.abs(hits - expected).max() < 5 * np.sqrt(expected * (1 - expected) / 6000)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rows_masks_do_not_depend_on_its_batch(compiled: bool) -> None:
    ids, mask = batch(8)
    row = np.array([3, 1 << 30, 5, 17, 2, 0, 11, 9], np.int32)
    whole = apply(ids, mask, row=row)
    part = apply(ids[5:1:-1], mask[5:1:-1], row=row[5:1:-1], compiled=compiled)
    for a, b in zip(whole, part, strict=True):
        np.testing.assert_array_equal(a[5:1:-1], b)


def test_rows_differ_and_filler_rows_have_no_targets() -> None:
    ids = np.full((3, LENGTH), 7, np.int32)
    masked = apply(ids, None, row=np.array([0, 1, -1], np.int32))
    assert set(masked.positions[0]) != set(masked.positions[1])
    assert masked.weights.sum(axis=1).tolist() == [10, 10, 0]
    np.testing.assert_array_equal(masked.input_ids[2], ids[2])
