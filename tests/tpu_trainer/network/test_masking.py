"""Selection and replacement of masked tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.config import MaskingUnit
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.data.words import Words
from tpu_trainer.network.masking import MaskedRows, Masking, targets_by_length
from tpu_trainer.network.selection import MAX_SPAN, span_lengths
from tpu_trainer.support.errors import UsageError

# Odd ids continue the word of the preceding token.
WORDS = Words(starts_inside_word=np.arange(1000) % 2 == 1, ends_inside_word=np.ones(1000, bool))
VOCABULARY = Vocabulary(
    size=1000, special_ids=(0, 1, 2, 3, 999), pad_id=1, mask_id=999, bos_id=0, eos_id=2, words=WORDS
)
UNITS = ("token", "word", "span")
LENGTH = 64
KEY = (tf.constant(5, tf.uint32), tf.constant(6, tf.uint32))


def batch(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of random words with special tokens and padding, and their attention mask."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, 999, size=(rows, LENGTH)).astype(np.int32)
    ids[rng.random(ids.shape) < 0.1] = 2
    mask = (np.arange(LENGTH) < rng.integers(0, LENGTH + 1, size=(rows, 1))).astype(np.int32)
    ids[mask == 0] = 1
    return ids, mask


def apply(
    ids: np.ndarray,
    mask: np.ndarray | None,
    *,
    row: np.ndarray | None = None,
    compiled: bool = False,
    unit: MaskingUnit = "token",
    probability: float = 0.15,
) -> MaskedRows:
    masking = Masking(vocabulary=VOCABULARY, max_length=LENGTH, probability=probability, unit=unit)
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
    # In binary, 0.15 · 10 = 1.5 and 0.15 · 30 = 4.5 are slightly too small.
    assert [table[n] for n in (0, 3, 4, 10, 30, 128, 512)] == [0, 0, 1, 2, 5, 19, 77]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("probability", [0.15, 0.9])
def test_each_row_has_exactly_its_targets_and_none_is_special_or_padding(
    unit: MaskingUnit, probability: float
) -> None:
    ids, mask = batch(200)
    masked = apply(ids, mask, unit=unit, probability=probability)
    table = targets_by_length(LENGTH, probability)
    special = np.isin(ids, VOCABULARY.special_ids)
    for row in range(len(ids)):
        positions = masked.positions[row][masked.weights[row] > 0]
        assert len(positions) == min(table[mask[row].sum()], (mask[row] & ~special[row]).sum())
        assert len(set(positions.tolist())) == len(positions)
        assert mask[row, positions].all()
        assert not special[row, positions].any()
        np.testing.assert_array_equal(masked.targets[row][masked.weights[row] > 0], ids[row, positions])


@pytest.mark.parametrize("unit", UNITS)
def test_only_selected_tokens_change(unit: MaskingUnit) -> None:
    ids, mask = batch(100)
    masked = apply(ids, mask, unit=unit)
    for row in range(len(ids)):
        selected = masked.positions[row][masked.weights[row] > 0]
        unselected = np.setdiff1d(np.arange(LENGTH), selected)
        np.testing.assert_array_equal(masked.input_ids[row, unselected], ids[row, unselected])


@pytest.mark.parametrize("unit", UNITS)
def test_eighty_ten_ten_and_random_tokens_are_never_special(unit: MaskingUnit) -> None:
    ids = np.random.default_rng(1).integers(4, 999, size=(4000, LENGTH)).astype(np.int32)
    masked = apply(ids, None, unit=unit)
    assert masked.weights.all()  # rows are full: every place is used
    input_ids = np.take_along_axis(masked.input_ids, masked.positions, axis=1).ravel()
    targets = masked.targets.ravel()
    n = len(input_ids)
    assert n == 4000 * 10
    random_ids = input_ids[(input_ids != 999) & (input_ids != targets)]
    for share, expected in (
        ((input_ids == 999).mean(), 0.8),
        (len(random_ids) / n, 0.1),
        ((input_ids == targets).mean(), 0.1),
    ):
        # All tokens of a span get the same kind of replacement, so there are fewer draws than tokens.
        draws = n if unit != "span" else n / 3
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / draws)
    assert not np.isin(random_ids, VOCABULARY.special_ids).any()
    assert len(np.unique(random_ids)) > 950  # of 995: the whole vocabulary is drawn from


@pytest.mark.parametrize("unit", UNITS)
def test_all_positions_are_equally_probable(unit: MaskingUnit) -> None:
    ids = np.full((6000, LENGTH), 8, np.int32)
    hits = np.bincount(apply(ids, None, unit=unit).positions.ravel(), minlength=LENGTH) / 6000
    expected = 10 / LENGTH
    # Spans start at any token, so positions near the ends are rarer.
    inner_positions = slice(None) if unit != "span" else slice(MAX_SPAN, -MAX_SPAN)
    deviation = np.abs(hits - hits[inner_positions].mean())[inner_positions].max()
    assert deviation < 5 * np.sqrt(expected * (1 - expected) / 6000)
    assert abs(hits[inner_positions].mean() - expected) < 0.02


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_rows_masks_do_not_depend_on_its_batch(compiled: bool, unit: MaskingUnit) -> None:
    ids, mask = batch(8)
    row = np.array([3, 1 << 30, 5, 17, 2, 0, 11, 9], np.int32)
    batch_result = apply(ids, mask, row=row, unit=unit)
    part = apply(ids[5:1:-1], mask[5:1:-1], row=row[5:1:-1], compiled=compiled, unit=unit)
    for a, b in zip(batch_result, part, strict=True):
        np.testing.assert_array_equal(a[5:1:-1], b)


def test_rows_differ_and_filler_rows_have_no_targets() -> None:
    ids = np.full((3, LENGTH), 7, np.int32)
    masked = apply(ids, None, row=np.array([0, 1, -1], np.int32))
    assert set(masked.positions[0]) != set(masked.positions[1])
    assert masked.weights.sum(axis=1).tolist() == [10, 10, 0]
    np.testing.assert_array_equal(masked.input_ids[2], ids[2])


def runs(row: np.ndarray) -> list[list[int]]:
    """Groups adjacent positions of a row."""
    ordered = np.sort(row)
    return [part.tolist() for part in np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)]


def test_words_are_selected_as_a_whole() -> None:
    rng = np.random.default_rng(2)
    # Words of one to four tokens.
    ids = (2 * rng.integers(3, 400, size=(2000, LENGTH)) + (rng.random((2000, LENGTH)) < 0.5)).astype(
        np.int32
    )
    ids[:, 0] = 0
    masked = apply(ids, None, unit="word")
    sizes: list[int] = []
    cut = 0
    for row, positions in zip(ids, masked.positions, strict=True):
        starts = np.array([column == 1 or row[column] % 2 == 0 for column in range(LENGTH)])
        words = np.split(np.arange(LENGTH), np.flatnonzero(starts)[1:])
        selected = set(positions.tolist())
        parts = [word for word in words if 0 < len(selected & set(word.tolist())) < len(word)]
        if parts:  # nothing fitted any more
            assert len(parts) == 1
            assert all(word[0] in selected for word in words if len(word) == 1 and word[0] > 0)
            cut += 1
        sizes += [len(word) for word in words if word[0] in selected]
    assert cut < 20
    # Half of all words have one token, a quarter two, …; the remaining slots get words of one token.
    shares = np.bincount(sizes)[1:4] / len(sizes)
    assert 0.5 < shares[0] < 0.68
    assert 0.19 < shares[1] < 0.27
    assert 0.08 < shares[2] < 0.14


def test_a_word_that_is_too_long_is_selected_in_part() -> None:
    ids = np.full((50, LENGTH), 7, np.int32)  # one word
    masked = apply(ids, None, unit="word")
    assert masked.weights.all()
    assert all(len(runs(positions)) == 1 for positions in masked.positions)


def test_whole_words_need_a_tokenizer_whose_tokens_show_them() -> None:
    without_words = replace(VOCABULARY, words=None)
    with pytest.raises(UsageError, match=r"--mlm\.unit is 'word', but the tokenizer's tokens do not show"):
        Masking(vocabulary=without_words, max_length=LENGTH, probability=0.15, unit="word")


def test_spans_have_geometric_lengths_and_one_kind_of_replacement() -> None:
    expected = span_lengths()
    np.testing.assert_allclose(expected[1:] / expected[:-1], 0.8)
    assert expected.sum() == pytest.approx(1)
    assert (expected * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.05)  # SpanBERT's mean
    # Rows are so long that spans are rarely adjacent, and have so many targets that few spans are truncated.
    length = 512
    ids = np.random.default_rng(3).integers(4, 999, size=(300, length)).astype(np.int32)
    masking = Masking(vocabulary=VOCABULARY, max_length=length, probability=0.05, unit="span")
    call = tf.function(masking.__call__)
    masked = call(input_ids=tf.constant(ids), attention_mask=None, row=tf.range(300), key=KEY)
    spans = [part for positions in masked.positions.numpy() for part in runs(positions)]
    shares = np.bincount([len(part) for part in spans], minlength=20)[1:11] / len(spans)
    # Truncated spans add short lengths, adjacent spans add long ones.
    np.testing.assert_allclose(shares, expected, atol=0.045)
    input_ids = masked.input_ids.numpy()
    masks = [
        (input_ids[row, part] == 999) for row, p in enumerate(masked.positions.numpy()) for part in runs(p)
    ]
    mixed_share = np.mean([0 < mask.mean() < 1 for mask in masks])
    assert mixed_share < 0.06  # only where two spans touch
    assert np.mean([mask.all() for mask in masks]) == pytest.approx(0.8, abs=0.05)


def test_spans_skip_tokens_that_are_not_maskable() -> None:
    ids = np.random.default_rng(4).integers(4, 999, size=(500, LENGTH)).astype(np.int32)
    ids[:, ::3] = 2
    masked = apply(ids, None, unit="span", probability=0.3)
    selected = np.zeros(ids.shape, bool)
    np.put_along_axis(selected, masked.positions, masked.weights > 0, axis=1)
    assert not selected[:, ::3].any()
    assert (selected.sum(axis=1) == 19).all()
    spanning = selected[:, 2:-2:3] & selected[:, 4::3]
    assert spanning.mean() > 0.2  # across a special token
