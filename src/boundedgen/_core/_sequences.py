"""A sequence: deadlines, a lease, tokens and a result."""

import enum
import math
from typing import NamedTuple

from attrs import define, field, frozen

from boundedgen._bounds import Bounds, Deadline
from boundedgen._core._phases import SequencePhase


class Resume(enum.StrEnum):
    """What may become of a sequence whose engine is lost."""

    NEVER = "never"  #: it is settled
    UNSEEN = "unseen"  #: it starts anew on the next engine, unless a token was shown
    ALWAYS = "always"  #: and if some were, it goes on after them


@frozen
class Submission:
    """All that the core needs to know of a request. Prompt and configuration stay with the driver."""

    id: int
    prompt_tokens: int
    max_new_tokens: int
    sequences: int = 1
    bounds: Bounds = field(factory=Bounds)
    submitted_at: float = 0.0
    owner: str = ""
    label: str = ""
    supersede: bool = False  #: the newest of the same owner and label that is held makes way for it
    priority: int = 0
    lease: str | None = None
    implicit_ttl: float | None = None
    cleared: bool = True
    probe: bool = False
    resume: Resume = Resume.NEVER
    continuable: bool = False  #: what it has generated can be given to an engine as part of its prompt


@define(eq=False)
class Sequence:
    submission: Submission
    reading: float  #: of the ready clock, at submission or at the last visible token
    stood: float = 0.0  #: seconds for which that clock had stood still at submission
    id: int = field(init=False)
    bounds: Bounds = field(init=False)  #: tightened ones; `first_token` and `next_token` count from `reading`
    phase: SequencePhase = SequencePhase.WAITING
    stay: int | None = None  #: its stay that is not GONE; a SETTLED sequence can have one that is STOPPING
    cleared: bool = field(init=False)
    tokens: int = 0  #: visible so far
    admitted_at: float | None = None  #: the first time
    token_at: float | None = None  #: of its last visible token; None: it has shown none
    lost: int = 0  #: stays that the engine ended for lack of cache
    resumed: int = 0  #: times that it was taken up again after the loss of an engine
    paused: int = 0  #: times that it was stopped to make room for others
    crashes: int = 0  #: engines that failed, not by a hand from outside, while it was inside
    fruitless: int = 0  #: engines lost in a row, for whatever reason, with it inside and no token of it since
    strikes: int = 0  #: those of them that it is suspected of
    suspect: bool = False  #: of the last one, and it has shown no token since
    lease: str | None = None
    later: bool = False  #: it came while a switch was under way, and waits for what that comes to
    since: float = field(init=False)  #: when it was submitted, or the first of those that it superseded in turn
    elder: int = field(init=False)  #: the id of that one

    def __attrs_post_init__(self) -> None:
        submission = self.submission
        self.bounds, self.cleared = submission.bounds, submission.cleared
        self.id = self.elder = submission.id
        self.since = submission.submitted_at

    def take_the_place_of(self, other: "Sequence") -> None:
        """In the order of those that wait. Its deadlines are its own."""
        self.since, self.elder = other.since, other.elder

    @property
    def total_at(self) -> float:
        """Monotonic instant of the bound `total`; infinite without one."""
        total = self.bounds.total
        return float("inf") if total is None else self.submission.submitted_at + total

    def wall_at(self) -> float | None:
        """The earlier of `total` and, until it was first admitted, `queued`. Monotonic."""
        bound = self.bounds.total
        if self.bounds.queued is not None and self.admitted_at is None:
            bound = self.bounds.queued if bound is None else min(bound, self.bounds.queued)
        return None if bound is None else self.submission.submitted_at + bound

    def wall_deadline(self) -> Deadline | None:
        """The same with its name: `total`, if both are one."""
        at = self.wall_at()
        return None if at is None else Deadline(at, "queued" if at < self.total_at else "total")

    def ready_at(self) -> float | None:
        """`first_token` until there is one, then `next_token`: a reading of the ready clock.

        A `next_token` of zero or less ends it at once.
        """
        bound, gap = self.bounds.first_token, self.bounds.next_token
        if self.token_at is not None:
            bound = gap
        elif gap is not None and gap <= 0:
            bound = gap if bound is None else min(bound, gap)
        return None if bound is None else self.reading + bound

    def ready_deadline(self) -> Deadline | None:
        """The same with its name: `first_token`, if both are one."""
        at, first = self.ready_at(), self.bounds.first_token
        if at is None:
            return None
        in_time = self.token_at is None and first is not None and at == self.reading + first
        return Deadline(at, "first_token" if in_time else "next_token")

    def shrink(self, bounds: Bounds, at: float, reading: float) -> None:
        """`total` counts from submission, the rest from `at`; a bound only shrinks."""
        waited = at - self.submission.submitted_at
        later = reading - self.reading
        queued = None if bounds.queued is None else bounds.queued + waited
        first = None if bounds.first_token is None else bounds.first_token + later
        gap = bounds.next_token
        if gap is not None:  # what is infinite has no difference
            gap = None if gap == math.inf else max(0.0, gap)
        if gap is not None and self.token_at is not None and self.bounds.next_token is not None:
            # The gap that is under way may last until the earlier of its old end and `at` + the new bound.
            self.reading = min(self.reading + self.bounds.next_token, reading + gap) - min(gap, self.bounds.next_token)
        elif gap is not None:
            self.reading = reading if self.token_at is not None else self.reading
        self.bounds = self.bounds.tightest(Bounds(total=bounds.total, queued=queued, first_token=first, next_token=gap))


class Ended(NamedTuple):
    """A row kept of a settled sequence."""

    id: int
    label: str
    owner: str
    reason: str
    bound: str = ""
    tokens: int = 0
