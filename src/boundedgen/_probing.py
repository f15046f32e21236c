"""probe(): one generation at a time, shared by all who ask meanwhile; a timeout is a failure, never "inconclusive".

The pipeline itself asks too, when its lane is idle (`Limits.probe_idle`). Nobody waits for the answer then; it is there
to be looked at.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from boundedgen._arguments import short
from boundedgen._bounds import Seconds, patience
from boundedgen._errors import BoundedGenError, FinishReason
from boundedgen._flow import Flow
from boundedgen._stats import ProbeResult, ProbeVerdict

if TYPE_CHECKING:
    from boundedgen._generation import Generation

TOTAL = 600.0  #: seconds that an attempt may last while there is always somebody who waits for it


@define(eq=False)
class _Attempt:
    started: float
    generation: "Generation | str | BoundedGenError"
    asking: int = 0  #: callers that wait for it; one more if it is the pipeline's own


@frozen
class Verdict:
    result: ProbeResult
    at: float  #: monotonic

    def shown(self, now: float) -> dict[str, Any]:
        """The fields of stats and of health."""
        age = max(0.0, now - self.at)
        return {"last_probe": self.result.verdict, "last_probe_s": self.result.seconds, "last_probe_age_s": age}


class Probing:
    """`start(timeout)` gives a generation, or the reason why there is none; `now` is monotonic seconds.

    `beside` has something done in another thread; `own_timeout` is the pipeline's own patience, in seconds.
    """

    def __init__(
        self,
        start: Callable[[float], "Generation | str"],
        beside: Callable[[Callable[[], object]], object],
        own_timeout: float,
        now: Callable[[], float],
    ) -> None:
        self._start = start
        self._beside = beside
        self._own_timeout = own_timeout
        self._now = now
        self._attempt: _Attempt | None = None
        self._own: _Attempt | None = None  # the pipeline's latest
        self._told: Verdict | None = None  # the latest to a caller, or before the pipeline's own latest
        self._beginning = threading.RLock()  # probing callers among themselves

    # --- the pipeline's own ---------------------------------------------------------------------------------------

    def due(self) -> None:
        """By the driver, which waits for nothing: the lane is idle."""
        self._beside(self._try)

    def _try(self) -> None:
        with self._beginning:
            if self._attempt is not None and not _done(self._attempt):
                return
            attempt = self._begin(self._own_timeout)
            if not isinstance(attempt.generation, BoundedGenError):  # else it was refused, which tells of no engine
                attempt.asking = 1  # for good: it ends with its deadline
                self._told = self.last()  # until that of this one is known
                self._attempt = self._own = attempt

    def last(self) -> Verdict | None:
        """The latest there is; None: never. From any thread, at once."""
        own, told = self._own, self._told
        if own is None or not _done(own):
            return told
        verdict = _verdict(own, own.started)
        return told if told is not None and told.at > verdict.at else verdict

    # --- callers -------------------------------------------------------------------------------------------------

    def run(self, timeout: Seconds) -> ProbeResult:
        until = self._now() + (within := _finite(timeout))
        while True:
            with self._asking(within) as attempt:
                if (flow := _flow(attempt)) is not None:
                    flow.wakers.wait(lambda: _done(attempt), until - self._now())
                if not self._cut_off(attempt, until):
                    return self._conclude(attempt)

    async def arun(self, timeout: Seconds) -> ProbeResult:
        until = self._now() + (within := _finite(timeout))
        while True:
            with self._asking(within) as attempt:
                if (flow := _flow(attempt)) is not None:
                    await flow.wakers.until(lambda: _done(attempt), until - self._now())
                if not self._cut_off(attempt, until):
                    return self._conclude(attempt)

    def _cut_off(self, attempt: _Attempt, until: float) -> bool:
        """It was begun with less patience than this caller's, who still has some."""
        generation = attempt.generation
        if isinstance(generation, str | BoundedGenError) or self._now() >= until:
            return False
        return generation.finish_reason is FinishReason.DEADLINE

    @contextlib.contextmanager
    def _asking(self, timeout: float) -> Iterator[_Attempt]:
        """The attempt that is under way, else a new one. It ends with the last who asks, each after his own timeout."""
        with self._beginning:
            attempt = self._attempt
            if attempt is None or _done(attempt):
                attempt = self._attempt = self._begin(max(timeout, TOTAL))
            attempt.asking += 1
        try:
            yield attempt
        finally:
            self._leave(attempt)

    def _leave(self, attempt: _Attempt) -> None:
        with self._beginning:
            attempt.asking -= 1
            if attempt.asking or _done(attempt):
                return
            if self._attempt is attempt:
                self._attempt = None
        if not isinstance(attempt.generation, str | BoundedGenError):
            attempt.generation.cancel()

    def _hasty(self, attempt: _Attempt) -> bool:
        """Given up before it could have been admitted, which is nothing against the lane."""
        flow = _flow(attempt)
        lasted = self._now() - attempt.started
        return flow is not None and flow.admitted_at is None and lasted < self._own_timeout

    def _begin(self, timeout: float) -> _Attempt:
        started = self._now()
        try:
            return _Attempt(started, self._start(timeout))
        except BoundedGenError as error:
            return _Attempt(started, error)

    def _conclude(self, attempt: _Attempt) -> ProbeResult:
        verdict = _verdict(attempt, self._now())
        if not isinstance(attempt.generation, BoundedGenError) and not self._hasty(attempt):
            with self._beginning:
                if self._told is None or self._told.at <= verdict.at:
                    self._told = verdict
        return verdict.result


def _verdict(attempt: _Attempt, now: float) -> Verdict:
    """Of one that is over, or is given up `now`."""
    generation, seconds = attempt.generation, now - attempt.started
    if isinstance(generation, str):
        return Verdict(ProbeResult(verdict=ProbeVerdict.NOT_RUN, seconds=seconds, reason=generation), now)
    if isinstance(generation, BoundedGenError):
        return Verdict(ProbeResult(verdict=ProbeVerdict.FAILED, seconds=seconds, reason=str(generation)), now)
    reason, at = generation.finish_reason, generation._flow.settled_at
    if reason is not None and at is not None:
        now, seconds = at, at - generation._flow.submission.submitted_at
    if reason is not None and reason.normal:
        return Verdict(ProbeResult(verdict=ProbeVerdict.OK, seconds=seconds), now)
    late = reason in (None, FinishReason.DEADLINE)
    why = f"no token within {seconds:.1f} s" if late or reason is None else f"ended {reason.name}"
    return Verdict(ProbeResult(verdict=ProbeVerdict.FAILED, seconds=seconds, reason=why), now)


def _finite(timeout: Seconds) -> float:
    within = patience(timeout)
    if not within:
        raise ValueError(f"timeout is {short(timeout)}; a probe needs finite seconds, more than 0")
    return within


def _flow(attempt: _Attempt) -> Flow | None:
    return None if isinstance(attempt.generation, str | BoundedGenError) else attempt.generation._flow


def _done(attempt: _Attempt) -> bool:
    return (flow := _flow(attempt)) is None or flow.done
