"""`python benchmarks/lane_raw.py ADDRESS SPEC`: a bare step loop that serves as OpenVINO Model Server does.

A request ends when its own stopping criteria are met or when its socket closes. No deadline, no queue of its own, no
bound on what is inside; that a client has left it learns when the proxy in front closes the socket, and not before.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy
import openvino
import openvino_genai as genai
import raw_loop
from attrs import define
from lines import Lines

SAMPLE_S = 0.5


@define
class Inside:
    handle: Any
    tell: int  #: tell when it has so many tokens; 0: do not
    tokens: int = 0
    left: bool = False  #: its client has, which nobody here knows: counted, not used


class RawLane:
    def __init__(self, lines: Lines, spec: dict[str, Any]) -> None:
        self._lines = lines
        self._pipeline = raw_loop.load(spec["model"], spec["scheduler"])
        self._inside: dict[int, Inside] = {}
        self._steps: list[float] = []
        self._steps_total = 0
        self._sampled = time.monotonic()

    def run(self) -> None:
        self._lines.say("ready", {})
        while self._lines.open:
            for operation, *arguments in self._lines.heard(0.0 if self._inside else 0.02):
                getattr(self, "_" + operation)(*arguments)
            if self._inside:
                self._step()
            if time.monotonic() - self._sampled >= SAMPLE_S:
                self._sample()
            self._lines.flush()

    def _submit(self, number: int, asked: dict[str, Any]) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = asked["new"], True
        prompt = openvino.Tensor(numpy.array([asked["prompt"]], dtype=numpy.int64))
        self._inside[number] = Inside(self._pipeline.add_request(number, prompt, config), asked["tell"])

    def _gone(self, number: int) -> None:
        """The socket has closed."""
        found = self._inside.pop(number, None)
        if found is not None:
            found.handle.stop()

    def _left(self, number: int) -> None:
        if number in self._inside:
            self._inside[number].left = True

    def _stop(self, number: int) -> None:
        """There is no such call."""

    def _renew(self, numbers: list[int]) -> None:
        """Nor this."""

    def _probing(self, on: bool) -> None:
        """Nor this: the clients' own one-token requests are all there is."""

    def _step(self) -> None:
        began = time.monotonic()
        self._pipeline.step()
        self._steps.append(time.monotonic() - began)
        self._steps_total += 1
        for number in list(self._inside):
            self._look_at(number, self._inside[number])

    def _look_at(self, number: int, found: Inside) -> None:
        new = 0
        while found.handle.can_read():
            new += sum(len(output.generated_ids) for output in found.handle.read().values())
        if new and not found.tokens:
            self._lines.say("first", number)
        found.tokens += new
        if new and found.tell and found.tokens >= found.tell:
            found.tell = 0
            self._lines.say("told", number)
        status = found.handle.get_status()
        if status != genai.GenerationStatus.RUNNING:
            del self._inside[number]
            finished = status == genai.GenerationStatus.FINISHED
            self._lines.say(*(("done", number, found.tokens) if finished else ("ended", number, str(status), "", True)))

    def _sample(self) -> None:
        self._sampled = time.monotonic()
        metrics = self._pipeline.get_metrics()
        self._lines.say(
            "sample",
            {
                "inside": len(self._inside),
                "waiting": sum(not found.tokens for found in self._inside.values()),
                "orphans": sum(found.left for found in self._inside.values()),
                "usage": metrics.cache_usage / 100.0,
                "steps": self._steps,
                "steps_total": self._steps_total,
            },
        )
        self._steps = []


if __name__ == "__main__":
    RawLane(Lines(sys.argv[1]), json.loads(sys.argv[2])).run()
