"""What is promised of Admission "adaptive": nobody overflows the cache, and who is paused was the least urgent."""

import math

from attrs import define, field, frozen

from boundedgen._core import _events as ev
from boundedgen._core._admission import CALM
from boundedgen._core._sequences import Submission
from boundedgen.testing._faults import FaultKind as K
from boundedgen.testing._sim import SimEngine


@frozen
class Inside:
    """A stay, as it went to the engine."""

    rank: tuple[int, float, int]  #: least urgent first: priority, then the latest deadline, then the youngest
    pausable: bool


@define(eq=False)
class Pauses:
    adaptive: bool
    inside: dict[int, Inside] = field(factory=dict)  #: by stay; who may still be running
    taken: set[int] = field(factory=set)
    put_back: set[int] = field(factory=set)  #: stays whose sequences wait to come in again
    paused: int = 0
    calm_until: int = 0

    def spawned(self) -> None:
        self.inside, self.taken, self.calm_until = {}, set(), 0

    def admitted(self, effect: ev.Admit, submission: Submission, gap: float) -> None:
        if not self.adaptive or submission.probe:
            assert effect.claim is None, "its blocks are set aside"
            return
        assert effect.claim is not None
        pausable = submission.continuable and submission.sequences == 1 and gap == math.inf
        assert effect.claim.pausable is pausable
        self.inside[effect.stay] = Inside((submission.priority, -effect.deadline, -submission.id), pausable)

    def reported(self, report: ev.Progress, engine: SimEngine) -> None:
        turned_back = {refusal.stay for refusal in report.refused if refusal.code == ev.NO_ROOM}
        ended = {finish.stay for finish in report.finished}
        assert not (report.paused or turned_back) or self.adaptive
        assert set(report.paused) <= set(report.stopping)
        leaving = {*report.stopping, *ended, *turned_back, *(release.stay for release in report.released)}
        if report.paused and K.FORGOTTEN not in engine.triggered:
            self._check_who(report.paused, leaving)
        for gone in leaving:
            self.inside.pop(gone, None)
        self.taken |= {*report.taken} & self.inside.keys()
        self.put_back |= {*report.paused, *turned_back}
        self.paused += len(report.paused)
        if report.paused or turned_back:
            self.calm_until = report.steps + CALM

    def _check_who(self, paused: tuple[int, ...], leaving: set[int]) -> None:
        """All that was in the engine when it was decided, and is now."""
        assert all(self.inside[stay].pausable for stay in paused), "what cannot be continued is never paused"
        least = max(self.inside[stay].rank for stay in paused)
        others = [one for stay, one in self.inside.items() if stay in self.taken and stay not in leaving]
        assert all(one.rank > least for one in others if one.pausable), "the least urgent is paused"

    def left(self, stay: int) -> None:
        """Somebody who does not come back: there is room."""
        if stay not in self.put_back:
            self.calm_until = 0

    def check_the_cache(self, engine: SimEngine) -> None:
        """By the engine's own account. A stop that has no effect is a fault that no foresight helps against."""
        if K.LOST_STOP in engine.triggered:
            return
        assert not engine.preempted, "the engine's own preemption is never needed"
        for pool in engine.model.pools:
            assert engine.scheduler.used(pool) <= pool.blocks
