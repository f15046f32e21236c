"""How a call ends that has no whole answer: an error as status code, text and trailing metadata, and back."""

from __future__ import annotations

import math
import time
from typing import Any

import grpc

import boundedgen as b
from examples.grpc_server.wire import BOUND, ERROR, PUSHBACK, RETRYABLE

Trailing = tuple[tuple[str, str], ...]


def status_of(error: b.BoundedGenError, health: b.Health) -> tuple[grpc.StatusCode, str, Trailing]:
    """What to give to `context.abort`.

    When to come again is what the error says; of a lost engine, when the next one is expected.
    """
    trailing = {ERROR: type(error).__name__, RETRYABLE: str(error.retryable).lower()}
    if isinstance(error, b.DeadlineExceeded) and error.deadline is not None:
        trailing[BOUND] = error.deadline.bound
    wait = getattr(error, "retry_after_s", None) or health.retry_after_s
    if error.retryable and wait:
        trailing[PUSHBACK] = str(math.ceil(1000 * wait))
    return grpc.StatusCode[error.grpc_status_hint], str(error), tuple(trailing.items())


def error_of(failed: grpc.aio.AioRpcError) -> b.BoundedGenError:
    """What the server raised. Without its word it is gRPC's own: nobody there, the deadline, a cancellation."""
    told = {str(key): str(value) for key, value in failed.trailing_metadata() or ()}
    text = failed.details() or failed.code().name
    kind = getattr(b, told.get(ERROR, ""), None)
    if kind is None:
        kind = OF_ITS_OWN.get(failed.code(), b.GenerationInternalError)
    fields: dict[str, Any] = {}
    if PUSHBACK in told:
        fields["retry_after_s"] = int(told[PUSHBACK]) / 1000
    if issubclass(kind, b.DeadlineExceeded):
        fields["deadline"] = b.Deadline(at=time.monotonic(), bound=told.get(BOUND, "total"))
    found = kind(text, **fields)
    assert isinstance(found, b.BoundedGenError)
    return found


OF_ITS_OWN: dict[grpc.StatusCode, type[b.BoundedGenError]] = {
    grpc.StatusCode.UNAVAILABLE: b.EngineUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: b.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: b.GenerationCancelled,
    grpc.StatusCode.RESOURCE_EXHAUSTED: b.Saturated,
}
