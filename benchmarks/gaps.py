"""What a loop costs beside the engine's own `step()`: what passes from its return to the next one."""

from __future__ import annotations

import time
from typing import Any, final


@final
class Timed:
    """A pipeline that keeps the gaps between two steps: seconds by the clock, and seconds of its thread's processor.

    By the clock the engine's own threads, and other processes, can get in between. A gap of more than `idle_s` is one
    in which there was nothing to do.
    """

    idle_s = 0.005

    def __init__(self, pipeline: Any) -> None:
        self._pipeline, self._step = pipeline, pipeline.step
        self._gaps: list[tuple[float, float]] = []
        self._returned = self._spent = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def step(self) -> None:
        spent, began = time.thread_time(), time.perf_counter()
        if began - self._returned < self.idle_s:
            self._gaps.append((began - self._returned, spent - self._spent))
        self._step()
        self._returned, self._spent = time.perf_counter(), time.thread_time()

    def take(self) -> list[tuple[float, float]]:
        taken, self._gaps, self._returned = self._gaps, [], 0.0
        return taken
