"""A client. What its server refused is an error of this library again, so that `retrying` knows what to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc

import boundedgen as b
from examples.grpc_server.statuses import error_of
from examples.grpc_server.wire import protos, services


async def pieces(channel: grpc.aio.Channel, within: float | None, **asked: Any) -> AsyncGenerator[Any, None]:
    """Text, piece by piece; the last one has `end`. Leaving the iterator cancels the call, and so the generation."""
    call = services.LaneStub(channel).Generate(protos.Question(**asked), timeout=within)
    try:
        async for piece in call:
            yield piece
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from None
    finally:
        call.cancel()


async def ask(channel: grpc.aio.Channel, within: float, **asked: Any) -> str:
    """The whole answer, or the last error, after `within` seconds at the latest."""
    async for attempt in b.retrying(total=within):
        with attempt:
            return "".join([piece.text async for piece in pieces(channel, attempt.remaining_s, **asked)])
    raise AssertionError("the last attempt has an answer or an error")
