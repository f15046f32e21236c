"""Waking whoever waits, thread or coroutine, without a lock and without waiting for them."""

import asyncio
import functools
import itertools
import threading
import time
from collections.abc import Callable

_keys = itertools.count()


class Wakers:
    """One-shot wake-ups: every waiter registers, then looks again, so that no wake-up is lost."""

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}

    def wake(self) -> None:
        for key in list(self._waiting):
            waker = self._waiting.pop(key, None)
            if waker is not None:
                waker()

    def __bool__(self) -> bool:
        """Somebody waits."""
        return bool(self._waiting)

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until `done()`; False if `timeout` seconds passed first. Interruptible by signals."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done():
            gate = threading.Lock()
            gate.acquire()
            key = next(_keys)
            self._waiting[key] = gate.release
            try:
                left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
                if done():
                    return True
                if not gate.acquire(timeout=min(left, threading.TIMEOUT_MAX)) and not done():
                    return False
            finally:
                self._waiting.pop(key, None)
        return True

    async def until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """The same for a coroutine."""
        if timeout is None:
            await self._until(done)
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._until(done)
        except TimeoutError:
            return done()
        return True

    async def _until(self, done: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while not done():
            future = loop.create_future()
            key = next(_keys)
            self._waiting[key] = functools.partial(_resolve, loop, future)
            try:
                if done():
                    return
                await future
            finally:
                self._waiting.pop(key, None)


def _resolve(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:  # the loop is closed: nobody waits there any more
        return
