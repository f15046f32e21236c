"""What the histograms of times must tell in every moment, from what was asked and seen."""

import math
from collections.abc import Iterable

from attrs import define, field, frozen

from boundedgen._core import _events as ev
from boundedgen._core._sequences import Submission
from boundedgen._core._times import EDGES, FIRST_TOKEN, KINDS, NEXT_TOKEN, QUEUED, STEP, TOTAL, Times

COUNTED = (QUEUED, FIRST_TOKEN, NEXT_TOKEN, TOTAL, STEP)


@frozen
class Entering:
    """A first stay that the engine has not taken yet."""

    waited: float
    stay: int


@define(eq=False)
class Durations:
    seen: dict[int, list[int]] = field(factory=lambda: {kind: [0] * (len(EDGES) + 1) for kind in KINDS})
    sums: dict[int, float] = field(factory=lambda: dict.fromkeys(KINDS, 0.0))
    steps: int = 0  #: of this incarnation
    entering: dict[int, Entering] = field(factory=dict)
    token_at: dict[int, float] = field(factory=dict)  #: of the last one, by sequence

    def took(self, kind: int, seconds: float, times: int = 1) -> None:
        taken = max(0.0, seconds)
        self.seen[kind][next((n for n, edge in enumerate(EDGES) if taken <= edge), len(EDGES))] += times
        self.sums[kind] += taken * times

    def spawned(self) -> None:
        self.steps = 0

    def admitted(self, stay: int, submission: Submission, now: float, *, first: bool) -> None:
        if first and not submission.probe:
            self.entering[stay] = Entering(now - submission.submitted_at, stay)

    def entered(self, stays: Iterable[int]) -> None:
        """The engine has taken them, or they are gone otherwise than by its refusal."""
        for stay in stays:
            if (found := self.entering.pop(stay, None)) is not None:
                self.took(QUEUED, found.waited)

    def refused(self, stay: int) -> None:
        self.entering.pop(stay, None)

    def reported(self, report: ev.Progress) -> None:
        new, self.steps = report.steps - self.steps, report.steps
        if new:
            self.took(STEP, (report.ended - report.began) / new, new)

    def shown(self, submission: Submission, tokens: int, now: float) -> None:
        if submission.probe or not tokens:
            return
        before, self.token_at[submission.id] = self.token_at.get(submission.id), now
        if before is None:
            self.took(FIRST_TOKEN, now - submission.submitted_at)
        else:
            self.took(NEXT_TOKEN, now - before)
        self.took(NEXT_TOKEN, 0.0, tokens - 1)

    def shown_at_the_end(self, submission: Submission, now: float) -> None:
        self.took(FIRST_TOKEN, now - submission.submitted_at)

    def settled(self, submission: Submission, now: float) -> None:
        if not submission.probe:
            self.took(TOTAL, now - submission.submitted_at)

    def check(self, times: Times) -> None:
        for kind in COUNTED:
            assert times.rows[kind] == self.seen[kind], f"{kind}: a time was not counted, or twice, or as another"
            assert math.isclose(times.sums[kind], self.sums[kind], rel_tol=1e-9, abs_tol=1e-9), f"{kind}: its sum"
