"""What a pipeline runs on: who turns its driver, where its side work goes, how its callers wait. A clock may be one."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, final, runtime_checkable

from boundedgen._aside import Aside
from boundedgen._clock import MonotonicClock
from boundedgen._waiting import Waiting
from boundedgen._wakers import Wakers
from boundedgen.abc import Clock, EngineLink

P = ParamSpec("P")
T = TypeVar("T")


class Turned(Protocol):
    """The driver, for whoever turns it."""

    over: bool
    link: EngineLink | None

    def turn(self, silent: bool = ...) -> float | None:
        """One wake. Returns the instant of the next one; None: only when something happens."""

    def fail(self, error: BaseException) -> None:
        """A turn raised `error`: it is over."""

    def end(self) -> None:
        """It will not be turned any more."""


class Turning(Protocol):
    """Turns one driver from `start` until it is over, whenever it is due, rung, or its engine has something to say."""

    def start(self) -> None:
        """What it raises, an interrupt for one, does not tell whether it is turned: `abandon` does."""

    def abandon(self) -> bool:
        """By whoever called `start`, or has not. True: it was never turned, never will be, and has ended."""

    def alive(self) -> bool: ...

    def ring(self) -> bool:
        """From any thread, at once: turn it soon. False: it will not be turned any more."""

    def forget(self) -> None:
        """The engine's descriptors, before they are closed."""

    def close(self) -> None:
        """By the driver, when it has ended."""

    def join(self, timeout: float) -> bool:
        """Wait for its end. True: it has ended."""

    async def ended(self, timeout: float) -> bool:
        """`join` for a coroutine."""


@runtime_checkable
class Runtime(Clock, Protocol):
    chance: random.Random  #: of seeds that nobody gave, and of what must not be in step

    def turning(self, driver: Turned) -> Turning: ...

    def wakers(self) -> Wakers: ...

    def aside(self, name: str) -> Aside: ...

    async def offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns, without holding up the event loop."""


@final
class Threads:
    """The `Runtime` of every real pipeline: a thread turns the driver, and callers block theirs."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.chance = random.Random()

    def turning(self, driver: Turned) -> Turning:
        return DriverThread(driver, self.now)

    def wakers(self) -> Wakers:
        return Wakers()

    def aside(self, name: str) -> Aside:
        return Aside(name)

    async def offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(work, *args, **kwargs)


@final
class DriverThread:
    """The one thread that turns a driver. In between it sleeps, on the bell and on the engine's descriptors.

    It outlives the engine, since the kernel ends a child with the thread that started it.
    """

    def __init__(self, driver: Turned, now: Callable[[], float]) -> None:
        self._driver = driver
        self._now = now
        self._waiting = Waiting()
        self._thread = threading.Thread(target=self._run, name="boundedgen-driver", daemon=True)
        self.ring = self._waiting.ring
        self.forget = self._waiting.forget
        self.close = self._waiting.close
        self._ended = Wakers()
        self._mine = threading.Lock()  # for good of the thread that turns it, or of the one that ends it before
        self._over = False

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> bool:
        if not self._mine.acquire(blocking=False):
            return False
        self._end(self._driver)
        return True

    def alive(self) -> bool:
        return self._thread.is_alive() or (self._mine.locked() and not self._over)

    def join(self, timeout: float) -> bool:
        """`Thread.join` knows nothing of a thread whose `start` was interrupted."""
        if self._thread is threading.current_thread():
            return False
        until = time.monotonic() + timeout
        self._ended.wait(lambda: self._over, timeout)
        if self._thread.is_alive():
            self._thread.join(max(0.0, until - time.monotonic()))
        return not self.alive()

    async def ended(self, timeout: float) -> bool:
        """Takes no thread of the loop's executor for as long as it waits."""
        return await self._ended.until(lambda: self._over, timeout) and await asyncio.to_thread(self.join, timeout)

    def _run(self) -> None:
        if not self._mine.acquire(blocking=False):
            return
        driver, silent = self._driver, False
        try:
            while not driver.over:
                until = driver.turn(silent)
                silent = not driver.over and self._sleep(until)
        except BaseException as error:
            driver.fail(error)
        finally:
            self._end(driver)

    def _end(self, driver: Turned) -> None:
        driver.end()
        self._over = True
        self._ended.wake()
        del self._driver  # which knows this thread: neither is to wait for the collector of cycles

    def _sleep(self, until: float | None) -> bool:
        """True: it is known that the engine said nothing."""
        return self._waiting.sleep(self._driver.link, None if until is None else until - self._now())


def runtime_of(clock: Clock | None) -> Runtime:
    """Threads, on `clock` or on real time; `clock` itself if it knows how its seconds pass."""
    if clock is None:
        return Threads(MonotonicClock())
    return clock if isinstance(clock, Runtime) else Threads(clock)
