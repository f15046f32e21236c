"""What callers hold: every call ends in time, with its result or with an error of boundedgen, whatever lanes become.

A lane ends a generation in time by itself. What it cannot say any more, since its node is gone, and how long a call
waits for any lane at all, is watched here: Serve itself has no deadline for either.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from attrs import Factory, define, evolve
from ray.exceptions import ActorDiedError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException

import boundedgen as b
from examples.ray_serve.lane import Begun, Item

GRACE = 0.5  #: s after a deadline for the lane's own word of it, which says more than ours
LEASE_CALL = 10.0  #: s for a call about a lease
AGAIN = 1.0  #: s, when to come again if nothing is known


class Fleet:
    """One in each process that calls. `handle`: what `serve.run` or `serve.get_app_handle` returns."""

    def __init__(self, handle: Any, *, reserve: int = 64) -> None:
        self._handle = handle
        #: A node that dies sends away all that its lanes held, at once: `reserve` is for those.
        self._budget = b.RetryBudget(ratio=0.1, reserve=reserve)

    async def generate(
        self, prompt: object, *, bounds: b.Bounds, session: str = "", lease: str = "", **arguments: Any
    ) -> b.Completion:
        """The answer. Lost with its lane it is asked for anew, of another one, in what is left of `bounds.total`."""
        async for attempt in b.retrying(total=bounds.total, budget=self._budget):
            with attempt:
                left = evolve(bounds, total=attempt.remaining_s)
                stream = self.stream(prompt, bounds=left, session=session, lease=lease, **arguments)
                async with contextlib.aclosing(stream):
                    async for item in stream:
                        if isinstance(item, b.Completion):
                            return item
        raise AssertionError("the last attempt has an answer or an error")

    async def stream(
        self, prompt: object, *, bounds: b.Bounds, session: str = "", lease: str = "", **arguments: Any
    ) -> AsyncGenerator[b.Chunk | b.Completion, None]:
        """Chunks, and at the end the completion. `bounds.total` is needed. Leaving the iterator cancels it all.

        `arguments` are those of BoundedPipeline.submit; `lease` is one of this fleet; then `session` does not count.
        """
        lane, _, lease_id = lease.rpartition("/")
        given = {**arguments, **({"lease": lease_id} if lease else {})}
        handle = self._handle.options(method_name="generate", stream=True, session_id=session)
        call = Call(bounds=bounds, response=handle.remote(prompt, bounds=bounds, lane=lane, arguments=given))
        try:
            while not isinstance(item := await call.next(), b.Completion):
                if isinstance(item, b.Chunk):
                    yield item
            yield item
        finally:
            if not call.over:
                call.response.cancel()

    # --- leases ------------------------------------------------------------------------------------------------------

    async def lease(self, owner: str, *, ttl: float, session: str = "") -> str:
        """A lease of one lane, which calls under it go to. If that lane is lost, it is over: take another one."""
        return str(await self._asked("lease", session, owner, ttl))

    async def renew(self, lease: str, owner: str) -> None:
        """A heartbeat. LeaseExpired: it is over, or its lane is gone. EngineUnavailable: not known; try again."""
        lane, _, lease_id = lease.rpartition("/")
        await self._asked("renew", "", lease_id, owner, lane=lane)

    async def revoke(self, lease: str) -> None:
        lane, _, lease_id = lease.rpartition("/")
        await self._asked("revoke", "", lease_id, lane=lane)

    @contextlib.asynccontextmanager
    async def held(self, owner: str, *, ttl: float, session: str = "") -> AsyncIterator[str]:
        """A lease that is renewed for as long as this process lives and is inside, and revoked at the end."""
        lease = await self.lease(owner, ttl=ttl, session=session)
        beating = asyncio.create_task(self._beat(lease, owner, ttl / 3))
        try:
            yield lease
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            with contextlib.suppress(b.BoundedGenError):
                await self.revoke(lease)

    async def look(self) -> dict[str, dict[str, Any]]:
        """What each lane tells of itself, by its name: docs/on-call.md. One that is gone is left out."""
        told: list[Any] = []
        with contextlib.suppress(DeploymentUnavailableError):  # there is no lane now
            told = await self._handle.broadcast("look").results_async(timeout_s=LEASE_CALL, return_exceptions=True)
        return {row["name"]: row for row in told if isinstance(row, dict)}

    async def _beat(self, lease: str, owner: str, every: float) -> None:
        with contextlib.suppress(b.LeaseExpired):  # who uses it is told by its own call
            while True:
                await asyncio.sleep(every)
                with contextlib.suppress(b.EngineUnavailable):
                    await self.renew(lease, owner)

    async def _asked(self, method: str, session: str, *given: Any, **named: Any) -> Any:
        handle = self._handle.options(method_name=method, session_id=session)
        try:
            answer = await asyncio.wait_for(handle.remote(*given, **named), LEASE_CALL)
        except TimeoutError:
            raise b.EngineUnavailable(f"no lane has answered within {LEASE_CALL:g} s", retry_after_s=AGAIN) from None
        except ActorDiedError as error:
            raise b.LeaseExpired(f"its lane is gone: {first_line(error)}") from error
        except (RayError, RayServeException) as error:
            raise typed(error) from error
        if isinstance(answer, b.BoundedGenError):
            raise answer
        return answer


@define
class Call:
    """A stream under way: what came of it, and what becomes of it when nothing comes any more."""

    bounds: b.Bounds
    response: Any
    began: float = Factory(time.monotonic)
    taken: Begun | None = None
    chunks: list[b.Chunk] = Factory(list)
    over: bool = False

    async def next(self) -> Item:
        """What the lane says. Raises the error that it says, and one for a lane that says nothing any more."""
        try:
            async with asyncio.timeout(max(0.0, self._ends() - time.monotonic())):
                item: Item = await anext(self.response)
        except TimeoutError:
            raise self._late() from None
        except StopAsyncIteration:
            self.over = True
            raise self._lost("its stream has ended before its answer did") from None
        except RayTaskError as error:
            self.over = True
            raise b.GenerationInternalError(f"the lane has failed: {first_line(error)}") from error
        except (RayError, RayServeException) as error:
            self.over = True
            raise (typed(error) if self.taken is None else self._lost(first_line(error))) from error
        return self._kept(item)

    def _kept(self, item: Item) -> Item:
        if isinstance(item, b.BoundedGenError):
            self.over = True
            raise item
        if isinstance(item, Begun):
            self.taken = item
        elif isinstance(item, b.Chunk):
            self.chunks.append(item)
        self.over = isinstance(item, b.Completion)
        return item

    def _ends(self) -> float:
        """Until a lane has taken it, it waits in Serve, which is to be no longer than it may be queued."""
        total = self._within(self.bounds.total)
        if self.taken is None:
            return self.began + min(total, self._within(self.bounds.queued))
        return self.began + total + GRACE

    @staticmethod
    def _within(bound: float | None) -> float:
        return float("inf") if bound is None else bound

    def _late(self) -> b.DeadlineExceeded:
        bound = "queued" if self.taken is None else "total"
        deadline = b.Deadline(at=self._ends(), bound=bound)
        why = "no lane has taken it" if self.taken is None else f"lane {self.taken.lane} has said nothing of its end"
        return b.DeadlineExceeded(f"its bound {bound!r} was reached: {why}", deadline=deadline, **self._so_far())

    def _lost(self, why: str) -> b.EngineLost:
        lane = self.taken.lane if self.taken else "?"
        return b.EngineLost(f"lane {lane} is gone: {why}", **self._so_far())

    def _so_far(self) -> dict[str, Any]:
        """As much of the answer as there is, for an error."""
        tokens = tuple(token for chunk in self.chunks for token in chunk.token_ids)
        partial = b.Completion(
            text="".join(chunk.text for chunk in self.chunks),
            token_ids=tokens,
            finish_reason=None,
            prompt_tokens=0,
            completion_tokens=len(tokens),
            queued_s=None,
            first_token_s=None,
            total_s=time.monotonic() - self.began,
        )
        return {"generation_id": self.taken.generation_id if self.taken else 0, "partial": partial}


def typed(error: Exception) -> b.BoundedGenError:
    """Of a call that no lane has taken."""
    if isinstance(error, BackPressureError):
        return b.Saturated(str(error), retry_after_s=error.retry_after_s or AGAIN)
    if isinstance(error, DeploymentUnavailableError):
        return b.EngineUnavailable(str(error))
    return b.EngineLost(f"its lane is gone: {first_line(error)}")


def first_line(error: Exception) -> str:
    """Ray's errors have many."""
    return next(iter(str(error).splitlines()), type(error).__name__)
