"""Waking whoever waits, thread or coroutine, without a lock and without waiting for them."""

import asyncio
import contextlib
import functools
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

_keys = itertools.count()


class Wakers:
    """One-shot wake-ups: every waiter registers, then looks again, so that no wake-up is lost."""

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}

    def wake(self) -> None:
        if not self._waiting:  # most of the time, of those that are woken at every token
            return
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
        desk = _desk_of(loop)
        while not done():
            future = loop.create_future()
            key = next(_keys)
            self._waiting[key] = functools.partial(desk.resolve, future)
            try:
                if done():
                    return
                await future
            finally:
                self._waiting.pop(key, None)


class _Desk:
    """Of one event loop, which is called once for all who are woken until it comes: each call costs a system call here
    and a turn of the loop there, and a step has news for many at once. Held by whoever waits and by the loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._woken: deque[asyncio.Future[None]] = deque()
        self._called = False

    def resolve(self, future: "asyncio.Future[None]") -> None:
        """From any thread."""
        self._woken.append(future)
        if self._called:
            return
        try:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self._deliver)
        except BaseException:  # an interrupt: the next one calls
            self._called = False
            raise

    def _deliver(self) -> None:
        self._called = False  # first: whoever is woken from here on calls again, or is found below
        while self._woken:
            future = self._woken.popleft()
            if not future.done():
                future.set_result(None)


# A desk holds its loop, by those who were woken: one that was closed over them is to go with all that they hold.
_desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Desk]] = weakref.WeakKeyDictionary()


def _desk_of(loop: asyncio.AbstractEventLoop) -> _Desk:
    """In the loop's own thread."""
    known = _desks.get(loop)
    desk = None if known is None else known()
    if desk is None:
        desk = _Desk(loop)
        _desks[loop] = weakref.ref(desk)
    return desk
