"""What a pipeline runs on: threads, on any clock; a clock that knows how its seconds pass, on itself."""

import asyncio
import threading
import time

from boundedgen._runtime import Threads, runtime_of
from boundedgen.abc import EngineLink
from boundedgen.testing import VirtualClock
from boundedgen.testing._sim_host import SimHost
from boundedgen.testing._world import World


class Turned:
    """A driver that only counts."""

    def __init__(self, turns: int, fails: bool = False) -> None:
        self.over, self.fails = False, fails
        self.link: EngineLink | None = None
        self.turns, self.ended, self.failure = turns, 0, ""
        self.woken: list[float] = []

    def turn(self, silent: bool = False) -> float | None:
        self.woken.append(time.monotonic())
        self.turns -= 1
        self.over = self.turns == 0
        if self.fails:
            raise ZeroDivisionError
        return time.monotonic() + 0.01 if len(self.woken) < 3 else None

    def fail(self, error: BaseException) -> None:
        self.failure = type(error).__name__

    def end(self) -> None:
        self.over = True
        self.ended += 1


def test_real_time_and_plain_clocks_run_on_threads() -> None:
    clock = VirtualClock(5)
    assert isinstance(runtime_of(None), Threads)
    found = runtime_of(clock)
    assert isinstance(found, Threads)
    assert found.now() == 5


def test_a_clock_that_knows_how_its_seconds_pass_is_its_own_runtime() -> None:
    clock = VirtualClock()
    world = World(clock, SimHost(clock))
    assert runtime_of(world) is world


def test_a_driver_is_turned_when_it_is_due_and_when_it_is_rung_until_it_is_over() -> None:
    driver = Turned(4)
    turning = Threads(runtime_of(None)).turning(driver)
    assert not turning.alive()
    turning.start()
    while len(driver.woken) < 3:  # by its own time
        time.sleep(0.001)
    assert turning.alive()
    assert not turning.join(0.02), "the third one named no time"
    assert turning.ring()
    assert asyncio.run(turning.ended(20))
    assert (len(driver.woken), driver.ended, driver.failure) == (4, 1, "")
    assert driver.woken[1] - driver.woken[0] >= 0.009
    assert not turning.alive()
    turning.close()
    assert not turning.ring()


def test_a_turn_that_raises_is_told_and_is_the_last() -> None:
    driver = Turned(4, fails=True)
    turning = Threads(runtime_of(None)).turning(driver)
    turning.start()
    assert turning.join(20)
    assert (driver.failure, driver.ended, len(driver.woken)) == ("ZeroDivisionError", 1, 1)
    turning.close()


def test_work_is_offloaded_to_another_thread() -> None:
    async def main() -> bool:
        return await runtime_of(None).offload(threading.get_ident) != threading.get_ident()

    assert asyncio.run(main())
