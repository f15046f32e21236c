"""A pipeline over a simulated engine, in simulated time."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, final

from tenacity import wait_exponential

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds, Limits
from boundedgen._generation import Generation
from boundedgen._pipeline import BoundedPipeline
from boundedgen._restart import RestartPolicy
from boundedgen.testing._clock import VirtualClock
from boundedgen.testing._faults import BOOT_FAULTS, Fault
from boundedgen.testing._loop import VirtualLoop
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_host import SimHost
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._world import World

__all__ = ["Simulation"]

T = TypeVar("T")


@final
class Simulation:
    """`pipeline` is a real `BoundedPipeline`, with everything of it that is not the engine: governor, driver, handles.

    Its engine is a `SimEngine`, its tokenizer one of bytes, its clock virtual; there is no model, child or thread.
    Calls that wait let time pass, event by event, instead of blocking: the same run always gives the same result.
    Nothing happens while nobody waits and nobody calls `advance`, not even what was just submitted.

    `faults`: those of the first engine, or a mapping of incarnations (from 1) to theirs. `limits`, `bounds`,
    `lease_ttl`, `admission`: as for `BoundedPipeline`. `restart`: the default one, without jitter. `autojump` False:
    while coroutines wait, only `advance` and `aadvance` let time pass; other calls that wait still do.

    `with` waits until the engine is ready, as a pipeline's own `with` does, and closes the pipeline.
    """

    def __init__(
        self,
        *,
        model: SimModel | None = None,
        faults: Sequence[Fault] | Mapping[int, Sequence[Fault]] = (),
        limits: Limits | None = None,
        bounds: Bounds | None = None,
        lease_ttl: float | timedelta | None = None,
        admission: Admission | None = None,
        restart: RestartPolicy | None = None,
        autojump: bool = True,
    ) -> None:
        self.clock = VirtualClock()
        self.admission = Admission() if admission is None else admission
        self._host = SimHost(self.clock, model, faults if isinstance(faults, Mapping) else {1: faults})
        self._world = World(self.clock, self._host, autojump=autojump)
        self.pipeline = BoundedPipeline(
            None,
            limits=limits,
            bounds=bounds,
            lease_ttl=lease_ttl,
            admission=self.admission,
            restart=RestartPolicy(wait=wait_exponential(multiplier=0.2, max=30)) if restart is None else restart,
            engine=self._host,
            clock=self._world,
        )

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Monotonic seconds of the simulation."""
        return self.clock.now()

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, with all that happens in them. 0: what is due now happens."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds is {seconds!r}; give a finite number, 0 or more")
        self._world.advance_to(self.now + seconds)

    async def aadvance(self, seconds: float) -> None:
        """`advance` for a coroutine: the others go on meanwhile, each at its time."""
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"seconds is {seconds!r}; give a finite number, 0 or more")
        self._world.may_leap(seconds)
        await self._world.wakers().until(lambda: False, seconds)

    def run_until(self, predicate: Callable[[], object], *, within: float | None = None) -> None:
        """Let time pass, event by event, until `predicate()` is true; it is looked at after each.

        Raises TimeoutError after `within` seconds, and SimulationStalled as soon as nothing can happen any more.
        """
        if not self._world.wait(lambda: bool(predicate()), within):
            raise TimeoutError(f"it did not come to pass within {within} s; {self._world.picture()}")

    def watch(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Have `watcher` called, from now on, whenever something has happened: at each event, after its turn.

        It may look at everything and wait for nothing. What it raises comes out of whatever let time pass. Returns
        what ends it.
        """
        self._world.watchers.append(watcher)
        return lambda: self._world.watchers.remove(watcher)

    # --- asyncio -------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """What `main` returns, run in an event loop of its own whose time is the simulation's.

        There, `asyncio.sleep`, `asyncio.timeout` and the like take virtual seconds too. SimulationStalled ends it.
        """
        with asyncio.Runner(loop_factory=self.new_event_loop) as runner:
            return runner.run(main)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A loop such as `run` uses, for `asyncio.Runner(loop_factory=…)` and for plugins of pytest."""
        return VirtualLoop(self._world)

    # --- the engine ----------------------------------------------------------------------------------------------

    @property
    def engine(self) -> SimEngine:
        """The newest incarnation, gone or not. RuntimeError if there is none yet."""
        self._world.settle()
        if not self._host.links:
            raise RuntimeError("no engine was started yet")
        return self._host.links[-1].engine

    @property
    def engines(self) -> list[SimEngine]:
        """All incarnations so far, in order."""
        self._world.settle()
        return [link.engine for link in self._host.links]

    def inject(self, fault: Fault, *, on: Generation | None = None) -> None:
        """Have it happen in the engine that is there now; faults of a boot, in the next one.

        `on`: to this generation, which must be inside the engine (ValueError).
        """
        engine = None if not self._host.links else self.engine
        if on is not None:
            fault = fault.to(self._stay_of(on))
        if engine is None or engine.exited_at is not None or fault.kind in BOOT_FAULTS:
            incarnation = len(self._host.links) + 1
            self._host.faults[incarnation] = (*self._host.faults.get(incarnation, ()), fault)
        else:
            engine.faults.append(fault)

    def _stay_of(self, generation: Generation) -> int:
        self._world.settle()
        stays = generation._driver.governor.stays.values()
        found = [stay.id for stay in stays if stay.sequence == generation.id]
        if not found:
            raise ValueError(f"{generation!r} is not inside the engine")
        return found[-1]

    def mend(self) -> None:
        """No more faults, now and in later engines. What has happened has happened: a wedged engine stays so."""
        self._host.faults.clear()
        for link in self._host.links:
            link.engine.faults.clear()

    # --- its end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the pipeline."""
        self.pipeline.close()

    def __enter__(self) -> "Simulation":
        try:
            self.pipeline.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Simulation {self.now:g} s {self.pipeline!r}>"
