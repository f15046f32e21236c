"""What the simulated child keeps: a row a stay, and the step in flight."""

from typing import final

from attrs import define, field

from boundedgen._core._events import Release, SequenceResult
from boundedgen._engine._load import sequences_of
from boundedgen.abc import Request
from boundedgen.testing._faults import Fault
from boundedgen.testing._sim_scheduler import StepOutcome

__all__ = ["Row", "Step"]


@final
@define(eq=False)
class Row:
    """The child's own table: what it knows of a stay."""

    request: Request
    tokens: list[int] = field(factory=list)
    ended: bool = False  #: by itself, and said so
    stop_taken_at: float | None = None
    steps_at_stop: int = 0
    late_tokens: int = 0
    release_not_before: int = 0  #: step number, for LATE_FREE
    leaked: bool = False
    over: bool = False  #: gone from the scheduler, release not reported

    @property
    def sequences(self) -> int:
        """That are computed for it at once."""
        return sequences_of(self.request)

    def logprobs(self, tokens: int) -> tuple[float, ...]:
        """Of so many tokens; none where none were asked for."""
        return (-0.5,) * tokens if self.request.config.get("logprobs") else ()

    def release(self, steps: int, at: float) -> Release:
        """After so many steps, at that instant."""
        stopped, stay = self.stop_taken_at, self.request.stay
        if stopped is None:
            return Release(stay, steps=0, seconds=0.0, late_tokens=self.late_tokens)
        return Release(stay, steps=steps - self.steps_at_stop, seconds=at - stopped, late_tokens=self.late_tokens)

    def results(self, vocab_size: int) -> tuple[SequenceResult, ...]:
        """Of a request of several sequences: those that were asked for, best first."""
        if self.sequences == 1:
            return ()
        wanted = self.request.config.get("num_return_sequences", 1)
        texts = [tuple((token + n) % vocab_size for token in self.tokens) for n in range(wanted)]
        return tuple(SequenceResult(text, self.logprobs(len(text)), -float(n)) for n, text in enumerate(texts))


@final
@define(eq=False)
class Step:
    """The step in flight."""

    began: float
    ends: float
    outcome: StepOutcome
    fate: Fault | None = None
