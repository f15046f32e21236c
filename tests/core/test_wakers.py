"""Nobody who waits is forgotten, and nobody who left is remembered."""

import asyncio
import gc
import itertools
import threading
import time
import weakref
from typing import Any

import pytest

from boundedgen._wakers import Wakers, _desk_of


def test_what_is_true_already_is_not_waited_for() -> None:
    wakers = Wakers()
    assert wakers.wait(lambda: True, 0.0)
    assert wakers.wait(lambda: True)


def test_a_wait_without_a_wake_ends_with_its_timeout_and_leaves_nothing() -> None:
    wakers = Wakers()
    began = time.monotonic()
    assert not wakers.wait(lambda: False, 0.02)
    assert 0.02 <= time.monotonic() - began < 5
    assert not wakers


def test_a_timeout_of_nothing_only_looks() -> None:
    assert not Wakers().wait(lambda: False, 0.0)
    assert not Wakers().wait(lambda: False, -1.0)


def test_what_came_true_at_the_last_moment_counts() -> None:
    looks = itertools.chain([False, False], itertools.repeat(True))
    assert Wakers().wait(lambda: next(looks), 0.001)


def test_a_wake_without_the_condition_is_waited_on() -> None:
    wakers, state = Wakers(), {"done": False, "woken": 0}

    def done() -> bool:
        state["woken"] += 1
        return bool(state["done"])

    thread = threading.Thread(target=wakers.wait, args=(done, 20.0))
    thread.start()
    _spin(lambda: bool(wakers))
    seen = state["woken"]
    wakers.wake()
    _spin(lambda: state["woken"] > seen and bool(wakers))
    state["done"] = True
    wakers.wake()
    thread.join(20)
    assert not thread.is_alive()
    assert not wakers


def test_no_wake_up_is_lost_between_threads() -> None:
    """Two threads throw a ball ten thousand times; a lost wake-up would stop the game."""
    wakers, turns = Wakers(), [0]
    rounds = 5_000

    def player(me: int) -> None:
        for n in range(rounds):
            assert wakers.wait(lambda: turns[0] >= 2 * n + me, 20.0), "a wake-up was lost"  # noqa: B023
            turns[0] += 1
            wakers.wake()

    threads = [threading.Thread(target=player, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert turns[0] == 2 * rounds
    assert not wakers


def test_no_wake_up_is_lost_between_a_thread_and_a_loop() -> None:
    wakers, turns = Wakers(), [0]
    rounds = 1_500

    def thread_side() -> None:
        for n in range(rounds):
            if not wakers.wait(lambda: turns[0] >= 2 * n + 1, 20.0):  # noqa: B023
                return
            turns[0] += 1
            wakers.wake()

    async def loop_side() -> None:
        for n in range(rounds):
            assert await wakers.until(lambda: turns[0] >= 2 * n, 20.0), "a wake-up was lost"  # noqa: B023
            turns[0] += 1
            wakers.wake()
        assert await wakers.until(lambda: turns[0] == 2 * rounds, 20.0)

    thread = threading.Thread(target=thread_side)
    thread.start()
    asyncio.run(loop_side())
    thread.join(60)
    assert turns[0] == 2 * rounds
    assert not wakers


def test_one_wake_reaches_any_number_of_waiters_of_both_kinds() -> None:
    wakers, done, woken = Wakers(), threading.Event(), []
    threads = [threading.Thread(target=lambda: woken.append(wakers.wait(done.is_set, 20.0))) for _ in range(20)]

    async def main() -> list[bool]:
        tasks = [asyncio.create_task(wakers.until(done.is_set, 20.0)) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(_spin, lambda: len(wakers._waiting) == 40)
        done.set()
        wakers.wake()
        return await asyncio.gather(*tasks)

    for thread in threads:
        thread.start()
    assert asyncio.run(main()) == [True] * 20
    for thread in threads:
        thread.join(20)
    assert woken == [True] * 20
    assert not wakers


def test_a_coroutine_that_times_out_or_is_cancelled_leaves_nothing() -> None:
    wakers = Wakers()

    async def main() -> None:
        assert not await wakers.until(lambda: False, 0.001)
        task = asyncio.create_task(wakers.until(lambda: False))
        await asyncio.sleep(0)
        assert wakers
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not wakers


def test_a_waiter_whose_loop_is_closed_does_not_disturb_the_one_who_wakes() -> None:
    wakers = Wakers()
    loop = asyncio.new_event_loop()
    task = loop.create_task(wakers.until(lambda: False))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    wakers.wake()
    wakers.wake()
    assert not wakers
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what this test is about
    coroutine = task.get_coro()
    del task
    assert coroutine is not None
    coroutine.close()


def _spin(done: object) -> None:
    assert callable(done)
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.0005)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the calls that wake it from outside."""

    calls = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        self.calls += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_all_who_are_woken_before_their_loop_comes_cost_it_one_call() -> None:
    loop, all_wakers = CountingLoop(), [Wakers() for _ in range(16)]
    turns: list[int] = []

    async def waits(number: int) -> None:
        await all_wakers[number].until(lambda: len(turns) > 3)

    async def main() -> int:
        tasks = [asyncio.create_task(waits(number)) for number in range(16)]
        await asyncio.sleep(0)
        before = loop.calls
        for turn in range(4):  # the first three in vain: all look, and wait again
            turns.append(turn)
            for wakers in all_wakers:
                wakers.wake()
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return loop.calls - before

    try:
        assert loop.run_until_complete(main()) == 4
    finally:
        loop.close()


def test_whoever_is_woken_while_others_are_being_told_is_told_too() -> None:
    loop = CountingLoop()
    desk = _desk_of(loop)

    class Telling(asyncio.Future[None]):
        def set_result(self, result: None) -> None:
            super().set_result(result)
            desk.resolve(last)

    async def main() -> None:
        desk.resolve(first)
        await asyncio.wait_for(last, 20)

    first, last = Telling(loop=loop), loop.create_future()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_loop_is_not_kept_by_having_been_waited_in() -> None:
    async def main() -> None:
        assert not await Wakers().until(lambda: False, 0.001)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("woken_first", [False, True], ids=["closed, then woken", "woken, then closed"])
def test_a_loop_that_was_closed_over_its_waiters_is_not_kept_by_their_wake_up(woken_first: bool) -> None:
    wakers, loop = Wakers(), asyncio.new_event_loop()
    task = loop.create_task(wakers.until(lambda: False))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    for step in (wakers.wake, loop.close) if woken_first else (loop.close, wakers.wake):
        step()
    gone = weakref.ref(loop), weakref.ref(task)
    del loop, task, step
    gc.collect()
    assert [one() for one in gone] == [None, None], "what its coroutines hold, generations maybe, is let go of"


def test_a_call_that_was_interrupted_is_made_by_the_next_who_wakes() -> None:
    class Interrupted(CountingLoop):
        def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
            if not self.calls:
                self.calls += 1
                raise KeyboardInterrupt
            return super().call_soon_threadsafe(*args, **kwargs)

    loop, wakers, done = Interrupted(), Wakers(), list[int]()

    async def main() -> None:
        tasks = [asyncio.create_task(wakers.until(lambda: bool(done), 5.0)) for _ in range(2)]
        await asyncio.sleep(0)
        done.append(1)
        with pytest.raises(KeyboardInterrupt):
            wakers.wake()
        wakers.wake()
        assert await asyncio.gather(*tasks) == [True, True]
        assert loop.time() - began < 4

    began = loop.time()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
