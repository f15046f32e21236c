"""Every public exception, whose fault it is, and what a server should answer.

`Rejected`: nothing was started. `GenerationError`: it was started and ended without its result; the partial output
is on `.partial`. `LeaseExpired`: the lease is over. No message, repr or log line holds text of a prompt.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

if TYPE_CHECKING:
    from boundedgen._bounds import Deadline
    from boundedgen._completion import Completion


@final
class FinishReason(enum.StrEnum):
    """Why a generation ended. STOP and LENGTH are normal; every other one has exactly one error."""

    STOP = "stop"  #: the model's end, or a stop string
    LENGTH = "length"  #: `max_new_tokens` reached
    REJECTED = "rejected"  #: what could only be found out later: a grammar that does not compile
    CANCELLED = "cancelled"  #: by its caller
    DEADLINE = "deadline"  #: a bound was reached
    LEASE = "lease"  #: its lease expired or was revoked
    ENGINE_LOST = "engine_lost"  #: the engine died with it inside
    QUARANTINED = "quarantined"  #: two engines failed on it (RestartPolicy.resume)
    ENGINE_FAILED = "engine_failed"  #: the pipeline gave up on its engine
    CACHE_EXHAUSTED = "cache_exhausted"  #: the engine had no cache block for it
    SLOW_READER = "slow_reader"  #: its reader left text unread
    SHUTDOWN = "shutdown"  #: the pipeline was closed
    INTERNAL = "internal"  #: a bug in this library

    @property
    def normal(self) -> bool:
        """True for STOP and LENGTH: the generation has its whole result."""
        return self in (FinishReason.STOP, FinishReason.LENGTH)


class BoundedGenError(Exception):
    """Base of every error of this library. All of them pickle; none has text of a prompt in its message or repr."""

    http_status_hint: ClassVar[int] = 500  #: what a server should answer; 499, as nginx has it: the client is gone
    grpc_status_hint: ClassVar[str] = "INTERNAL"  #: the same for gRPC
    finish_reason: ClassVar[FinishReason | None] = None  #: of the generation; None: there was none
    retryable: bool = False  #: the same request can succeed later

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


def _rebuild(kind: type[BoundedGenError], message: str, state: dict[str, Any]) -> BoundedGenError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class Rejected(BoundedGenError):
    """Refused at the door: nothing was started, nobody else was touched."""

    http_status_hint = 400
    grpc_status_hint = "INVALID_ARGUMENT"
    finish_reason = FinishReason.REJECTED


class InvalidRequest(Rejected):
    """An argument is wrong. The message names the argument, the value and the remedy."""


@final
class NeverFits(Rejected):
    """Prompt and output can never fit a cache pool, however empty."""

    http_status_hint = 413
    grpc_status_hint = "OUT_OF_RANGE"
    needed: Mapping[str, int] = {}  #: blocks, by the name of the pool that is too small
    available: Mapping[str, int] = {}  #: blocks that this pool has when it is empty
    prompt_tokens_max: int = 0  #: of the longest prompt that fits beside the same max_new_tokens; 0: none does


@final
class Saturated(Rejected):
    """The queue, the owner's share or the number of leases is full, or its deadline would pass in the queue.

    Try again after `retry_after_s`. With `Admission(margin=None)` no deadline is a reason.
    """

    http_status_hint = 429
    grpc_status_hint = "RESOURCE_EXHAUSTED"
    retryable = True
    #: seconds, computed from what is ahead in the queue, how fast that moves and how many have been told to come back
    #: before (0.1 to 60; 1: not known yet; while the engine is replaced, from when the next one is expected), times
    #: something drawn from 1 to 1.5: those who were refused together come back one after the other, about twice as many
    #: in any time as can be served in it, the owners in turns
    retry_after_s: float = 1.0


@final
class PipelineClosed(Rejected):
    """The pipeline is closed or closing."""

    http_status_hint = 503
    grpc_status_hint = "UNAVAILABLE"


class EngineUnavailable(Rejected):
    """There is no engine: not yet, or, while it is replaced, none in time for the deadline, or never (subclasses).

    While it is replaced, who has the time waits; with `Admission(margin=None)` everybody does.
    """

    http_status_hint = 503
    grpc_status_hint = "UNAVAILABLE"
    retryable = True
    #: seconds, computed and drawn as those of Saturated are: when the engine is expected; None: not known, or never
    retry_after_s: float | None = None


@final
class EngineFailed(EngineUnavailable):
    """The restart budget is used up, the engine could not be removed, or it refuses its settings: the text says which.

    It does not heal: build a new pipeline, in a new process.
    """

    retryable = False


@final
class DeviceUnavailable(EngineUnavailable):
    """The device cannot be used. The message says which part is missing and what to install."""

    retryable = False


@final
class ModelLoadFailed(EngineUnavailable):
    """The model could not be loaded. The message carries the engine's own text."""

    retryable = False


class GenerationError(BoundedGenError):
    """A generation that was started ended without its result; `partial` holds what it had produced."""

    http_status_hint = 500
    generation_id: int = 0  #: `Generation.id`
    partial: Completion | None = None  #: what it had produced; its text may be empty
    detail: str = ""  #: more about the cause, in words


@final
class DeadlineExceeded(GenerationError, TimeoutError):
    """A bound was reached. `deadline` names it. For the bound `queued` nothing was computed yet: 503 and retryable.

    So it is for one that is not let in any more, since too little of its `total` is left (Admission.margin).
    """

    http_status_hint = 504
    grpc_status_hint = "DEADLINE_EXCEEDED"
    finish_reason = FinishReason.DEADLINE
    deadline: Deadline | None = None  #: the one that was reached; of one that is not let in any more, of its `total`

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message, **fields)
        if self.deadline is not None and self.deadline.bound == "queued":
            self.__dict__.update(http_status_hint=503, grpc_status_hint="UNAVAILABLE", retryable=True)


@final
class GenerationCancelled(GenerationError):
    """Its caller cancelled or abandoned it."""

    http_status_hint = 499
    grpc_status_hint = "CANCELLED"
    finish_reason = FinishReason.CANCELLED


@final
class LeaseLost(GenerationError):
    """Its lease expired or was revoked: the owner stopped proving that it is there."""

    http_status_hint = 499
    grpc_status_hint = "CANCELLED"
    finish_reason = FinishReason.LEASE


@final
class EngineLost(GenerationError):
    """The engine died or was killed with this generation inside. Another try may succeed."""

    http_status_hint = 503
    grpc_status_hint = "UNAVAILABLE"
    retryable = True
    finish_reason = FinishReason.ENGINE_LOST


@final
class GenerationQuarantined(GenerationError):
    """Two engines failed on this generation; it is not tried again (only with `RestartPolicy(resume="continue")`)."""

    finish_reason = FinishReason.QUARANTINED


@final
class GenerationEngineFailed(GenerationError):
    """The pipeline gave up on its engine while this generation was waiting or running."""

    http_status_hint = 503
    grpc_status_hint = "UNAVAILABLE"
    finish_reason = FinishReason.ENGINE_FAILED


@final
class CacheExhausted(GenerationError):
    """The engine ran out of cache blocks under this generation."""

    http_status_hint = 503
    grpc_status_hint = "UNAVAILABLE"
    retryable = True
    finish_reason = FinishReason.CACHE_EXHAUSTED


@final
class SlowReader(GenerationError):
    """Its reader began, then left text unread for `Limits.unread`."""

    http_status_hint = 499
    grpc_status_hint = "CANCELLED"
    finish_reason = FinishReason.SLOW_READER


@final
class GenerationShutDown(GenerationError):
    """The pipeline was closed. Another pipeline may serve it."""

    http_status_hint = 503
    grpc_status_hint = "UNAVAILABLE"
    retryable = True
    finish_reason = FinishReason.SHUTDOWN


@final
class GenerationInternalError(GenerationError):
    """A bug in this library. Please report it with `detail`."""

    finish_reason = FinishReason.INTERNAL


@final
class LeaseExpired(BoundedGenError):
    """The lease is over, or never existed: both look alike, since its id is a bearer token."""

    http_status_hint = 410
    grpc_status_hint = "FAILED_PRECONDITION"


#: Each abnormal end has exactly one error (REJECTED: the `Rejected` that the check found).
ERROR_OF: Mapping[FinishReason, type[BoundedGenError]] = {
    FinishReason.REJECTED: InvalidRequest,
    FinishReason.CANCELLED: GenerationCancelled,
    FinishReason.DEADLINE: DeadlineExceeded,
    FinishReason.LEASE: LeaseLost,
    FinishReason.ENGINE_LOST: EngineLost,
    FinishReason.QUARANTINED: GenerationQuarantined,
    FinishReason.ENGINE_FAILED: GenerationEngineFailed,
    FinishReason.CACHE_EXHAUSTED: CacheExhausted,
    FinishReason.SLOW_READER: SlowReader,
    FinishReason.SHUTDOWN: GenerationShutDown,
    FinishReason.INTERNAL: GenerationInternalError,
}
