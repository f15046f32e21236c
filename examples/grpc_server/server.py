"""The calls: a deadline becomes bounds, a cancellation ends the generation, and every end has its status."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

import boundedgen as b
from examples.grpc_server.probes import LaneHealth
from examples.grpc_server.statuses import status_of
from examples.grpc_server.wire import protos, services

#: s: the caller's own clock ends the call at its deadline, without a word of ours. So much earlier we say what it was.
HEADROOM = 0.1
#: A peer that does not answer for so long is gone, also where no connection was closed. It may be a proxy: leases.
KEEPALIVE = (("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000))


class Lane:
    """The service of generation.proto, over one pipeline."""

    def __init__(self, pipeline: b.BoundedPipeline) -> None:
        self._pipeline = pipeline

    async def Generate(self, asked: Any, context: grpc.aio.ServicerContext) -> None:  # noqa: N802 - as in the .proto
        """Writes, and does not yield: whatever it waits for, gRPC's cancellation arrives in the `async with`."""
        try:
            async with await self._submit(asked, context) as generation:
                async for chunk in generation:
                    if chunk.text:
                        await context.write(protos.Piece(text=chunk.text))
                await context.write(protos.Piece(end=end_of(await generation)))
        except b.BoundedGenError as error:
            await context.abort(*status_of(error, self._pipeline.health()))

    async def _submit(self, asked: Any, context: grpc.aio.ServicerContext) -> b.Generation:
        length = {"max_new_tokens": asked.max_new_tokens} if asked.max_new_tokens else {}
        return await self._pipeline.asubmit(
            asked.prompt,
            bounds=bounds_of(asked, context.time_remaining()),
            owner="" if asked.lease else asked.owner,
            lease=asked.lease or None,
            traceparent=dict(context.invocation_metadata() or ()).get("traceparent"),
            apply_chat_template=asked.apply_chat_template,
            ignore_eos=asked.ignore_eos,
            **length,
        )


def bounds_of(asked: Any, left: float | None) -> b.Bounds:
    """`left`: seconds to the deadline of the call; None: it has none, and the pipeline's own bounds hold."""
    total = None if left is None else left - min(HEADROOM, left / 10)
    try:
        return b.Bounds(total=total, queued=asked.queued_s or None, next_token=asked.next_token_s or None)
    except ValueError as error:
        raise b.InvalidRequest(str(error)) from None


def end_of(answer: b.Completion) -> Any:
    return protos.End(
        finish_reason=str(answer.finish_reason),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )


def serving(pipeline: b.BoundedPipeline, address: str) -> tuple[grpc.aio.Server, int]:
    """A server that is to be started, and its port. `address`: "127.0.0.1:0" takes one that is free.

    No `maximum_concurrent_rpcs`: who has to wait, waits in the lane, which knows for how long.
    """
    server = grpc.aio.server(options=KEEPALIVE)
    services.add_LaneServicer_to_server(Lane(pipeline), server)
    health_pb2_grpc.add_HealthServicer_to_server(LaneHealth(pipeline), server)
    return server, server.add_insecure_port(address)
