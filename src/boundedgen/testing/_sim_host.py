"""`abc.EngineHost` and `abc.EngineLink` over a simulated engine: no process, no descriptor, a virtual clock."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, final

from boundedgen._core._events import Exited, Pulse, Report
from boundedgen.abc import Clock, Request, Tokenizer
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_model import SimModel

__all__ = ["SimHost", "SimLink", "SimTokenizer"]

LATE_WORDS = 256  #: reports, the latest of an incarnation
_FIRST_BYTE = 3  # below: unknown, begin, end


@final
class SimTokenizer:
    """Bytes of UTF-8, after three special ids."""

    @property
    def vocab_size(self) -> int | None:
        return _FIRST_BYTE + 256

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [1] * add_special_tokens + [_FIRST_BYTE + b for b in text.encode("utf-8", "replace")]

    def decode(self, token_ids: Sequence[int]) -> str:
        data = bytes(i - _FIRST_BYTE for i in token_ids if _FIRST_BYTE <= i < _FIRST_BYTE + 256)
        return data.decode("utf-8", "replace")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        context: Mapping[str, Any] | None,
    ) -> str:
        turns = "".join(f"<{m['role']}>{m['content']}\n" for m in messages)
        return f"{turns}<assistant>"


@final
class SimLink:
    """One incarnation of the simulated engine, as the driver sees it."""

    def __init__(self, engine: SimEngine, clock: Clock, echo: Sequence[Report] = ()) -> None:
        self.engine = engine
        self.disposed = False
        self._clock = clock
        self._late = list(echo)
        self._heard: deque[Report] = deque(maxlen=LATE_WORDS)

    @property
    def incarnation(self) -> int:
        return self.engine.incarnation

    @property
    def pid(self) -> int | None:
        return None

    def filenos(self) -> Sequence[int]:
        return ()

    def fileno_to_write(self) -> int | None:
        return None

    def admit(self, request: Request) -> None:
        self.engine.admit(request, self._clock.now())

    def stop(self, stay: int) -> None:
        self.engine.stop(stay, self._clock.now())

    def flush(self) -> None:
        """Nothing waits: commands arrive at once."""

    def under_way(self) -> Sequence[tuple[str, int]]:
        return ()

    def receive(self) -> list[Report]:
        arrived = self.engine.receive(self._clock.now())
        self._heard += arrived
        late, self._late = self._late, []
        return late + arrived

    def pulse(self) -> Pulse:
        return self.engine.pulse(self._clock.now())

    def kill(self) -> None:
        self.engine.kill(self._clock.now())

    def dispose(self) -> None:
        self.disposed = True

    def last_words(self) -> list[Report]:
        """What arrives once more after the next spawn: the latest it said, if LATE_WORDS is among its faults."""
        if not any(f.kind is FaultKind.LATE_WORDS for f in self.engine.faults):
            return []
        return [r for r in self._heard if not isinstance(r, Exited)]


@final
class SimHost:
    """Makes simulated engines; `faults` by incarnation. `links` keeps every engine it made, in order."""

    def __init__(
        self, clock: Clock, model: SimModel | None = None, faults: Mapping[int, Sequence[Fault]] | None = None
    ) -> None:
        self.clock = clock
        self.model = model or SimModel()
        self.faults = dict(faults or {})
        self.links: list[SimLink] = []
        self._tokenizer = SimTokenizer()

    def spawn(self, incarnation: int) -> SimLink:
        engine = SimEngine(incarnation, self.clock.now(), self.model, self.faults.get(incarnation, ()))
        echo = self.links[-1].last_words() if self.links else []
        self.links.append(SimLink(engine, self.clock, echo))
        return self.links[-1]

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def defaults(self) -> Mapping[str, Any]:
        return {}

    def run(self, now: float) -> bool:
        """Let the newest engine's time pass up to `now`. True: it has said what nobody has heard."""
        if not self.links:
            return False
        engine = self.links[-1].engine
        engine.run(now)
        at = engine.next_report()
        return at is not None and at <= now

    def next_event(self) -> float | None:
        """When the newest engine will do or say something next; None: nothing, by itself."""
        if not self.links:
            return None
        engine = self.links[-1].engine
        times = [t for t in (engine.next_event(), engine.next_report()) if t is not None]
        return min(times, default=None)
