"""`python -m deep.raw_lane SEED FIRST`: a bare `step()` loop over deep/traffic.py from request FIRST on, until it dies.

Prints what it has done as a line of JSON at least every 20 ms of its own. It ends when its standard input does, if the
engine lets it: `step` holds the interpreter lock.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from typing import Any, final

import numpy as np
import openvino as ov  # type: ignore[import-untyped,unused-ignore]
import openvino_genai as genai  # type: ignore[import-untyped,unused-ignore]

from deep.traffic import AT_ONCE, BLOCKS, PROBE, SCHEDULER, Asked, requests

TELL_S = 0.02


@final
class RawLane:
    def __init__(self, model: str, seed: int, first: int) -> None:
        scheduler = genai.SchedulerConfig()
        for name, value in {**SCHEDULER, "num_kv_blocks": BLOCKS + PROBE}.items():
            setattr(scheduler, name, value)
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})
        self._asked = itertools.islice(requests(seed), first, None)
        self._next = first
        self._inside: dict[int, tuple[Asked, Any, float]] = {}
        self._counts = {"taken": 0, "finished": 0, "tokens": 0, "stopped": 0, "late": 0, "ignored": 0, "steps": 0}
        self._told = 0.0

    def run(self) -> None:
        while True:
            while len(self._inside) < AT_ONCE:
                self._add(next(self._asked))
            self._pipeline.step()
            self._counts["steps"] += 1
            now = time.monotonic()
            for number in list(self._inside):
                self._look_at(number, now)
            if now - self._told > TELL_S:
                self._told = now
                print(json.dumps(self._counts), flush=True)

    def _add(self, asked: Asked) -> None:
        config = genai.GenerationConfig()
        for name, value in asked.config.items():
            setattr(config, name, value)
        prompt = ov.Tensor(np.array([asked.prompt], dtype=np.int64))
        handle = self._pipeline.add_request(self._next, prompt, config)
        self._inside[self._next] = (asked, handle, time.monotonic())
        self._next += 1
        self._counts["taken"] += 1

    def _look_at(self, number: int, now: float) -> None:
        asked, handle, since = self._inside[number]
        status = handle.get_status()
        if status == genai.GenerationStatus.FINISHED:
            outputs = handle.read_all()[: asked.results]  # of beams there may be more
            self._over(number, "finished", sum(len(output.generated_ids) for output in outputs))
        elif status == genai.GenerationStatus.IGNORED:
            self._over(number, "ignored")
        elif asked.stop_after is not None and now - since > asked.stop_after:
            handle.stop()
            self._over(number, "stopped")
        elif now - since > asked.total:
            handle.stop()
            self._over(number, "late")

    def _over(self, number: int, how: str, tokens: int = 0) -> None:
        del self._inside[number]
        self._counts[how] += 1
        self._counts["tokens"] += tokens


def leave_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_parent, daemon=True).start()
    RawLane(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).run()
