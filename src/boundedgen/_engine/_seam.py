"""What the loop needs of an engine: the adapter in `_genai`, and simulated ones in `boundedgen.testing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from attrs import frozen

from boundedgen._core._events import EngineFacts, SequenceResult
from boundedgen.abc import Request


@frozen
class Metrics:
    """Of the step that has just returned."""

    scheduled: int  #: requests
    usage: float  #: of the fullest pool, 0..1
    cache_bytes: int | None
    accepted: int = 0  #: drafted tokens that were taken, as far as they were read since the step before
    proposed: int = 0  #: of so many, at most


class EngineStay(Protocol):
    """One request inside an engine. None of its methods waits."""

    def collect(self) -> tuple[list[int], list[float], str]:
        """New tokens, their logprobs, and why it ended: "" (it runs), "stop", "length", "ignored" or "stopped"."""
        ...

    def results(self) -> tuple[SequenceResult, ...]:
        """Of an ended request of several sequences, best first; empty for others."""
        ...

    def stop(self) -> None: ...

    def released(self) -> bool:
        """The engine has let go of it, and says so."""
        ...

    def late_tokens(self) -> int:
        """Tokens that came after `stop`, once it is released."""
        ...

    def prompt_tokens(self) -> int | None:
        """That the engine counted, once it is released; None: it does not tell."""
        return None


class Engine(Protocol):
    @property
    def facts(self) -> EngineFacts: ...

    @property
    def step_tokens(self) -> int:
        """Tokens that one step schedules at most."""
        ...

    def add(self, request: Request) -> EngineStay:
        """Raises, and holds nothing of it, if the request is not acceptable."""
        ...

    def step(self) -> Metrics: ...


class BootRefusedError(Exception):
    """The engine cannot start; `kind` and `permanent` as in BootFailed."""

    def __init__(self, kind: str, text: str, permanent: bool) -> None:
        super().__init__(text)
        self.kind, self.permanent = kind, permanent


Load = Callable[[Mapping[str, Any]], Engine]
