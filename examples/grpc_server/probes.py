"""grpc.health.v1, for Kubernetes' gRPC probes and for clients that watch: computed when asked, never a step behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import boundedgen as b
from boundedgen.endpoints import Answer, liveness, readiness, startup

#: By the service that is asked for. "": the server as a whole, which is what balancers ask for.
ANSWERS: dict[str, Callable[[b.Health], Answer]] = {
    "": readiness,
    "boundedgen.example.Lane": readiness,
    "liveness": liveness,
    "startup": startup,
}
LOOKING_S = 0.25  #: how often a watched lane is looked at


class LaneHealth(health_pb2_grpc.HealthServicer):
    """The service of the package grpcio-health-checking, over `health()`."""

    def __init__(self, pipeline: b.BoundedPipeline) -> None:
        self._pipeline = pipeline

    async def Check(self, asked: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802 - as in the .proto
        if asked.service not in ANSWERS:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"one of {[*ANSWERS]}")
        return self._said(asked.service)

    async def Watch(self, asked: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802
        """What it is now, and then each change, until the caller leaves."""
        last = None
        while True:
            if (said := self._said(asked.service)) != last:
                await context.write(said)
                last = said
            await asyncio.sleep(LOOKING_S)

    def _said(self, service: str) -> Any:
        if service not in ANSWERS:
            status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        elif ANSWERS[service](self._pipeline.health()).status == 200:
            status = health_pb2.HealthCheckResponse.SERVING
        else:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status)
