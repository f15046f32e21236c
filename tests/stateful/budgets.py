"""What a step may take, from all that was ever heard of an engine's steps: nothing is forgotten, only weighed."""

import math

from attrs import define, field, frozen

from boundedgen._bounds import Limits
from boundedgen._core import _events as ev

FIRST_STEPS, NEW_STEPS, MARGIN, KEPT = 3, 2, 5.0, 511 / 512


@frozen
class Heard:
    """One step that returned, with a report of its own."""

    incarnation: int
    size: int
    rate: float | None  #: multiple of what the limits give it; None: the driver stood still meanwhile


def size_of(tokens: int) -> int:
    return 0 if tokens == 0 else min(23, 1 + math.floor(math.log2(tokens)))


@define
class Budgets:
    limits: Limits
    incarnation: int = 0
    heard: list[Heard] = field(factory=list)
    _steps: int = 0

    def spawned(self, incarnation: int) -> None:
        self.incarnation, self._steps = incarnation, 0

    def received(self, report: ev.Progress, woke_at: float) -> None:
        alone, self._steps = report.steps == self._steps + 1, report.steps
        if alone:
            given = self._given(report.tokens, report.attention)
            took = min(report.ended - report.began, self.limits.step_max)
            rate = took / given if report.began > woke_at else None
            self.heard.append(Heard(self.incarnation, size_of(report.tokens), rate))

    def _given(self, tokens: int, attention: int) -> float:
        lim = self.limits
        return lim.step + lim.step_per_token * tokens + lim.step_per_attention * attention

    def of(self, pulse: ev.Pulse) -> float:
        size = size_of(pulse.scheduled)
        slower = max((self._rate(smaller) for smaller in range(size + 1)), default=0.0)
        given = self._given(pulse.scheduled, pulse.attention) * max(1.0, MARGIN * slower)
        mine = [step for step in self.heard if step.incarnation == self.incarnation and step.size == size]
        new = self.limits.new_shape if len(mine) < NEW_STEPS else 0.0
        first = self.limits.first_step if pulse.steps_begun <= FIRST_STEPS else 0.0
        return min(given, self.limits.step_max) + max(first, new)

    def _rate(self, size: int) -> float:
        """The largest that two successive steps agree on; each later step makes it count a little less."""
        steps = [step for step in self.heard if step.size == size and step.rate is not None]
        agreed = [0.0]
        for age, (step, before) in enumerate(zip(steps[:0:-1], steps[-2::-1], strict=True)):
            if step.incarnation == before.incarnation:
                assert step.rate is not None
                assert before.rate is not None
                agreed.append(min(step.rate, before.rate) * KEPT**age)
        return max(agreed)
