"""What a loop costs beside the engine's own `step()`: the time from its return to the next one."""

from __future__ import annotations

import time
from typing import Any, final


@final
class Timed:
    """A pipeline that keeps, in seconds, what passes between two steps while the same requests are inside, and steps.

    Whoever waits for something between two steps (for a command, for a pause) is not measured in that gap: `idle_s`.
    """

    idle_s = 0.005  #: a longer gap is one in which there was nothing to do, or somebody else had the processor

    def __init__(self, pipeline: Any) -> None:
        self._pipeline, self._step = pipeline, pipeline.step
        self._gaps: list[float] = []
        self._steps: list[float] = []
        self._returned = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def step(self) -> None:
        began = time.perf_counter()
        if began - self._returned < self.idle_s:
            self._gaps.append(began - self._returned)
        self._step()
        self._returned = time.perf_counter()
        self._steps.append(self._returned - began)

    def take(self) -> dict[str, list[float]]:
        taken = {"gaps": self._gaps, "steps": self._steps}
        self._gaps, self._steps, self._returned = [], [], 0.0
        return taken
