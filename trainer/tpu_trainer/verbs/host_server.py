"""The host-server verb: serves this host's chips to the process that trains, in slices of several hosts."""

from __future__ import annotations

import os
import signal

from tpu_trainer.cloud.config import HostServerConfig

GRACE_SECONDS = 110
"""Seconds to serve after SIGTERM, while the run's state is saved. host_start.sh's --stop-timeout is longer."""


def main(config: HostServerConfig) -> None:
    """Serves until a signal ends the process; the exit status is that of the signal.

    If the machines are taken away, all hosts get SIGTERM at the same time. The first host needs the others' chips to
    save the run's state, so SIGTERM ends this process after GRACE_SECONDS; a second signal, or Ctrl-C, ends it at once.
    """
    # All threads inherit the mask. The first process of a container gets only signals that it waits for.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    import tensorflow as tf

    # TPUClusterResolver calls the hosts of a TPU workers.
    cluster = tf.train.ClusterSpec({"worker": list(config.addresses.split(","))})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=config.index, protocol="grpc")
    print(f"host-server: {server.target}, number {config.index} of {cluster.num_tasks('worker')}", flush=True)
    number = signal.sigwait(signals)
    print(f"host-server: {signal.Signals(number).name}", flush=True)
    if number == signal.SIGTERM:
        signal.sigtimedwait(signals, GRACE_SECONDS)
    # A regular exit of the interpreter may wait for the other hosts.
    os._exit(128 + number)
