"""Where to compute: a tf.distribute strategy by name."""

from __future__ import annotations

import tensorflow as tf

from tpu_trainer.config import StrategyName, TpuConfig
from tpu_trainer.errors import UsageError
from tpu_trainer.training.cluster import cluster_from_environment
from tpu_trainer.training.hosts import wait_for_hosts, watch_hosts
from tpu_trainer.training.tpu_host import LOCAL, tpu_is_here


def build_strategy(name: StrategyName, tpu: TpuConfig | None = None) -> tf.distribute.Strategy:
    """The strategy called `name`; call it before TensorFlow computes anything.

    UsageError where this machine does not have its device, or where TF_CONFIG does not fit.
    """
    tpu = tpu or TpuConfig()
    workers = cluster_from_environment().workers
    gpus = tf.config.list_physical_devices("GPU")
    named = tpu.name != LOCAL
    if name == "tpu" or (name == "auto" and (named or (not gpus and tpu_is_here()))):
        if workers > 1:
            raise UsageError(
                "TF_CONFIG names several workers, which is for CPUs and GPUs: unset it to use a TPU"
            )
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
    # The default strategy places everything on the GPU where one is visible, else on the CPU.
    return tf.distribute.get_strategy()


def _tpu_strategy(tpu: TpuConfig) -> tf.distribute.Strategy:
    if tpu.name == LOCAL and not tpu_is_here():
        raise UsageError(
            "--strategy is 'tpu', but this machine has no TPU (no /dev/accel*, no /dev/vfio/*); "
            "name one elsewhere with --tpu.name, --tpu.zone and --tpu.project"
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
    """HOST:PORT of the hosts whose TPU this process drives from elsewhere, in the order of their numbers."""
    if not isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver) or not resolver.master():
        return []
    return resolver.cluster_spec().as_dict().get("worker", [])


def remote_hosts(strategy: tf.distribute.Strategy) -> list[str]:
    """HOST:PORT of the hosts whose TPU `strategy` drives from another process, in the order of their numbers."""
    return _addresses(strategy.cluster_resolver)


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` computes on TPUs, where XLA compiles everything by itself."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def num_hosts(strategy: tf.distribute.Strategy) -> int:
    """Hosts that feed the replicas, each its own rows."""
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return cluster_from_environment().workers
    return len(remote_hosts(strategy)) or (strategy.extended.num_hosts if is_tpu(strategy) else 1)


def same_on_all_hosts(strategy: tf.distribute.Strategy, value: int) -> bool:
    """Whether all hosts that train together call this with one and the same `value`."""

    def sums() -> tf.Tensor:
        # Equal, and only then: n times the sum of squares is the square of the sum (Cauchy-Schwarz).
        values = tf.constant([1.0, value, float(value) ** 2], tf.float64)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    results = strategy.run(tf.function(sums, autograph=False))
    count, total, squares = strategy.experimental_local_results(results)[0].numpy()
    return count * squares == total**2
