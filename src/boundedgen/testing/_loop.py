"""How simulated time passes while coroutines wait: in an event loop of its own, or in those of real time."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, final

from boundedgen.testing._stalled import SimulationStalled

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike
    from anyio import CapacityLimiter

    from boundedgen.testing._world import World

__all__ = ["RealLoops", "VirtualLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

UNKNOWN_THREADS = 0.3  #: real seconds that threads are given to come back with something, when there are any
REAL_IO = 0.001  #: real seconds that sockets are given before time leaps
ROUNDS = 20  #: of a real loop in which nothing new is asked of the simulation: by then, whoever can go on has
PATIENCE = 5.0  #: real seconds that a loop waits for its threads, or for a simulation that cannot go on by itself


@final
class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the world's: it leaps to the next event or timer once every task waits."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.thread = 0  #: that it runs in
        self._leaping = LeapingSelector(world, self)
        super().__init__(self._leaping)
        self._leaping.own = len(self._leaping.get_map())

    def time(self) -> float:
        return self.world.now()

    def run_forever(self) -> None:
        parking = self.world.parking
        self.thread, parking.loop, parking.failure = threading.get_ident(), self, None
        try:
            super().run_forever()
        finally:
            parking.leave()

    def look_again(self) -> None:
        """Somebody began or ceased to wait. From any thread."""
        with contextlib.suppress(RuntimeError):  # closed: it waits no more
            self.call_soon_threadsafe(bool)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """No time leaps before its thread is done."""
        future = super().run_in_executor(executor, func, *args)
        self._leaping.threads += 1
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _: object) -> None:
        self._leaping.threads -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        self._leaping.threads += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._leaping.threads -= 1


@final
class LeapingSelector(selectors.BaseSelector):
    """Asked to wait, it lets simulated time pass instead. Real descriptors are looked at first."""

    def __init__(self, world: World, loop: VirtualLoop) -> None:
        self._world = world
        self._loop = loop
        self._real = selectors.DefaultSelector()
        self._anyio: CapacityLimiter | None = None
        self.own = 0  #: descriptors of the loop itself
        self.threads = 0  #: of executors, that the loop waits for
        self._waiting = 0  # of those: were given PATIENCE, and so wait for something of the loop's, or of their own

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        idle = timeout is None or timeout > 0
        events = self._real.select(REAL_IO if idle and len(self._real.get_map()) > self.own else 0)
        if events or not idle or self._met_anyio():
            return events
        at_work = self._at_work()
        self._waiting = min(self._waiting, at_work)
        if at_work > self._waiting:
            events = self._real.select(PATIENCE)
            self._waiting = self._waiting if events else at_work
            return events
        if self._world.settle():
            return events
        return self._leap(None if timeout is None else self._world.now() + timeout)

    def _at_work(self) -> int:
        """Threads that the loop waits for, and that do not themselves wait for the simulation."""
        of_anyio = 0 if self._anyio is None else int(self._anyio.borrowed_tokens)
        return self.threads + of_anyio - len(self._world.parking.taken)

    def _met_anyio(self) -> bool:
        """True once: there is anyio, and it is about to say how many of its threads are at work."""
        if self._anyio is not None or "anyio" not in sys.modules:
            return False
        task = self._loop.create_task(self._meet_anyio())
        return not task.done()

    async def _meet_anyio(self) -> None:
        from anyio.to_thread import current_default_thread_limiter

        self._anyio = current_default_thread_limiter()

    def _leap(self, timer: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """To the next event, or to the loop's own next timer."""
        world = self._world
        most = world.leaps_until()
        if world.step(most if timer is None else min(timer, most)):
            return []
        if timer is not None and timer <= most:
            world.clock.advance_to(timer)
            return []
        return self._stall()

    def _stall(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Only a thread that nobody knows of can help now."""
        events = self._real.select(UNKNOWN_THREADS if threading.active_count() > 1 else 0)
        if not events:
            failure = SimulationStalled(f"every task waits, and {why(self._world)}; {self._world.picture()}")
            self._world.parking.fail(failure)
            raise failure
        return events

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def why(world: World) -> str:
    """Why it does not go on by itself."""
    event = world.next_event()
    if event is None:
        return "nothing that is waited for will ever happen"
    return f"autojump is off: the next event is {event - world.now():g} s ahead, and only advance() gets there"


@final
class RealLoops:
    """Event loops of real time in which coroutines wait for the simulation. It goes on once they are idle."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pumps: dict[asyncio.AbstractEventLoop, Pump] = {}

    def stir(self) -> None:
        """There is something new to do. From any thread."""
        for pump in list(self._pumps.values()):
            pump.stir()

    @contextlib.contextmanager
    def waiting(self, wake: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """Inside, the running loop lets time pass; what is yielded is False, or raises why it cannot."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and loop.world is self._world:
            yield bool
            return
        pump = self._pumps.setdefault(loop, Pump(self._world, loop))
        waiter = object()
        pump.waiters[waiter] = wake
        pump.stir()
        try:
            yield pump.check
        finally:
            del pump.waiters[waiter]
            if not pump.waiters:
                self._pumps.pop(loop, None)


@final
class Pump:
    """Of one loop. It turns in the loop's own callbacks, as long as somebody waits and something can happen."""

    def __init__(self, world: World, loop: asyncio.AbstractEventLoop) -> None:
        self.waiters: dict[object, Callable[[], None]] = {}
        self._world = world
        self._loop = loop
        self._turning = False
        self._rounds = 0  #: since something was asked of the simulation, or happened in it
        self._resting: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None

    def stir(self) -> None:
        self._rounds, self._failure = 0, None
        if not self._turning:
            self._turning = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self._turn)

    def check(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return False

    def _turn(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        if not self.waiters:
            self._turning = False
            return
        self._rounds += 1
        try:
            if self._rounds >= ROUNDS and not self._go_on():
                self._turning = False
                self._resting = self._loop.call_later(PATIENCE, self._stall)
                return
        except Exception as error:
            self._turning = False
            self._tell(error)
            return
        self._loop.call_soon(self._turn)

    def _go_on(self) -> bool:
        self._rounds = 0
        return self._world.settle() or self._world.step(self._world.leaps_until())

    def _stall(self) -> None:
        if self.waiters:
            self._tell(SimulationStalled(f"coroutines wait, and {why(self._world)}; {self._world.picture()}"))

    def _tell(self, failure: BaseException) -> None:
        self._failure = failure
        for wake in list(self.waiters.values()):
            wake()
