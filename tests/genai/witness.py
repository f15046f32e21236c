"""Witnesses of a run: what the driver did to each generation and when, and how long the machine itself stood still."""

import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from boundedgen._core._events import Emit, Prove, Settle
from boundedgen._flow import Flow

TICK_S = 0.002
STALL_S = 0.005  #: what counts
#: Prints begin and end of each time in which it got no processor.
_TICKER = f"""
import sys, time
last = time.monotonic()
while True:
    time.sleep({TICK_S})
    now = time.monotonic()
    if now - last > {STALL_S}:
        print(last + {TICK_S}, now, flush=True)
    last = now
"""


class _Spans:
    """Times in which somebody who only ticks did not get to it, as (begin, end)."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    @property
    def longest_s(self) -> float:
        return max((end - begin for begin, end in self.spans), default=0.0)

    def within(self, begin: float, end: float) -> float:
        """Seconds of that time that were missed."""
        return sum(max(0.0, min(end, e) - max(begin, b)) for b, e in self.spans)


class Stalls(_Spans):
    """A process that only ticks: what it misses, anybody on this machine would have missed."""

    def __enter__(self) -> "Stalls":
        self._process = subprocess.Popen([sys.executable, "-c", _TICKER], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        out, _ = self._process.communicate(timeout=10)
        lines = (line.split() for line in out.splitlines())
        self.spans = [(float(line[0]), float(line[1])) for line in lines if len(line) == 2]


class Ticks(_Spans):
    """A thread of this process that only ticks: what it misses, others had the interpreter."""

    def __enter__(self) -> "Ticks":
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="ticks")
        self.began = self.ended = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.ended = time.monotonic()
        self._over.set()
        self._thread.join(60)

    @property
    def own_s(self) -> float:
        """How long the block took, without the times in which no thread of this process got anywhere."""
        return self.ended - self.began - self.within(self.began, self.ended)

    def _tick(self) -> None:
        last, over = time.monotonic(), False
        while not over:
            over = self._over.wait(TICK_S)
            now = time.monotonic()
            if now - last > STALL_S:
                self.spans.append((last + TICK_S, now))
            last = now


class Witness:
    """What the driver told each flow; the flows themselves are not kept."""

    def __init__(self) -> None:
        self.settled: dict[int, list[Settle]] = defaultdict(list)
        self.settled_at: dict[int, float] = {}
        self.latest: dict[int, float] = {}  #: the instant of its total bound, at submit
        self.proofs: dict[int, list[Prove]] = defaultdict(list)
        self.emitted_late: Counter[int] = Counter()

    def saw_settle(self, flow: Flow, effect: Settle) -> None:
        submission = flow.submission
        assert submission.bounds.total is not None
        self.settled[submission.id].append(effect)
        self.settled_at[submission.id] = time.monotonic()
        self.latest[submission.id] = submission.submitted_at + submission.bounds.total

    def saw_emit(self, flow: Flow) -> None:
        if flow.settled is not None:
            self.emitted_late[flow.submission.id] += 1

    def saw_prove(self, flow: Flow, effect: Prove) -> None:
        self.proofs[flow.submission.id].append(effect)

    def lateness(self) -> dict[int, tuple[float, float]]:
        """By generation: the instant at which it was due at the latest, and the seconds from there to its answer."""
        due = {
            id_: effects[0].deadline if effects[0].reason == "deadline" else self.latest[id_]
            for id_, effects in self.settled.items()
        }
        return {id_: (at, max(0.0, self.settled_at[id_] - at)) for id_, at in due.items()}


@contextmanager
def witness(patch: pytest.MonkeyPatch) -> Iterator[Witness]:
    """Watch every flow of this process; nothing is changed."""
    seen = Witness()
    settle, emit, prove = Flow.settle, Flow.emit, Flow.prove

    def settling(self: Flow, effect: Settle, now: float) -> None:
        seen.saw_settle(self, effect)
        settle(self, effect, now)

    def emitting(self: Flow, effect: Emit, now: float) -> None:
        seen.saw_emit(self)
        emit(self, effect, now)

    def proving(self: Flow, effect: Prove) -> None:
        seen.saw_prove(self, effect)
        prove(self, effect)

    with patch.context() as patched:
        for name, method in (("settle", settling), ("emit", emitting), ("prove", proving)):
            patched.setattr(Flow, name, method)
        yield seen


def percentile(values: list[float], part: float) -> float:
    """The value that `part` (0..1) of all do not exceed."""
    ordered: list[Any] = sorted(values)
    return float(ordered[max(0, -int(-len(ordered) * part // 1) - 1)])
