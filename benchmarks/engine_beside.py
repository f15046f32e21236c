"""boundedgen's engine process, in which the other contestants run too, on the same pipeline, while it is idle.

One and the same program is up to 15 % faster in one process than in another on one machine, so all contestants run in
one. A round runs in a signal handler: in the main thread, as boundedgen's own loop does, and while that one sleeps.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, final

sys.path.insert(0, str(Path(__file__).parent))

from gaps import Timed
from in_process import InProcess
from raw_loop import RawLoop

from boundedgen._engine import _child, _genai

ADDRESS = "BOUNDEDGEN_BENCHMARK"  #: environment: the socket on which rounds are asked for


@final
class Beside:
    """The rounds that can be asked for, by their names."""

    def __init__(self, engine: _genai.GenAIEngine) -> None:
        self._engine = engine
        self._loop = RawLoop(engine._pipeline)
        self._server = InProcess(engine._pipeline)
        self._timed: Timed | None = None

    def raw(
        self, prompts: list[list[int]], new: int, stops: Sequence[int] = (), seeds: Sequence[int] = ()
    ) -> dict[str, Any]:
        return self._loop.round(prompts, new, stops, seeds)

    def raw_times(self, prompts: list[list[int]], new: int, pause: float) -> list[list[float]]:
        return self._loop.times(prompts, new, pause)

    def in_process(self, prompts: list[list[int]], new: int, tick: float) -> dict[str, Any]:
        return self._server.round(prompts, new, tick)

    def time_gaps(self) -> None:
        """From now on the time between two steps is kept."""
        self._timed = Timed(self._engine._pipeline)
        self._engine._pipeline = self._loop.pipeline = self._timed

    def gaps(self) -> list[tuple[float, float]]:
        """Those since the last call."""
        assert self._timed is not None
        return self._timed.take()


def load(spec: Mapping[str, Any]) -> _genai.GenAIEngine:
    """The engine, with the others beside it."""
    engine = _genai.load(spec)
    beside = Beside(engine)
    asked = Client(os.environ[ADDRESS])

    def round_(*_: object) -> None:
        contestant, what = asked.recv()
        asked.send(getattr(beside, contestant)(**what))

    signal.signal(signal.SIGUSR1, round_)
    asked.send(os.getpid())
    return engine


if __name__ == "__main__":
    _child.main(load)
