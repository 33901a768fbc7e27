"""Verb host-server: lets a process on another host use this host's chips; for slices of several hosts."""

from __future__ import annotations

from tpu_trainer.cloud.config import HostServerConfig


def main(config: HostServerConfig) -> None:
    """Serves until the process is ended."""
    # The name that TPUClusterResolver gives the hosts of a TPU.
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": list(config.addresses.split(","))})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=config.index, protocol="grpc")
    print(f"host-server: {server.target}, number {config.index} of {cluster.num_tasks('worker')}", flush=True)
    server.join()
