"""`switch_adapters`: a caller waits for what becomes of a switch; the driver has it carried out."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, cast, final

from boundedgen._adapters import AdapterSet, adapters_of
from boundedgen._bounds import SECONDS_MOST, Limits
from boundedgen._core import _events as ev
from boundedgen._errors import EngineUnavailable, ModelLoadFailed, PipelineClosed
from boundedgen._generation import refuse_to_block
from boundedgen._making import Parts, drain_seconds

if TYPE_CHECKING:
    from boundedgen._driver import Driver
    from boundedgen._engine._host import GenAIHost
    from boundedgen._runtime import Runtime
    from boundedgen._serving import Serving

_SLACK = 2.0  #: seconds on top of all that the lane's own limits allow a switch


class Exchange:
    """The adapters of one lane: those of its engines, and those that are to be.

    One switch at a time, so that a caller knows which adapters the next generation gets.
    """

    def __init__(self, parts: Parts, driver: Driver, limits: Limits) -> None:
        self._host = cast("GenAIHost", parts.host)  # unless it can have no adapters
        self._parts, self._limits, self.driver = parts, limits, driver
        self._free = threading.Lock()  # waited for by nobody
        self._numbers = itertools.count(1)
        adapters: AdapterSet | None = None if parts.no_adapters else self._host.adapters
        self._known: dict[int, AdapterSet] = {} if adapters is None else {0: adapters}  # in force, and to be
        self._pending: Pending | None = None
        driver.switching = self.carry_out
        driver.at_the_end.append(partial(_close, self._known))  # which does not know this, nor the driver

    # --- the driver's side ---------------------------------------------------------------------------------------

    def carry_out(self, effect: ev.Equip | ev.Switched) -> None:
        if isinstance(effect, ev.Equip):
            if not self._parts.no_adapters:
                self._host.adapters = self._known.get(effect.number)
        elif self._pending is not None and self._pending.number == effect.number:
            self._ended(effect, self._pending)

    def _ended(self, told: ev.Switched, pending: Pending) -> None:
        """Of the adapters only those in force are kept, whether or not anybody still waits."""
        done = told.outcome == "done"
        for number in [n for n in self._known if (n == told.number) != done]:
            self.driver.beside(self._known.pop(number).close)
        pending.told, self._pending = told, None
        self._free.release()
        self.driver.wakers.wake()

    # --- the caller's side ---------------------------------------------------------------------------------------

    def begin(self, given: object, drain: float | timedelta | None) -> Pending:
        """Check, and ask for it. ValueError, TypeError; RuntimeError: another one is under way."""
        if self._parts.no_adapters:
            raise ValueError(self._parts.no_adapters)
        drain_s = self._limits.drain if drain is None else drain_seconds(drain)
        adapters = adapters_of(given, self._parts.models_path, self._limits)
        if not self._free.acquire(blocking=False):
            adapters.close()
            raise RuntimeError("another switch of adapters is under way; wait for it, then switch again")
        try:
            pending = Pending(self, next(self._numbers), self._patience(drain_s))
            self._known[pending.number], self._pending = adapters, pending
            self.driver.post("exchange", pending.number, drain_s)
        except BaseException:  # an interrupt: it may be on its way, and is forgotten then
            self._pending = None
            self._free.release()
            raise
        return pending

    def _patience(self, drain_s: float) -> float:
        """Seconds within which it is decided: the engine empties, leaves, and the next one boots or does not."""
        limits = self._limits
        return min(SECONDS_MOST, drain_s + 2 * limits.reap + limits.boot + _SLACK)


def _close(known: dict[int, AdapterSet]) -> None:
    for adapters in list(known.values()):
        adapters.close()


@final
class Pending:
    """One switch, for whoever asked for it."""

    def __init__(self, exchange: Exchange, number: int, patience: float) -> None:
        self._driver, self.number, self._patience = exchange.driver, number, patience
        self.told: ev.Switched | None = None

    def wait(self) -> None:
        try:
            self._driver.wakers.wait(self._decided, self._patience)
        finally:
            self.leave()
        self._raise_unless_done()

    async def until(self) -> None:
        try:
            await self._driver.wakers.until(self._decided, self._patience)
        finally:
            self.leave()
        self._raise_unless_done()

    def _decided(self) -> bool:
        return self.told is not None or self._driver.over

    def leave(self) -> None:
        """An interrupt, a cancelled task: whoever goes does not want it any more, if nothing was done for it yet."""
        if not self._decided():
            self._driver.post("keep", self.number)

    def _raise_unless_done(self) -> None:
        told = self.told
        if told is None and not self._driver.over:
            raise TimeoutError("it is not known yet what comes of the switch; stats().adapters tells what is in force")
        outcome, detail = ("closed", "") if told is None else (told.outcome, told.detail)
        match outcome:
            case "done":
                return
            case "late" | "dropped":
                raise TimeoutError(
                    f"the adapters were not switched, and stay as they were: {detail or 'not waited for'}"
                )
            case "busy":
                raise RuntimeError("another switch of adapters is under way; wait for it, then switch again")
            case "failed":
                kind = ModelLoadFailed if told is not None and told.kind == "model" else EngineUnavailable
                raise kind(f"no engine started with these adapters, and the lane goes on with those before: {detail}")
        raise PipelineClosed(f"the pipeline ended before the adapters were switched{detail and ': '}{detail}")


class Switching:
    """The part of BoundedPipeline that switches adapters."""

    _exchange: Exchange
    _runtime: Runtime
    _serving: Serving

    def switch_adapters(self, adapters: object, *, drain: float | timedelta | None = None) -> None:
        """Serve with these LoRA `adapters` from here on, as the constructor takes them; None: with none.

        What was submitted before is served by the engine as it is, and what is submitted while this waits by whatever
        it comes to: it waits meanwhile, with all its bounds. The engine is replaced when nobody from before is left; if
        that takes longer than `drain` seconds (None: `Limits.drain`), nothing is changed and this is a TimeoutError.
        The new engine starts with an empty cache. If none starts with these adapters, the lane goes on with those
        before, and this raises ModelLoadFailed or EngineUnavailable. ValueError and TypeError, before anything is done:
        what is wrong with a file. RuntimeError: another switch is under way. An interrupt drops it while it waits.
        """
        refuse_to_block("'await pipeline.aswitch_adapters(…)'")
        self._serving.refuse_unless_open()
        self._exchange.begin(adapters, drain).wait()

    async def aswitch_adapters(self, adapters: object, *, drain: float | timedelta | None = None) -> None:
        """`switch_adapters` for a coroutine, with the same `adapters` and `drain`; cancelling it drops it likewise."""
        self._serving.refuse_unless_open()
        begun = asyncio.ensure_future(self._runtime.offload(self._exchange.begin, adapters, drain))
        try:
            pending = await asyncio.shield(begun)
        except asyncio.CancelledError:  # the files are being looked at, in a thread that nobody stops
            begun.add_done_callback(_drop)
            raise
        await pending.until()


def _drop(begun: asyncio.Future[Pending]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result().leave()
