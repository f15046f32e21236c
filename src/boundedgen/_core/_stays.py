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
    occupant: Sequence  #: also once that is settled
    sequence: int
    probe: bool = False
    phase: StayPhase = StayPhase.ADMITTED
    before: int = 0  #: tokens that earlier stays had generated; here they are part of the prompt
    expected: int = 0  #: tokens, those before included, that `needs` is for
    first: bool = False  #: its sequence had never been inside
    entered: int = 0  #: steps of its engine that had ended when it was admitted
    longest: int | None = None  #: of its results, in tokens, once they are known
    first_at: float | None = None  #: of its first token
    taken: bool = False  #: the engine has acknowledged the admission
    stop_at: float | None = None  #: when it began to be STOPPING

    @property
    def tokens(self) -> int:
        """Generated in it."""
        return self.occupant.tokens - self.before

    def heard(self, tokens: int, now: float, reading: float) -> float | None:
        """It has generated some, one step after the other. They are visible: its occupant is above suspicion.

        Returns when the token before them was visible; None: they are the first.
        """
        occupant = self.occupant
        before, occupant.token_at = occupant.token_at, now
        occupant.tokens += tokens
        occupant.reading = reading
        occupant.suspect, occupant.fruitless = False, 0
        if self.first_at is None:
            self.first_at = now
        return before

    def computed(self, steps: int) -> int:
        """Tokens, as well as it is known, `steps` of its engine having ended. Several sequences, beams among them, show
        none before they finish and then not all: each of them has had one a step, or as many as the longest result."""
        sequences, most = self.submission.sequences, self.submission.max_new_tokens
        if sequences == 1:
            return self.tokens
        each = max(0, steps - self.entered) if self.longest is None else self.longest
        return sequences * min(most, each)
