"""What the machine itself is late by: how long this process's threads were ready to run and did not get a processor.

The kernel counts it for each thread (/proc/PID/task/TID/schedstat, the second number, nanoseconds). A driver that waits
for a lock, a file or a hung engine is not waiting for a processor, and so is not excused.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Self, final

EVERY_S = 0.02


@final
class Lateness:
    """`of(due, at)`, afterwards: seconds between two monotonic instants in which threads waited for a processor."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lateness", daemon=True)
        self._waited: dict[str, int] = {}  # nanoseconds, by thread
        self._gone = 0.0
        self._at: list[float] = []
        self._sums: list[float] = []

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._sample()

    def of(self, due: float, at: float) -> float:
        """From the last look before `due` to the first one after `at`."""
        first = max(0, bisect_right(self._at, due) - 1)
        last = min(len(self._at) - 1, bisect_left(self._at, at))
        return self._sums[last] - self._sums[first]

    @property
    def whole(self) -> float:
        return self._sums[-1] - self._sums[0]

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        """Threads that have ended keep what they had waited."""
        seen: dict[str, int] = {}
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                seen[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
        self._gone += sum(1e-9 * waited for thread, waited in self._waited.items() if thread not in seen)
        self._waited = seen
        self._at.append(time.monotonic())
        self._sums.append(self._gone + 1e-9 * sum(seen.values()))
