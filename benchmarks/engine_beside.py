"""boundedgen's engine process, which can also run the raw loop, on the same pipeline, while it has nothing to do.

One and the same program is up to 15 % faster in one process than in another on one machine, so both contestants run in
one. A raw round runs in a signal handler: in the main thread, as boundedgen's own loop does, and while that one sleeps.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from raw_loop import RawLoop

from boundedgen._engine import _child, _genai

ADDRESS = "BOUNDEDGEN_BENCHMARK"  #: environment: the socket on which rounds are asked for


def load(spec: Mapping[str, Any]) -> _genai.GenAIEngine:
    """The engine, with the raw loop beside it."""
    engine = _genai.load(spec)
    raw = RawLoop(engine._pipeline)
    asked = Client(os.environ[ADDRESS])

    def round_(*_: object) -> None:
        job = asked.recv()
        asked.send(raw.round(job["prompts"], job["new"], job.get("stops", ())))

    signal.signal(signal.SIGUSR1, round_)
    asked.send(os.getpid())
    return engine


if __name__ == "__main__":
    _child.main(load)
