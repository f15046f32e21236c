"""A stay: one admission of a sequence to one incarnation of the engine."""

from attrs import define

from boundedgen._core._phases import StayPhase
from boundedgen._core._sequences import Sequence, Submission


@define(eq=False)
class Stay:
    """Capacity and reclaim belong to it: its reservation is given back when it is GONE, and not before."""

    id: int
    submission: Submission
    incarnation: int
    needs: tuple[int, ...]  #: reserved blocks by pool; empty for the probe, which has its own
    admitted_at: float
    probe: bool = False
    occupant: Sequence | None = None  #: also once that is settled
    phase: StayPhase = StayPhase.ADMITTED
    before: int = 0  #: tokens that earlier stays had generated; here they are part of the prompt
    tokens: int = 0  #: generated in it
    expected: int = 0  #: tokens, those before included, that `needs` is for
    first: bool = False  #: its sequence had never been inside
    entered: int = 0  #: steps of its engine that had ended when it was admitted
    longest: int | None = None  #: of its results, in tokens, once they are known
    first_at: float | None = None  #: of its first token
    last_at: float = 0.0  #: of its last token
    taken: bool = False  #: the engine has acknowledged the admission
    stop_at: float | None = None  #: when it began to be STOPPING

    def heard(self, tokens: int, now: float) -> None:
        """It has generated some, one step after the other."""
        self.tokens += tokens
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now

    def computed(self, steps: int) -> int:
        """Tokens, as well as it is known, `steps` of its engine having ended. Several sequences, beams among them, show
        none before they finish and then not all: each of them has had one a step, or as many as the longest result."""
        sequences, most = self.submission.sequences, self.submission.max_new_tokens
        if sequences == 1:
            return self.tokens
        each = max(0, steps - self.entered) if self.longest is None else self.longest
        return sequences * min(most, each)

    @property
    def sequence(self) -> int:
        return self.submission.id
