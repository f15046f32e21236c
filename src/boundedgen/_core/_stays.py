"""A stay: one admission of a sequence to one incarnation of the engine."""

from attrs import define

from boundedgen._core._phases import StayPhase
from boundedgen._core._sequences import Submission


@define(eq=False)
class Stay:
    """Capacity and reclaim belong to it: its reservation is given back when it is GONE, and not before."""

    id: int
    submission: Submission
    incarnation: int
    needs: tuple[int, ...]  #: reserved blocks by pool; empty for the probe, which has its own
    admitted_at: float
    probe: bool = False
    phase: StayPhase = StayPhase.ADMITTED
    taken: bool = False  #: the engine has acknowledged the admission
    stop_at: float | None = None  #: when it began to be STOPPING

    @property
    def sequence(self) -> int:
        return self.submission.id
