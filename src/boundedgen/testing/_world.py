"""Simulated time, and all that happens in it: one thing after the other, in the thread that waits for it."""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar, final

from boundedgen._aside import Aside
from boundedgen._core._deadlines import Agenda
from boundedgen._runtime import Turned
from boundedgen._wakers import Wakers
from boundedgen.testing._clock import VirtualClock
from boundedgen.testing._loop import RealLoops
from boundedgen.testing._parking import Parking, Spot
from boundedgen.testing._sim_host import SimHost
from boundedgen.testing._stalled import SimulationStalled

__all__ = ["World"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

EVENTS_MAX = 1_000_000  #: of one wait; more are taken for an engine that goes on for ever
TURNS_MAX = 1_000  #: of one instant; more are taken for a driver that does not come to rest


@final
class World:
    """A `Runtime` without threads: the driver is turned whenever it is due, by whoever lets time pass.

    Nothing happens by itself. `settle` does what is due at this instant, `step` goes on to the next event. Several
    threads may wait at once; one of them moves the world at a time.
    """

    def __init__(self, clock: VirtualClock, host: SimHost, *, autojump: bool = True) -> None:
        self.clock = clock
        self.host = host
        self.now = clock.now
        self.chance = random.Random(0)  # the same run always gives the same result
        self._may_leap_to = math.inf if autojump else clock.now()
        self._turned: SimTurning | None = None
        self._todo: deque[Callable[[], object]] = deque()
        self._timers: Agenda[int] = Agenda()
        self._wake_at: dict[int, Callable[[], None]] = {}
        self._keys = itertools.count()
        self._still = 0  # events of this instant
        self.moving = threading.RLock()  #: held by whoever makes anything happen
        self.parking = Parking()
        self.watchers: list[Callable[[], object]] = []  #: called whenever something has happened
        self._loops = RealLoops(self)
        self.stirred = self._loops.stir  #: there is something new to do; from any thread

    def leaps_until(self) -> float:
        """How far time may go by itself while coroutines wait."""
        return max(self._may_leap_to, self.now())

    def may_leap(self, seconds: float) -> None:
        """Time may go so far from now by itself."""
        self._may_leap_to = max(self._may_leap_to, self.now() + seconds)

    # --- the runtime of a pipeline -------------------------------------------------------------------------------

    def turning(self, driver: Turned) -> "SimTurning":
        self._turned = SimTurning(driver, self)
        return self._turned

    def wakers(self) -> Wakers:
        return SimWakers(self)

    def aside(self, name: str) -> Aside:
        return SimAside(name, self.later)

    async def offload(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """At once, in this thread: no time passes, unless `work` waits."""
        await asyncio.sleep(0)
        return work(*args, **kwargs)

    # --- what happens --------------------------------------------------------------------------------------------

    def later(self, work: Callable[[], object]) -> None:
        """Have it done at this instant, but not now."""
        self._todo.append(work)
        self.stirred()

    def settle(self) -> bool:
        """All that is due at this instant happens. False: there was nothing."""
        with self.moving:
            happened = self._settle()
            if happened:
                self._look()
            return happened

    def _look(self) -> None:
        for watcher in self.watchers:
            watcher()

    def _settle(self) -> bool:
        turns = 0
        while self._todo or (self._turned is not None and self._turned.due()):
            turns += 1
            if turns > TURNS_MAX:
                raise AssertionError(f"the driver does not come to rest at {self.now():g}; please report this")
            if self._todo:
                _attempt(self._todo.popleft())
            elif self._turned is not None:
                self._turned.turn()
        return turns > 0

    def next_event(self) -> float | None:
        """The instant of the next thing that happens if nobody does anything; None: nothing ever will."""
        times = [self._timers.earliest()]
        if self._turned is not None and self._turned.alive():  # else nobody hears what an engine says
            times += [self._turned.wakeup, self.host.next_event()]
        return min((at for at in times if at is not None), default=None)

    def step(self, until: float = math.inf) -> bool:
        """Go on to the next event, and let it happen. False: there is none up to `until`; no time has passed."""
        with self.moving:
            self.settle()
            at = self.next_event()
            if at is None or at > until:
                return False
            self._still = self._still + 1 if at <= self.now() else 0
            if self._still > TURNS_MAX:
                raise AssertionError(f"time does not go on from {self.now():g}; please report this")
            self._happen(self.clock.advance_to(at))
            self._settle()
            self._look()
            return True

    def _happen(self, now: float) -> None:
        if self.host.run(now) and self._turned is not None:
            self._turned.ring()
        for key in list(self._timers.due(now)):
            self._timers.set(key, None)
            self._wake_at[key]()

    def advance_to(self, until: float) -> None:
        """Everything up to and including the instant `until` happens."""
        with self.moving:
            while self.step(until):
                pass
            self.clock.advance_to(until)

    # --- waiting -------------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let time pass until `done()`; False: `timeout` seconds have passed first. Raises SimulationStalled."""
        until = math.inf if timeout is None else self.now() + timeout
        self.settle()
        for _ in range(EVENTS_MAX):
            if done():
                return True
            if not self.step(until):
                return self._give_up(done, until)
        raise SimulationStalled(f"{EVENTS_MAX} events have not brought about what is waited for; {self.picture()}")

    def _give_up(self, done: Callable[[], bool], until: float) -> bool:
        if done():
            return True
        if until == math.inf:
            raise SimulationStalled(f"nothing that is waited for will ever happen; {self.picture()}")
        self.clock.advance_to(until)
        return False

    @contextlib.contextmanager
    def waiting(self, until: float, wake: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """A coroutine waits inside, woken at the instant `until`. Yields what is False or raises why it is in vain."""
        with self.timer(until, wake), self._loops.waiting(wake) as in_vain:
            yield in_vain

    @contextlib.contextmanager
    def timer(self, until: float, wake: Callable[[], None]) -> Iterator[None]:
        """Inside, `wake` is called at the instant `until`, which may be infinite."""
        key = next(self._keys)
        self._wake_at[key] = wake
        self._timers.set(key, until if until < math.inf else None)
        try:
            yield
        finally:
            self._timers.set(key, None)
            del self._wake_at[key]

    def picture(self) -> str:
        """Where everything stands, for the message of an error."""
        driver = "over" if self._turned is not None and self._turned.over else "at rest"
        return f"{_engine_of(self.host, self.now())}, the driver is {driver}, the clock reads {self.now():g} s"


def _engine_of(host: SimHost, now: float) -> str:
    if not host.links:
        return "there is no engine"
    engine = host.links[-1].engine
    pulse = engine.pulse(now)
    if engine.exited_at is not None:
        return f"engine {engine.incarnation} is gone"
    inside = f"inside step {pulse.steps_begun} since {now - pulse.begun_at:g} s"
    return f"engine {engine.incarnation} is {inside if pulse.in_step else 'outside of steps'}"


def _attempt(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        with contextlib.suppress(Exception):  # what failed may be a handler of logging
            logger.exception("work beside the driver failed", extra={"event": "work_failed"})


@final
class SimTurning:
    """Turns a driver when it was rung or its time has come. Implements `Turning`."""

    def __init__(self, driver: Turned, world: World) -> None:
        self._driver = driver
        self._world = world
        self._started = False
        self._rung = False
        self._wakers = SimWakers(world)  # whoever waits for its end
        self.wakeup: float | None = None
        self.over = False

    def start(self) -> None:
        self._started = True

    def abandon(self) -> bool:
        if self._started:
            return False
        self.over = True
        self._driver.end()
        return True

    def alive(self) -> bool:
        return self._started and not self.over

    def ring(self) -> bool:
        self._rung = True
        self._world.stirred()
        return not self.over

    def due(self) -> bool:
        """It has to be turned at this instant."""
        timely = self.wakeup is not None and self.wakeup <= self._world.now()
        return self.alive() and (self._rung or timely)

    def turn(self) -> None:
        self._rung, self.wakeup = False, None
        try:
            self.wakeup = self._driver.turn()
        except Exception as error:
            self._driver.fail(error)
            self._driver.over = True
        if self._driver.over:
            self.over, self.wakeup = True, None
            self._driver.end()
            self._wakers.wake()

    def forget(self) -> None:
        """A simulated engine has no descriptors."""

    def close(self) -> None:
        """Nothing to give back."""

    def join(self, timeout: float) -> bool:
        return self._world.wait(lambda: self.over, timeout)

    async def ended(self, timeout: float) -> bool:
        return await self._wakers.until(lambda: self.over, timeout)


class SimWakers(Wakers):
    """Whoever waits lets time pass; coroutines leave that to their event loop."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        world = self._world
        if not world.parking.applies():
            return world.wait(done, timeout)
        at = math.inf if timeout is None else world.now() + timeout
        while not done() and world.now() < at:
            if not world.parking.applies():  # the loop that moved the world has ended
                return world.wait(done, None if timeout is None else at - world.now())
            self._park(done, at)
        return done()

    def _park(self, done: Callable[[], bool], until: float) -> None:
        spot = Spot(self._world.parking)
        with self._world.timer(until, spot.wake):
            with self._world.moving:  # nothing happens between the last look and the registration
                if done() or self._world.now() >= until or not self._world.parking.applies():
                    return
                self._waiting[next(self._world.parking.keys)] = spot.wake
                spot.take()
            spot.wait()

    async def until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        at = math.inf if timeout is None else self._world.now() + timeout
        with self._world.waiting(at, self.wake) as in_vain:
            await self._until(lambda: in_vain() or done() or self._world.now() >= at)
        return done()


class SimAside(Aside):
    """Runs what it is given in the world's own order."""

    def __init__(self, name: str, later: Callable[[Callable[[], object]], None]) -> None:
        super().__init__(name)
        self._later = later

    def run(self, work: Callable[[], object]) -> bool:
        if not self._closed:
            self._later(work)
        return not self._closed

    def close(self) -> None:
        self._closed = True

    def join(self, timeout: float) -> None:
        """What was queued is done when the world is settled."""
