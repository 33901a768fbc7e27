"""Beam's pool of Python workers, for task managers that share it.

Each task manager numbers its workers itself, so several have the same number. Beam's pool would stop the newest of them
when another task manager asks it to stop its own, and the job that needs this worker would wait for it forever.
"""

from __future__ import annotations

import sys

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import worker_pool_main


class _SharedPool(worker_pool_main.BeamFnExternalWorkerPoolServicer):
    def StopWorker(
        self, stop_worker_request: beam_fn_api_pb2.StopWorkerRequest, unused_context: object
    ) -> beam_fn_api_pb2.StopWorkerResponse:
        """Does nothing: a worker ends with its connection to its task manager."""
        return beam_fn_api_pb2.StopWorkerResponse()


if __name__ == "__main__":
    worker_pool_main.BeamFnExternalWorkerPoolServicer = _SharedPool
    worker_pool_main.main(sys.argv)
