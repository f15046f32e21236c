"""What the machine itself is late by, meanwhile: a bare Python program of the shape of a lane and its callers.

Some threads wait for deadlines, one wakes them, each does half a millisecond of work: no engine, no library. It is as
nice as who started it. A machine that is shared with others is late for it too, and an answer can't be blamed for that.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from bisect import bisect_left, bisect_right
from typing import Self, final

_CONTROL = """
import heapq, os, random, select, sys, threading, time

bell, ring = os.pipe()
due, arrivals, draw = [], [], random.Random(3)

def wait(within):
    gate = threading.Lock()
    gate.acquire()
    at = time.monotonic() + within
    arrivals.append((at, id(gate), gate))
    os.write(ring, b"x")
    gate.acquire()
    now = time.monotonic()
    if now - at > 0.005:
        print(f"{now:.4f} {now - at:.4f}\\n", end="", flush=True)
    sum(range(30_000))

def caller():
    while True:
        wait(draw.uniform(0.02, 0.4))

def driver():
    poller = select.epoll()
    poller.register(bell, select.EPOLLIN)
    while True:
        left = max(0.0, due[0][0] - time.monotonic()) if due else 1.0
        if poller.poll(left):
            os.read(bell, 4096)
        while arrivals:
            heapq.heappush(due, arrivals.pop())
        sum(range(10_000))
        while due and due[0][0] <= time.monotonic():
            heapq.heappop(due)[2].release()

for work in [driver] + [caller] * int(sys.argv[1]):
    threading.Thread(target=work, daemon=True).start()
sys.stdin.read()
"""


@final
class Lateness:
    """`of(at)`, afterwards: seconds that the machine was late by around the monotonic instant `at`."""

    def __init__(self, callers: int) -> None:
        self._callers = callers
        self._seen: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._out = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CONTROL, str(self._callers)], stdin=subprocess.PIPE, stdout=self._out
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._out.seek(0)
        pairs = [line.split() for line in self._out.read().splitlines()]
        self._out.close()
        self._seen = sorted((float(pair[0]), float(pair[1])) for pair in pairs if len(pair) == 2)

    @property
    def pid(self) -> int:
        return self._process.pid

    def of(self, at: float, within: float = 0.5) -> float:
        first, last = bisect_left(self._seen, (at - within, 0.0)), bisect_right(self._seen, (at + within, 0.0))
        return max((late for _, late in self._seen[first:last]), default=0.0)

    @property
    def worst(self) -> float:
        return max((late for _, late in self._seen), default=0.0)
