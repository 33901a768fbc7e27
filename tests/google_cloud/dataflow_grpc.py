"""The jobs of the stand-in for Dataflow by gRPC over TLS, as Dataflow's own clients ask for them by default."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from google.cloud import dataflow_v1beta3 as api

from tests.google_cloud.dataflow import Dataflow, Refusal

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    501: grpc.StatusCode.UNIMPLEMENTED,
}


@contextlib.contextmanager
def serving(dataflow: Dataflow, address: str, folder: Path) -> Iterator[None]:
    """Serves the jobs of `dataflow`.

    Args:
        dataflow: The stand-in.
        address: ADDRESS:PORT.
        folder: With the server's certificate, see `private_network.certificate`.
    """
    key, certificate = (folder / name for name in ("key.pem", "ca.pem"))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers(_handlers(dataflow))
    assert server.add_secure_port(address, credentials), address
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()


def _handlers(dataflow: Dataflow) -> list[grpc.GenericRpcHandler]:
    calls = {
        "JobsV1Beta3": [
            ("CreateJob", dataflow.create_job, api.CreateJobRequest, api.Job),
            ("GetJob", dataflow.get_job, api.GetJobRequest, api.Job),
            ("ListJobs", dataflow.list_jobs, api.ListJobsRequest, api.ListJobsResponse),
            ("UpdateJob", dataflow.update_job, api.UpdateJobRequest, api.Job),
        ],
        "MessagesV1Beta3": [
            (
                "ListJobMessages",
                dataflow.list_job_messages,
                api.ListJobMessagesRequest,
                api.ListJobMessagesResponse,
            )
        ],
        "MetricsV1Beta3": [
            ("GetJobMetrics", dataflow.get_job_metrics, api.GetJobMetricsRequest, api.JobMetrics)
        ],
    }
    return [
        grpc.method_handlers_generic_handler(
            f"google.dataflow.v1beta3.{service}",
            {
                name: grpc.unary_unary_rpc_method_handler(
                    _refusing(call), request.deserialize, response.serialize
                )
                for name, call, request, response in methods
            },
        )
        for service, methods in calls.items()
    ]


def _refusing(call: Callable) -> Callable:
    """Returns a handler that sends refusals as gRPC does."""

    def handle(request, context: grpc.ServicerContext):
        try:
            return call(request)
        except Refusal as refusal:
            context.abort(_CODES[refusal.status], refusal.message)

    return handle
