"""Verb host-server: lets a process on another host use this host's chips; for slices of several hosts."""

from __future__ import annotations

import os
import signal

from tpu_trainer.cloud.config import HostServerConfig

GRACE_SECONDS = 110
"""After SIGTERM, the time to save the state of the run. host_start.sh's --stop-timeout is longer."""


def main(config: HostServerConfig) -> None:
    """Serves until the process is ended, with the status of a process that the signal has ended.

    When its machine is taken away, all hosts get SIGTERM at the same time. The first one needs the others' chips to
    save its state, so SIGTERM ends this process after GRACE_SECONDS; a second signal, or Ctrl-C, ends it at once.
    """
    # All threads inherit the mask. As the first process of a container, it would never get a signal without waiting.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # The name that TPUClusterResolver gives the hosts of a TPU.
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": list(config.addresses.split(","))})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=config.index, protocol="grpc")
    print(f"host-server: {server.target}, number {config.index} of {cluster.num_tasks('worker')}", flush=True)
    number = signal.sigwait(signals)
    print(f"host-server: {signal.Signals(number).name}", flush=True)
    if number == signal.SIGTERM:
        signal.sigtimedwait(signals, GRACE_SECONDS)
    # At once: the end of the interpreter may wait for the other hosts.
    os._exit(128 + number)
