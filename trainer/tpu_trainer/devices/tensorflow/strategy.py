"""The tf.distribute strategy of a run."""

from __future__ import annotations

import tensorflow as tf

from tpu_trainer.config import StrategyName
from tpu_trainer.devices.tensorflow.tpu_host import tpu_is_here
from tpu_trainer.support import quiet
from tpu_trainer.support.errors import UsageError


def build_strategy(name: StrategyName) -> tf.distribute.Strategy:
    """Builds the strategy called `name`. Call it before TensorFlow computes anything.

    Raises:
        UsageError: If this machine lacks the device.
    """
    quiet.silence_abseil()
    gpus = tf.config.list_physical_devices("GPU")
    if name == "tpu" or (name == "auto" and not gpus and tpu_is_here()):
        return _tpu_strategy()
    if name == "gpu" and not gpus:
        raise UsageError("--strategy is 'gpu', but TensorFlow sees no GPU here; use 'auto' or 'cpu'")
    if name == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif len(gpus) > 1:
        return tf.distribute.MirroredStrategy()
    # The default strategy uses the GPU if one is visible, else the CPU.
    return tf.distribute.get_strategy()


def _tpu_strategy() -> tf.distribute.Strategy:
    if not tpu_is_here():
        raise UsageError(
            "--strategy is 'tpu', but this machine has no TPU (no /dev/accel*, no /dev/vfio/*); to rent one, use the "
            "verb launch"
        )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` uses TPUs, for which XLA compiles everything."""
    return isinstance(strategy, tf.distribute.TPUStrategy)
