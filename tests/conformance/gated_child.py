"""`python -m conformance.gated_child`: the real engine process; each of its steps waits for a byte from a gate.

So the parent decides between which steps its commands arrive. All else is the product's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from boundedgen._core._events import EngineFacts
from boundedgen._engine._child import main
from boundedgen._engine._genai import load as load_real
from boundedgen._engine._seam import Engine, EngineStay, Metrics
from boundedgen.abc import Request

MODULE = "conformance.gated_child"


class Gated:
    """An engine that steps when it may."""

    def __init__(self, engine: Engine, gate: int) -> None:
        self._engine, self._gate = engine, gate

    @property
    def facts(self) -> EngineFacts:
        return self._engine.facts

    @property
    def step_tokens(self) -> int:
        return self._engine.step_tokens

    def add(self, request: Request) -> EngineStay:
        return self._engine.add(request)

    def step(self) -> Metrics:
        os.read(self._gate, 1)
        return self._engine.step()


def load(spec: Mapping[str, Any]) -> Engine:
    return Gated(load_real(spec), os.open(spec["fault"]["gate"], os.O_RDONLY))


if __name__ == "__main__":
    main(load)
