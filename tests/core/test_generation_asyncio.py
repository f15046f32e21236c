"""The handle of a generation, for asyncio. The engine is under the test's hand."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from core.hand_engine import A, HandEngine, lane, until

import boundedgen as b

Scene = Callable[[b.BoundedPipeline, HandEngine], Awaitable[None]]


def play(scene: Scene, engine: HandEngine | None = None) -> None:
    with lane(engine) as (pipeline, engine):
        asyncio.run(asyncio.wait_for(scene(pipeline, engine), 30))


async def told(done: Callable[[], object]) -> None:
    await asyncio.to_thread(until, done)


def test_it_streams_and_is_awaited_like_for_threads() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        g = await pipeline.asubmit("x", max_new_tokens=8)
        await asyncio.to_thread(engine.say, A)
        await asyncio.to_thread(engine.finish)
        assert [c.text async for c in g] == ["a"]
        assert (await g).text == "a"
        assert await g.wait(0)
        assert (await g.await_reclaimed(5)).proof == "perf_metrics"

    play(scene)


def test_calls_that_would_block_the_loop_name_the_awaitable() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        g = pipeline.submit("x", max_new_tokens=8)
        for call in (
            g.result, g.wait_reclaimed, lambda: iter(g), pipeline.probe, pipeline.wait_ready,
            lambda: pipeline.generate("x"), lambda: pipeline.generate_many(["x"]),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match=r"await|async for"):
                call()
        assert g.phase != "settled"
        g.cancel()
        await g.wait()
        with pytest.raises(b.GenerationCancelled):
            g.result()  # it is there: nothing blocks

    play(scene)


def test_threads_and_coroutines_wait_for_the_same_one() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        g = pipeline.submit("x", max_new_tokens=8)

        async def wait() -> b.Completion:
            return await g

        threads = [asyncio.create_task(asyncio.to_thread(g.result, 20)) for _ in range(4)]
        tasks = [asyncio.create_task(wait()) for _ in range(50)]
        await asyncio.to_thread(engine.say, A)
        await asyncio.to_thread(engine.finish)
        results = await asyncio.gather(*threads, *tasks)
        assert {r.text for r in results} == {"a"}

    play(scene)


@pytest.mark.parametrize("how", ["await", "async for"])
def test_a_task_that_is_cancelled_inside_of_it_cancels_it(how: str) -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        g = pipeline.submit("x", max_new_tokens=8)
        await asyncio.to_thread(engine.stay)

        async def inside() -> None:
            if how == "await":
                await g
            else:
                async for _ in g:
                    pass

        task = asyncio.create_task(inside())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await g.wait(20)
        assert g.finish_reason is b.FinishReason.CANCELLED
        await told(lambda: engine.link.stops)

    play(scene)


def test_wait_ends_alone_by_timeout_and_by_cancellation() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        g = pipeline.submit("x", max_new_tokens=8)
        assert not await g.wait(0.01)
        task = asyncio.create_task(g.wait())
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await g.await_reclaimed(0.01)
        await asyncio.to_thread(engine.say, A)
        await asyncio.to_thread(engine.finish)
        assert (await g).text == "a"
        assert not g._flow.wakers, "nobody is left waiting"

    play(scene)


def test_asyncio_wait_for_around_it_cancels_it_and_around_wait_does_not() -> None:
    async def scene(pipeline: b.BoundedPipeline, _: HandEngine) -> None:
        g = await pipeline.asubmit("x", max_new_tokens=8)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(g.wait(), 0.02)
        assert g.finish_reason is None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(g, 0.02)
        assert await g.wait(20)
        assert g.finish_reason is b.FinishReason.CANCELLED

    play(scene)


def test_leaving_async_with_cancels() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        async with await pipeline.asubmit("x", max_new_tokens=8) as g:
            await asyncio.to_thread(engine.stay)
        with pytest.raises(b.GenerationCancelled):
            await g

    play(scene)


def test_a_loop_that_goes_away_with_readers_inside_harms_nobody() -> None:
    with lane() as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=8)

        async def walk_away() -> None:
            task = asyncio.create_task(g.wait())
            await asyncio.sleep(0)
            assert not task.done()

        asyncio.run(walk_away())
        engine.say(A)
        engine.finish()
        assert g.result(20).text == "a"
        assert pipeline.health().ready


def test_agenerate_that_is_cancelled_leaves_nothing_running() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        task = asyncio.create_task(pipeline.agenerate("x", max_new_tokens=8))
        await asyncio.to_thread(engine.stay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await told(lambda: engine.link.stops)
        await told(lambda: pipeline.stats().running == 0)

    play(scene)


def test_of_many_the_first_error_cancels_the_others_unless_errors_are_wanted() -> None:
    async def scene(pipeline: b.BoundedPipeline, engine: HandEngine) -> None:
        task = asyncio.create_task(pipeline.agenerate_many(["x", "y"], max_new_tokens=8))
        await asyncio.to_thread(engine.stay, 1)
        await asyncio.to_thread(engine.finish, "ignored", nth=0)
        await asyncio.to_thread(engine.finish, "ignored", nth=1)
        for nth in (2, 3):
            await asyncio.to_thread(engine.say, A, nth=nth)
        await asyncio.to_thread(engine.finish, "ignored", nth=2)
        with pytest.raises(b.CacheExhausted):
            await task
        await told(lambda: pipeline.stats().running == 0)

    play(scene)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio's own, of a task that is lost
def test_a_coroutine_whose_loop_was_closed_is_not_there_any_more() -> None:
    with lane(lease_ttl=5.0) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=4)
        loop = asyncio.new_event_loop()

        async def ask() -> None:
            await generation

        task = loop.create_task(ask())
        loop.run_until_complete(asyncio.sleep(0.05))
        assert generation._flow._attended()
        loop.close()
        assert not task.done()
        engine.stay()
        engine.clock.skip(6)
        until(lambda: generation.finish_reason is b.FinishReason.LEASE)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
