"""probe(): one generation at a time, shared by all who ask meanwhile; a timeout is a failure, never "inconclusive"."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from attrs import define

from boundedgen._arguments import short
from boundedgen._bounds import Seconds, patience
from boundedgen._errors import BoundedGenError
from boundedgen._stats import ProbeResult, ProbeVerdict

if TYPE_CHECKING:
    from boundedgen._generation import Generation

TOTAL = 600.0  #: seconds that an attempt may last while there is always somebody who waits for it


@define(eq=False)
class _Attempt:
    started: float
    generation: "Generation | str | BoundedGenError"
    asking: int = 0  #: callers that wait for it


class Probing:
    """`start(timeout)` gives a generation, or the reason why there is none; `now` is monotonic seconds."""

    def __init__(self, start: Callable[[float], "Generation | str"], now: Callable[[], float]) -> None:
        self._start = start
        self._now = now
        self._attempt: _Attempt | None = None
        self._beginning = threading.RLock()  # probing callers among themselves

    def run(self, timeout: Seconds) -> ProbeResult:
        within = _finite(timeout)
        with self._asking(within) as attempt:
            if not isinstance(attempt.generation, str | BoundedGenError):
                attempt.generation._flow.wakers.wait(lambda: _done(attempt), within)
            return self._conclude(attempt)

    async def arun(self, timeout: Seconds) -> ProbeResult:
        within = _finite(timeout)
        with self._asking(within) as attempt:
            if not isinstance(attempt.generation, str | BoundedGenError):
                await attempt.generation._flow.wakers.until(lambda: _done(attempt), within)
            return self._conclude(attempt)

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

    def _begin(self, timeout: float) -> _Attempt:
        started = self._now()
        try:
            return _Attempt(started, self._start(timeout))
        except BoundedGenError as error:
            return _Attempt(started, error)

    def _conclude(self, attempt: _Attempt) -> ProbeResult:
        seconds = self._now() - attempt.started
        generation = attempt.generation
        if isinstance(generation, str):
            return ProbeResult(verdict=ProbeVerdict.NOT_RUN, seconds=seconds, reason=generation)
        if isinstance(generation, BoundedGenError):
            return ProbeResult(verdict=ProbeVerdict.FAILED, seconds=seconds, reason=str(generation))
        reason = generation.finish_reason
        if reason is not None and reason.normal:
            return ProbeResult(verdict=ProbeVerdict.OK, seconds=generation.partial.total_s)
        why = f"no token within {seconds:.1f} s" if reason is None else f"ended {reason.name}"
        return ProbeResult(verdict=ProbeVerdict.FAILED, seconds=seconds, reason=why)


def _finite(timeout: Seconds) -> float:
    within = patience(timeout)
    if not within:
        raise ValueError(f"timeout is {short(timeout)}; a probe needs finite seconds, more than 0")
    return within


def _done(attempt: _Attempt) -> bool:
    return isinstance(attempt.generation, str | BoundedGenError) or attempt.generation._flow.done
