"""An engine under the test's hand, behind a real pipeline: what it says and when is the test's word.

No process and no step loop. `HandEngine.say`, `finish` and `release` report at once; `pending` is what it was told.
By itself it becomes ready, takes what it is told and, unless `obedient` is off, releases what is stopped.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from boundedgen import BoundedPipeline, Bounds, Limits
from boundedgen._core import _events as ev
from boundedgen.abc import Request, Tokenizer
from boundedgen.testing._sim_host import SimTokenizer

PATIENCE = 20.0
A = 3 + ord("a")  #: the token that reads "a"


class SkippingClock:
    """Real time, and as much more as a test skips."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.woken: Callable[[], object] = bool

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def skip(self, seconds: float) -> None:
        self._ahead += seconds
        self.woken()


class HandLink:
    """One incarnation."""

    def __init__(self, incarnation: int, host: "HandEngine") -> None:
        self.incarnation = incarnation
        self.requests: dict[int, Request] = {}
        self.stops: list[int] = []
        self._host = host
        self._steps = 0
        self._reports: list[ev.Report] = []
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._telling = threading.Lock()
        self.disposed = False

    pid = None

    def filenos(self) -> Sequence[int]:
        return (self._bell,)

    def fileno_to_write(self) -> int | None:
        return None

    def admit(self, request: Request) -> None:
        self.requests[request.stay] = request
        self.progress(taken=(request.stay,))

    def stop(self, stay: int) -> None:
        self.stops.append(stay)
        if self._host.obedient:
            self.progress(stopping=(stay,), released=(ev.Release(stay, 1, 0.001, 0),))

    def flush(self) -> None:
        """Nothing waits."""

    def under_way(self) -> Sequence[tuple[str, int]]:
        return ()

    def receive(self) -> list[ev.Report]:
        with self._telling, contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        with self._telling:
            reports, self._reports = self._reports, []
        return reports

    def pulse(self) -> ev.Pulse:
        return ev.Pulse(self._steps, self._steps, self._host.now(), self._host.now())

    def kill(self) -> None:
        if self._host.mortal:
            self.tell(ev.Exited(self.incarnation, -9, ""))

    def dispose(self) -> None:
        if not self.disposed:
            self.disposed = True
            with self._telling:
                os.close(self._bell)

    # --- the test's side -------------------------------------------------------------------------------------------

    def tell(self, *reports: ev.Report) -> None:
        with self._telling:
            if not self.disposed:
                self._reports += reports
                os.eventfd_write(self._bell, 1)

    def progress(self, **news: Any) -> None:
        self._steps += 1
        now = self._host.now()
        self.tell(ev.Progress(self.incarnation, self._steps, now, now, 1, 0.1, None, **news))


class HandEngine:
    """`abc.EngineHost`, and the hand."""

    def __init__(self, *, obedient: bool = True, mortal: bool = True, blocks: int = 65, running_max: int = 4) -> None:
        self.obedient = obedient
        self.mortal = mortal
        self.boots = True
        self.clock = SkippingClock()
        self.links: list[HandLink] = []
        self.facts = ev.EngineFacts(
            device="HAND",
            versions={},
            pools=(ev.PoolFacts("kv", blocks, 4),),
            block_size=4,
            cache_bytes=None,
            vocab_size=259,
            running_max=running_max,
            probe_blocks={"kv": 1},
            max_prompt_tokens=None,
            hybrid=False,
            proof="perf_metrics",
        )

    def now(self) -> float:
        return self.clock.now()

    def spawn(self, incarnation: int) -> HandLink:
        link = HandLink(incarnation, self)
        self.clock.woken = link.tell
        self.links.append(link)
        if self.boots:
            link.tell(ev.Ready(incarnation, self.facts))
        return link

    def tokenizer(self) -> Tokenizer:
        return SimTokenizer()

    def defaults(self) -> Mapping[str, Any]:
        return {}

    # --- the hand --------------------------------------------------------------------------------------------------

    @property
    def link(self) -> HandLink:
        return self.links[-1]

    def stay(self, nth: int = 0) -> int:
        """The nth stay that it was ever told to admit."""
        until(lambda: len(self.link.requests) > nth)
        return list(self.link.requests)[nth]

    def say(self, *tokens: int, nth: int = 0) -> None:
        self.link.progress(outputs=(ev.Output(self.stay(nth), tokens or (A,)),))

    def finish(self, why: str = "stop", *, nth: int = 0, release: bool = True) -> None:
        """The end that the engine comes to by itself."""
        stay = self.stay(nth)
        released = (ev.Release(stay, 0, 0.0, 0),) if release else ()
        self.link.progress(finished=(ev.Finish(stay, why),), released=released)

    def release(self, nth: int = 0) -> None:
        self.link.progress(released=(ev.Release(self.stay(nth), 2, 0.5, 0),))

    def die(self) -> None:
        self.link.tell(ev.Exited(self.link.incarnation, -11, "segmentation fault"))


def until(done: Callable[[], object], timeout: float = PATIENCE) -> None:
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.001)


@contextlib.contextmanager
def lane(engine: HandEngine | None = None, **settings: Any) -> Iterator[tuple[BoundedPipeline, HandEngine]]:
    """A ready pipeline over an engine under the hand."""
    engine = HandEngine() if engine is None else engine
    settings.setdefault("bounds", Bounds(total=600))
    settings.setdefault("limits", Limits(progress=1e6, ack=1e6, reclaim=1e6))  # the hand takes its time
    pipeline = BoundedPipeline(None, engine=engine, clock=engine.clock, **settings)
    try:
        pipeline.wait_ready(PATIENCE)
        yield pipeline, engine
    finally:
        pipeline.close()


@contextlib.contextmanager
def held_up(engine: HandEngine) -> Iterator[None]:
    """The driver stands still at the end of a wake until this is left."""
    arrived, go_on = threading.Event(), threading.Event()
    link = engine.link
    flush = link.flush

    def slowly() -> None:
        link.flush = flush  # type: ignore[method-assign]
        arrived.set()
        assert go_on.wait(PATIENCE)

    link.flush = slowly  # type: ignore[method-assign]
    link.tell()
    assert arrived.wait(PATIENCE)
    try:
        yield
    finally:
        go_on.set()
