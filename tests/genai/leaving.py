"""Every way in which a consumer of a generation can leave that Python allows, each as a function of its own."""

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import boundedgen as bg


class Visit:
    """One consumer: what it submits and how it leaves. All that is random comes from `seed`."""

    def __init__(self, pipeline: bg.BoundedPipeline, seed: int) -> None:
        self.random = random.Random(seed)
        self.pipeline = pipeline
        self._lease: bg.Lease | None = None

    def call(self) -> dict[str, Any]:
        """The arguments of a submit: mostly short; some have a prompt of about 1,000 tokens, some can only be cut."""
        rnd = self.random
        endless = rnd.random() < 0.1
        length = rnd.randint(900, 1000) if rnd.random() < 0.125 else rnd.randint(1, 60)
        bounds = rnd.choice(
            [bg.Bounds(total=rnd.uniform(0.02, 0.5))]
            if endless
            else [
                bg.Bounds(total=rnd.uniform(0.02, 4.0)),
                bg.Bounds(total=rnd.uniform(0.5, 6.0), queued=rnd.uniform(0.01, 2.0)),
                bg.Bounds(total=rnd.uniform(0.5, 6.0), first_token=rnd.uniform(0.05, 3.0)),
                bg.Bounds(total=rnd.uniform(0.5, 6.0), next_token=rnd.uniform(0.05, 1.0)),
                bg.Bounds(total=6.0),
            ]
        )
        return {
            "prompt": [rnd.randint(3, 258) for _ in range(length)],
            "max_new_tokens": 2000 if endless else rnd.randint(1, 60),
            "ignore_eos": True,
            "bounds": bounds,
            "lease": self._lease,
            "stop_strings": ["a"] if rnd.random() < 0.2 else None,
        }

    def submit(self) -> bg.Generation:
        return self.pipeline.submit(**self.call())

    def under_a_lease(self) -> bg.Lease:
        self._lease = self.pipeline.lease("visitor", ttl=self.random.uniform(0.05, 1.0))
        return self._lease

    def some(self, generation: bg.Generation) -> Iterator[bg.Chunk]:
        return itertools.islice(generation, self.random.randint(0, 5))

    def moment(self) -> float:
        return self.random.uniform(0.0, 0.3)


# --- threads -----------------------------------------------------------------------------------------------------


def reads_to_the_end(visit: Visit) -> None:
    for _ in visit.submit():
        pass


def waits_for_the_result(visit: Visit) -> None:
    visit.submit().result()


def closes_its_iterator(visit: Visit) -> None:
    generation = visit.submit()
    stream = iter(generation)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert list(stream) == []


def breaks_out_of_the_loop(visit: Visit) -> None:
    generation = visit.submit()
    for _ in generation:
        break
    generation.wait_reclaimed(10)


def drops_the_last_reference(visit: Visit) -> None:
    visit.submit()


def drops_it_in_a_cycle(visit: Visit) -> None:
    knot: list[object] = [visit.submit()]
    knot.append(knot)


def leaves_its_block_by_an_exception(visit: Visit) -> None:
    with contextlib.suppress(ZeroDivisionError), visit.submit() as generation:
        for _ in visit.some(generation):
            pass
        raise ZeroDivisionError


def gives_up_its_wait(visit: Visit) -> None:
    with contextlib.suppress(TimeoutError):
        visit.submit().result(visit.moment())


def gives_up_a_generate(visit: Visit) -> None:
    with contextlib.suppress(TimeoutError):
        visit.pipeline.generate(timeout=visit.moment(), **visit.call())


def cancels(visit: Visit) -> None:
    generation = visit.submit()
    for _ in visit.some(generation):
        pass
    generation.cancel()
    generation.wait_reclaimed(10)


def tightens(visit: Visit) -> None:
    generation = visit.submit()
    generation.tighten(bg.Bounds(total=visit.moment(), next_token=visit.moment()))
    generation.result()


def dies_as_a_thread(visit: Visit) -> None:
    def die(generation: bg.Generation) -> None:
        for _ in visit.some(generation):
            pass
        raise SystemExit

    thread = threading.Thread(target=die, args=[visit.submit()])
    thread.start()
    thread.join()


def never_renews_its_lease(visit: Visit) -> None:
    visit.under_a_lease()
    visit.submit().result()


def revokes_its_lease(visit: Visit) -> None:
    with visit.under_a_lease():
        generation = visit.submit()
        for _ in visit.some(generation):
            pass
    generation.result()


# --- coroutines --------------------------------------------------------------------------------------------------


async def _cancelled_in(work: Awaitable[object], after: float) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(after)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def is_cancelled_while_it_awaits(visit: Visit) -> None:
    async def wait() -> None:
        await visit.submit()

    await _cancelled_in(wait(), visit.moment())


async def is_cancelled_while_it_streams(visit: Visit) -> None:
    async def read() -> None:
        async for _ in visit.submit():
            pass

    await _cancelled_in(read(), visit.moment())


async def is_cancelled_while_it_generates(visit: Visit) -> None:
    await _cancelled_in(visit.pipeline.agenerate(**visit.call()), visit.moment())


async def leaves_its_async_block_by_an_exception(visit: Visit) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with visit.submit() as generation:
            await generation.wait(visit.moment())
            raise ZeroDivisionError


async def breaks_out_of_the_async_loop(visit: Visit) -> None:
    async for _ in visit.submit():
        break


async def times_out_from_outside(visit: Visit) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(visit.moment()):
            await visit.submit()


async def gives_up_an_async_wait(visit: Visit) -> None:
    await visit.submit().wait(visit.moment())


async def reads_to_the_end_of_an_async_stream(visit: Visit) -> None:
    async for _ in visit.submit():
        pass


def ends_its_loop_while_a_task_waits(visit: Visit) -> None:
    """The loop is stopped and closed; nobody cancels the task, it is only collected."""

    async def wait() -> None:
        await visit.submit()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    coroutine = wait()
    with contextlib.suppress(RuntimeError):
        task = loop.create_task(coroutine)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.sleep(visit.moment()))
    loop.close()


def _in_a_loop(leave: Callable[[Visit], Any]) -> Callable[[Visit], None]:
    def run(visit: Visit) -> None:
        asyncio.run(leave(visit))

    run.__name__ = leave.__name__
    return run


THREADED: tuple[Callable[[Visit], None], ...] = (
    reads_to_the_end,
    waits_for_the_result,
    closes_its_iterator,
    breaks_out_of_the_loop,
    drops_the_last_reference,
    drops_it_in_a_cycle,
    leaves_its_block_by_an_exception,
    gives_up_its_wait,
    gives_up_a_generate,
    cancels,
    tightens,
    dies_as_a_thread,
    never_renews_its_lease,
    revokes_its_lease,
    ends_its_loop_while_a_task_waits,
)
AWAITED: tuple[Callable[[Visit], Awaitable[None]], ...] = (
    is_cancelled_while_it_awaits,
    is_cancelled_while_it_streams,
    is_cancelled_while_it_generates,
    leaves_its_async_block_by_an_exception,
    breaks_out_of_the_async_loop,
    times_out_from_outside,
    gives_up_an_async_wait,
    reads_to_the_end_of_an_async_stream,
)
WAYS = (*THREADED, *map(_in_a_loop, AWAITED))
