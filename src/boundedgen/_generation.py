"""One caller's handle on a generation: for threads and for asyncio, every method thread-safe."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from datetime import timedelta
from typing import Any, final

from attrs import evolve

from boundedgen._arguments import kind_of
from boundedgen._bounds import Bounds, Deadline, patience
from boundedgen._completion import Chunk, Completion, Reclamation
from boundedgen._driver import Driver
from boundedgen._errors import ERROR_OF, BoundedGenError, DeadlineExceeded, FinishReason, GenerationError
from boundedgen._flow import Flow
from boundedgen.abc import Clock


def refuse_to_block(awaitable: str) -> None:
    """Calls that wait would stop a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this would block the running event loop; use {awaitable}")


@final
class Generation:
    """A sequence from submit to its answer.

    `for chunk in g` or `async for chunk in g` streams it, to one reader; `g.result()` or `await g` gives the whole, to
    any number. A normal end ends the iteration; every other end raises its GenerationError, with the partial output.
    `with g:` or `async with g:` is the way to hold one: leaving cancels it. Abandoning it otherwise (its iterator
    closed or collected, a task cancelled inside `await g` or `async for`, the last reference dropped) cancels it too.

    So `asyncio.wait_for(g, 5)` cancels the generation after 5 s, since it cancels the `await g` inside. To end only the
    wait use `await g.wait(5)`, which tells whether it is settled, or in a thread `g.result(5)`; to end the generation
    in time, with its partial output, give it `bounds`.
    """

    def __init__(self, flow: Flow, driver: Driver, clock: Clock) -> None:
        self._flow = flow
        self._driver = driver
        self._clock = clock
        self._bounds = flow.submission.bounds
        self._stream: weakref.ref[_Stream] | None = None
        self._beginning = threading.RLock()  # of a stream; readers among themselves

    # --- what is known about it ----------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Unique in its pipeline; never used again."""
        return self._flow.submission.id

    @property
    def label(self) -> str:
        """The caller's, as given to `submit`."""
        return self._flow.submission.label

    @property
    def owner(self) -> str:
        """The lease's, else the caller's."""
        return self._flow.submission.owner

    @property
    def phase(self) -> str:
        """One of "waiting", "running" and "settled"."""
        if self._flow.settled is not None:
            return "settled"
        return "running" if self._flow.inside else "waiting"

    @property
    def bounds(self) -> Bounds:
        """The effective bounds: the tighter of the pipeline's and the call's, as tightened since."""
        return self._bounds

    @property
    def deadline(self) -> Deadline:
        """The earlier of `total` and, while it waits for its first admission, `queued`; monotonic."""
        submitted, bounds = self._flow.submission.submitted_at, self._bounds
        assert bounds.total is not None, "the pipeline's own is finite"
        total = Deadline(submitted + bounds.total, "total")
        if bounds.queued is None or self._flow.admitted_at is not None:
            return total
        return min(total, Deadline(submitted + bounds.queued, "queued"), key=lambda d: d.at)

    @property
    def remaining_s(self) -> float:
        """Seconds until `deadline`; 0 once it is settled or due."""
        return 0.0 if self._flow.done else max(0.0, self.deadline.at - self._clock.now())

    @property
    def max_new_tokens(self) -> int:
        """The length that applies: defaulted, converted and clamped."""
        return self._flow.submission.max_new_tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        """None until it is settled."""
        settled = self._flow.settled
        return None if settled is None else FinishReason(settled.reason)

    @property
    def partial(self) -> Completion:
        """The output so far. Takes nothing from the stream."""
        return self._flow.completion()

    # --- what can be done to it ----------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Ask for its end; returns at once. False: it was settled before, and nothing changes.

        After True it can still end otherwise, if that end was already on its way.
        """
        if self._flow.done or self._driver.foreign:
            return False
        self._driver.post("cancel", self.id)
        return True

    def tighten(self, bounds: Bounds) -> None:
        """Shrink its `bounds`: `total` counts from submit, the others from now. A looser bound changes nothing."""
        if not isinstance(bounds, Bounds):
            raise TypeError(f"bounds must be a Bounds, not {kind_of(bounds)}")
        now = self._clock.now()
        waited = now - self._flow.submission.submitted_at
        later = {
            name: None if value is None else value + waited
            for name, value in (("queued", bounds.queued), ("first_token", bounds.first_token))
        }
        self._bounds = self._bounds.tightest(evolve(bounds, **later))
        self._driver.post("tighten", self.id, bounds, now)

    # --- waiting for it ------------------------------------------------------------------------------------------

    def result(self, timeout: float | timedelta | None = None) -> Completion:
        """The completion, once it is there. Raises its GenerationError.

        Plain TimeoutError after `timeout` (seconds or timedelta; 0 or less: it only looks): it ends only this wait.
        None: as long as its bounds allow.
        """
        return self._result(timeout, "this ends only the wait")

    def _result(self, timeout: float | timedelta | None, then: str) -> Completion:
        within = patience(timeout)
        if not self._flow.done:
            if within is None or within > 0:
                refuse_to_block("'await generation'")
            self._driver.check_process()
            with self._flow.reader():
                if not self._flow.wakers.wait(lambda: self._flow.done, within):
                    raise TimeoutError(f"generation {self.id} was not settled within {within} s; {then}")
        return self._completion()

    async def wait(self, timeout: float | timedelta | None = None) -> bool:
        """True once it is settled, False after `timeout` seconds. Its end, or its cancellation, ends only this wait."""
        within = patience(timeout)
        with self._flow.reader(asyncio.get_running_loop().is_closed):
            return await self._flow.wakers.until(lambda: self._flow.done, within)

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._settled().__await__()

    async def _settled(self) -> Completion:
        try:
            await self.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._completion()

    def _completion(self) -> Completion:
        self._raise_if_abnormal()
        return self._flow.completion()

    def _raise_if_abnormal(self) -> None:
        reason = self.finish_reason
        assert reason is not None
        if not reason.normal:
            raise self._error(reason, self._flow.completion())

    def _error(self, reason: FinishReason, partial: Completion) -> BoundedGenError:
        """A fresh one for each who asks, since raising one changes it."""
        settled = self._flow.settled
        assert settled is not None
        kind = ERROR_OF[reason]
        if not issubclass(kind, GenerationError):
            return kind(settled.detail)
        about = f"generation {self.id}" + (f" ({self.label})" if self.label else "")
        known: dict[str, Any] = {"generation_id": self.id, "partial": partial, "detail": settled.detail}
        if kind is DeadlineExceeded:
            known["deadline"] = Deadline(settled.deadline, settled.bound)
            why = f"; {settled.detail}" if settled.detail else ""
            early = self._flow.submission.submitted_at + partial.total_s < settled.deadline
            end = "was not let in any more" if early else f"reached its bound {settled.bound!r}"
            return kind(f"{about} {end} after {partial.total_s:.2f} s{why}", **known)
        return kind(f"{about} ended {reason.name}" + (f": {settled.detail}" if settled.detail else ""), **known)

    def wait_reclaimed(self, timeout: float | timedelta | None = None) -> Reclamation:
        """Proof that the engine let go of it. TimeoutError if there is none within `timeout` seconds.

        None: until there is one, or the pipeline has ended (TimeoutError).
        """
        within = patience(timeout)
        if not self._reclaim_decided():
            refuse_to_block("'await generation.await_reclaimed()'")
            self._driver.check_process()
            self._flow.wakers.wait(self._reclaim_decided, within)
        return self._reclamation(within)

    async def await_reclaimed(self, timeout: float | timedelta | None = None) -> Reclamation:
        """`wait_reclaimed` for a coroutine, with the same `timeout`."""
        within = patience(timeout)
        await self._flow.wakers.until(self._reclaim_decided, within)
        return self._reclamation(within)

    def _reclaim_decided(self) -> bool:
        """There is a proof, or nobody is left who could bring one."""
        return self._flow.reclaimed is not None or self._driver.over

    def _reclamation(self, within: float | None) -> Reclamation:
        if self._flow.reclaimed is None:
            until = "before the pipeline ended" if self._driver.over else f"within {within} s"
            raise TimeoutError(f"generation {self.id}: no proof of release {until}")
        return self._flow.reclaimed

    # --- streaming it --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Chunk]:
        refuse_to_block("'async for'")
        return self._begin()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._begin()

    def _begin(self) -> _Stream:
        self._driver.check_process()
        with self._beginning:
            current = None if self._stream is None else self._stream()
            if current is not None and not current.closed:
                raise RuntimeError(f"generation {self.id} has one stream, and it is being read already")
            stream = _Stream(self)
            self._stream = weakref.ref(stream)  # held only by its reader: dropping it is noticed at once
            return stream

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # half-built, or the interpreter is ending
            self.cancel()

    def __repr__(self) -> str:
        return f"<Generation {self.id} {self.label!r} {self.phase} {len(self._flow.token_ids)} tokens>"


class _Stream:
    """The one stream, for either way of iterating. Closing it, or losing it, cancels its generation."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._flow = generation._flow
        self._flow.begin_reading()
        self.closed = False

    def __iter__(self) -> _Stream:
        return self

    def __aiter__(self) -> _Stream:
        return self

    def __next__(self) -> Chunk:
        refuse_to_block("'async for'")
        while True:
            with self._flow.reader():
                self._flow.news_wakers.wait(lambda: self._flow.news)
            if (chunk := self._next()) is not None:
                return chunk
            if self.closed:
                raise StopIteration

    async def __anext__(self) -> Chunk:
        while True:
            try:
                with self._flow.reader(asyncio.get_running_loop().is_closed):
                    await self._flow.news_wakers.until(lambda: self._flow.news)
            except asyncio.CancelledError:
                self.close()
                raise
            if (chunk := self._next()) is not None:
                return chunk
            if self.closed:
                raise StopAsyncIteration

    def _next(self) -> Chunk | None:
        """What there is; None: nothing yet, or, with `closed`, nothing any more. An abnormal end raises."""
        done = self._flow.done  # before taking: what comes with the end is taken too
        chunk = None if self.closed else self._flow.take()
        if chunk is None and done:
            over, self.closed = self.closed, True
            if not over:
                self._generation._raise_if_abnormal()
        return chunk

    def close(self) -> None:
        """Stop reading: the generation is cancelled."""
        if not self.closed:
            self.closed = True
            self._generation.cancel()

    async def aclose(self) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def outcomes(generations: Iterable[Generation], *, return_errors: bool) -> list[Completion | BoundedGenError]:
    """What each comes to, in order. An error is raised, or stands in its place; leaving early cancels the rest."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(generation) for generation in generations]
        return [_outcome(generation, return_errors) for generation in held]


async def aoutcomes(generations: Iterable[Generation], *, return_errors: bool) -> list[Completion | BoundedGenError]:
    """`outcomes` for a coroutine."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(generation) for generation in generations]
        found = []
        for generation in held:
            await generation.wait()
            found.append(_outcome(generation, return_errors))
        return found


def _outcome(generation: Generation, return_errors: bool) -> Completion | BoundedGenError:
    try:
        return generation.result()
    except BoundedGenError as error:
        if return_errors:
            return error
        raise
