"""Threefry."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.random_bits import step_key, threefry2x32

# The known answers of the Random123 library (kat_vectors), threefry 2x32 with 20 rounds.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("key", "counter", "expected"), KNOWN)
def test_known_answers(key: tuple, counter: tuple, expected: tuple, compiled: bool) -> None:
    function = tf.function(lambda: threefry2x32(key, counter), jit_compile=compiled)
    assert tuple(int(word) for word in function()) == expected


def test_an_array_of_counters_is_each_counter_by_itself() -> None:
    counters = np.arange(5, dtype=np.uint32)
    together = threefry2x32((1, 2), (counters, 9))
    alone = [threefry2x32((1, 2), (int(counter), 9)) for counter in counters]
    np.testing.assert_array_equal(np.stack(together), np.array([[int(a), int(b)] for a, b in alone]).T)


def test_step_keys_differ_by_seed_purpose_and_step() -> None:
    keys = {
        tuple(int(word) for word in step_key(seed, purpose, tf.constant(step, tf.int64)))
        for seed in (0, 1)
        for purpose in (0, 1)
        for step in (0, 1)
    }
    assert len(keys) == 8
