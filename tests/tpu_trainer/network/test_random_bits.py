"""Threefry and line_bits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.network.random_bits import line_bits, step_key, threefry2x32

# Known answers of the Random123 library (kat_vectors) for threefry 2x32 with 20 rounds.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
def test_threefry_gives_the_known_answers_of_random123(
    key: tuple, counter: tuple, expected: tuple, compiled: bool
) -> None:
    function = tf.function(lambda: threefry2x32(key, counter), jit_compile=compiled)
    assert tuple(int(word) for word in function()) == expected


def test_the_bits_of_a_counter_do_not_depend_on_the_array() -> None:
    counters = np.arange(5, dtype=np.uint32)
    array_bits = threefry2x32((1, 2), (counters, 9))
    single_bits = [threefry2x32((1, 2), (int(counter), 9)) for counter in counters]
    np.testing.assert_array_equal(
        np.stack(array_bits), np.array([[int(a), int(b)] for a, b in single_bits]).T
    )


def test_step_keys_differ_by_seed_purpose_and_step() -> None:
    keys = {
        tuple(int(word) for word in step_key(seed, purpose, tf.constant(step, tf.int64)))
        for seed in (0, 1)
        for purpose in (0, 1)
        for step in (0, 1)
    }
    assert len(keys) == 8


@pytest.mark.parametrize("compiled", [False, True])
def test_lines_of_bits_look_random(compiled: bool) -> None:
    lines, length = 4000, 512

    def draw() -> tf.Tensor:
        return line_bits(threefry2x32((3, 4), (np.arange(lines, dtype=np.uint32), 0), rounds=13), length)

    bits = tf.function(draw, jit_compile=compiled)().numpy()
    assert bits.shape == (lines, length)
    deviation = 0.5 / np.sqrt(bits.size)
    for place in range(32):
        bit_values = (bits >> np.uint32(place)) & 1
        assert abs(bit_values.mean() - 0.5) < 5 * deviation
        # Pairs of adjacent and of more distant elements of a line, and of the same elements in adjacent lines.
        for axis, shift in ((1, 1), (1, 2), (1, 64), (1, 255), (0, 1)):
            assert abs((bit_values ^ np.roll(bit_values, shift, axis=axis)).mean() - 0.5) < 5 * deviation
    for shift in (0, 8, 16, 24):
        count = np.bincount(((bits >> np.uint32(shift)) & 255).ravel(), minlength=256)
        expected = bits.size / 256
        # 255 degrees of freedom: mean 255, standard deviation 22.6.
        assert abs(((count - expected) ** 2 / expected).sum() - 255) < 5 * 22.6
    # The number of elements below 0.1 has a binomial distribution over lines.
    drop_counts = (bits < 2**32 // 10).sum(axis=1)
    assert drop_counts.var() / (length * 0.09) == pytest.approx(1, abs=0.12)
    assert len(np.unique(bits)) > bits.size * (
        1 - 2 * bits.size / 2**33
    )  # as many twice as birthdays explain
