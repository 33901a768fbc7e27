"""Random bits on the device as a pure function of a key and a counter: Threefry-2x32.

TensorFlow's stateless generators compute a whole tensor from one seed, by an algorithm that depends on the device. Here
each element has its own counter, so a row's bits do not depend on the batch, the replica or the type of device.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

# Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), table 2 and section 3.3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_KEY_PARITY = 0x1BD11BDA


Word = tf.Tensor | np.ndarray | int


def _uint32(value: Word) -> tf.Tensor:
    return value if tf.is_tensor(value) else tf.constant(value, tf.uint32)


def threefry2x32(
    key: tuple[Word, Word], counter: tuple[Word, Word], *, rounds: int = 20
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns 64 random bits for each element, as two uint32 tensors of the broadcast shape.

    Args:
        key: Two values, uint32 tensors or arrays, or ints in [0, 2**32).
        counter: Two values of the same types; all four are broadcast against each other.
        rounds: Rounds of mixing; 13 is the minimum that passes all statistical tests.
    """
    k0, k1 = map(_uint32, key)
    x0, x1 = map(_uint32, counter)
    k2 = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(k0, k1), _uint32(_KEY_PARITY))
    keys = (k0, k1, k2)
    x0, x1 = x0 + k0, x1 + k1
    for number in range(rounds):
        group, place = divmod(number, 4)
        rotation = _ROTATIONS[group % 2][place]
        x0 = x0 + x1
        left = tf.bitwise.left_shift(x1, _uint32(rotation))
        right = tf.bitwise.right_shift(x1, _uint32(32 - rotation))
        x1 = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_or(left, right), x0)
        if place == 3:
            x0 = x0 + keys[(group + 1) % 3]
            x1 = x1 + keys[(group + 2) % 3] + _uint32(group + 1)
    return x0, x1


def line_bits(seeds: tuple[tf.Tensor, tf.Tensor], length: int) -> tf.Tensor:
    """Returns 32 random bits for each element of a line, uint32[..., length].

    Lines are as independent as their seeds. Within a line, the bits are a hash of the element's number, which mixes in
    the second seed between its rounds. This is sufficient for dropout and needs about ten times fewer operations than
    Threefry. XLA fuses the computation into the operation that uses the bits, and never writes them to memory.

    Args:
        seeds: Two seeds per line, uint32[...], such as the results of threefry2x32.
        length: Elements in a line.
    """
    # The rounds are Wellons' "lowbias32" (Hash Prospector, 2018); the increment is 2**32 / golden ratio.
    first, second = (tf.expand_dims(seed, -1) for seed in seeds)
    number = tf.cast(tf.range(length), tf.uint32)
    bits = first + number * _uint32(0x9E3779B9)
    bits = _shifted(bits, 16) * _uint32(0x7FEB352D)
    bits = tf.bitwise.bitwise_xor(_shifted(bits, 15), second) * _uint32(0x846CA68B)
    return _shifted(bits, 16)


def _shifted(bits: tf.Tensor, places: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _uint32(places)))


def step_key(seed: int, purpose: int, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the key of a step (an integer scalar), independent for each seed, purpose and step."""
    return threefry2x32((seed, purpose), (tf.cast(step, tf.uint32), 0))
