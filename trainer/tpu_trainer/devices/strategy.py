"""The tf.distribute strategy of a run."""

from __future__ import annotations

import tensorflow as tf

from tpu_trainer.config import StrategyName, TpuConfig
from tpu_trainer.devices.cluster import cluster_from_environment
from tpu_trainer.devices.hosts import wait_for_hosts, watch_hosts
from tpu_trainer.devices.tpu_host import LOCAL, tpu_is_here
from tpu_trainer.support import quiet
from tpu_trainer.support.errors import UsageError


def build_strategy(name: StrategyName, tpu: TpuConfig | None = None) -> tf.distribute.Strategy:
    """Builds the strategy called `name`. Call it before TensorFlow computes anything.

    Raises:
        UsageError: If this machine lacks the device, or TF_CONFIG does not fit.
        CloudError: If a host of the TPU does not answer.
    """
    quiet.silence_abseil()
    tpu = tpu or TpuConfig()
    workers = cluster_from_environment().workers
    gpus = tf.config.list_physical_devices("GPU")
    named = tpu.name != LOCAL
    if name == "tpu" or (name == "auto" and (named or (not gpus and tpu_is_here()))):
        if workers > 1:
            raise UsageError("TF_CONFIG has several workers, which needs CPUs or GPUs: unset it to use a TPU")
        return _tpu_strategy(tpu)
    if named:
        raise UsageError(f"--tpu.name is {tpu.name!r}, but --strategy is {name!r}; use 'tpu' or 'auto'")
    if name == "gpu" and not gpus:
        raise UsageError("--strategy is 'gpu', but TensorFlow sees no GPU here; use 'auto' or 'cpu'")
    if name == "cpu":
        tf.config.set_visible_devices([], "GPU")
    if workers > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name != "cpu" and len(gpus) > 1:
        return tf.distribute.MirroredStrategy()
    # The default strategy uses the GPU if one is visible, else the CPU.
    return tf.distribute.get_strategy()


def _tpu_strategy(tpu: TpuConfig) -> tf.distribute.Strategy:
    if tpu.name == LOCAL and not tpu_is_here():
        raise UsageError(
            "--strategy is 'tpu', but this machine has no TPU (no /dev/accel*, no /dev/vfio/*); "
            "to use one elsewhere, set --tpu.name, --tpu.zone and --tpu.project"
        )
    place = {} if tpu.name == LOCAL else {"zone": tpu.zone, "project": tpu.project}
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu.name, **place)
    addresses = _addresses(resolver)
    if addresses:
        wait_for_hosts(addresses, minutes=tpu.connect_minutes)
        watch_hosts(addresses)
    tf.config.experimental_connect_to_cluster(resolver)
    return _strategy_of(resolver)


def _strategy_of(resolver: tf.distribute.cluster_resolver.TPUClusterResolver) -> tf.distribute.Strategy:
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _addresses(resolver: tf.distribute.cluster_resolver.ClusterResolver | None) -> list[str]:
    if not isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver) or not resolver.master():
        return []
    return resolver.cluster_spec().as_dict().get("worker", [])


def remote_hosts(strategy: tf.distribute.Strategy) -> list[str]:
    """HOST:PORT of the hosts whose TPU this process drives from elsewhere, in the order of their numbers."""
    return _addresses(strategy.cluster_resolver)


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` uses TPUs, for which XLA compiles everything."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def num_hosts(strategy: tf.distribute.Strategy) -> int:
    """The number of hosts, each of which feeds its own rows to its replicas."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return cluster_from_environment().workers
    return len(remote_hosts(strategy)) or (strategy.extended.num_hosts if is_tpu(strategy) else 1)


def same_on_all_hosts(strategy: tf.distribute.Strategy, value: int) -> bool:
    """Whether all hosts call this with the same `value`."""

    def sums() -> tf.Tensor:
        # n times the sum of squares equals the square of the sum if and only if all are equal (Cauchy-Schwarz).
        values = tf.constant([1.0, value, float(value) ** 2], tf.float64)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    results = strategy.run(tf.function(sums, autograph=False))
    count, total, squares = strategy.experimental_local_results(results)[0].numpy()
    return count * squares == total**2
