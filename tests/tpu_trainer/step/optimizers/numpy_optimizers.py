"""The optimizers in NumPy with float64, for one matrix or vector, after the papers and optax's documentation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Update = Callable[[np.ndarray, np.ndarray, int, float], np.ndarray]
"""(value, gradient, number of the update from 1, learning rate) → next value. Has a state: one for each weight."""


def adamw(*, beta1: float, beta2: float, epsilon: float, decay: float) -> Update:
    mean = square = np.float64(0)

    def update(value: np.ndarray, gradient: np.ndarray, number: int, rate: float) -> np.ndarray:
        # The documentation of torch.optim.AdamW, in its order.
        nonlocal mean, square
        value = value - rate * decay * value
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        root = np.sqrt(square / (1 - beta2**number)) + epsilon
        return value - rate * mean / (1 - beta1**number) / root

    return update


def lion(*, beta1: float, beta2: float, decay: float) -> Update:
    mean = np.float64(0)

    def update(value: np.ndarray, gradient: np.ndarray, number: int, rate: float) -> np.ndarray:
        # optax.lion: scale_by_lion, then add_decayed_weights, then scale_by_learning_rate.
        nonlocal mean
        direction = np.sign(beta1 * mean + (1 - beta1) * gradient)
        mean = beta2 * mean + (1 - beta2) * gradient
        return value - rate * (direction + decay * value)

    return update


def muon(*, momentum: float, decay: float) -> Update:
    mean = np.float64(0)

    def update(value: np.ndarray, gradient: np.ndarray, number: int, rate: float) -> np.ndarray:
        nonlocal mean
        mean = momentum * mean + (1 - momentum) * gradient
        u, singular, vh = np.linalg.svd(momentum * mean + (1 - momentum) * gradient, full_matrices=False)
        # Newton and Schulz's iteration acts on each singular value alone.
        singular = singular / np.sqrt((singular**2).sum())
        for _ in range(5):
            singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
        change = 0.2 * np.sqrt(max(value.shape)) * (u * singular) @ vh
        return value - rate * decay * value - rate * change

    return update


def adafactor(*, decay: float) -> Update:
    rows = columns = square = np.float64(0)

    def update(value: np.ndarray, gradient: np.ndarray, number: int, rate: float) -> np.ndarray:
        # Shazeer and Stern (2018), algorithms 4 and 5, with the relative step size `rate`.
        nonlocal rows, columns, square
        beta2 = 1 - number**-0.8
        if gradient.ndim == 2:
            rows = beta2 * rows + (1 - beta2) * (gradient**2).sum(axis=1)
            columns = beta2 * columns + (1 - beta2) * (gradient**2).sum(axis=0)
            estimate = np.outer(rows, columns) / rows.sum()
        else:
            estimate = square = beta2 * square + (1 - beta2) * gradient**2
        change = gradient / np.sqrt(np.maximum(estimate, 1e-30))
        change /= max(1.0, np.sqrt((change**2).mean()))
        scale = max(1e-3, np.sqrt((value**2).mean()))
        return value - rate * decay * value - rate * scale * change

    return update
