"""Counters: one ending updates everything that counts it, in one place."""

from collections import Counter

from attrs import define, field

from boundedgen._core._times import RECLAIM, Times


@define
class Tally:
    submitted: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    late_tokens: int = 0
    accepted_tokens: int = 0  #: drafted ones
    proposed_tokens: int = 0
    steps: int = 0
    restarts: int = 0
    requeued: int = 0
    hopeless: int = 0  #: not let in, since their deadlines could not be met any more
    resumed: int = 0
    paused: int = 0
    quarantined: int = 0
    ghosts: int = 0  #: stays that only the engine knew; stopped
    forgotten: int = 0  #: stays that the engine no longer knew; ended
    finished: Counter[str] = field(factory=Counter)
    deadlines: Counter[str] = field(factory=Counter)
    leases: Counter[str] = field(factory=Counter)
    kills: Counter[str] = field(factory=Counter)
    times: Times = field(factory=Times)
    reclaim_steps_max: int = 0
    reclaim_seconds_max: float = 0.0

    def reclaim(self, steps: int, seconds: float) -> None:
        """A stay that was made to leave has left, proved."""
        self.times.add(RECLAIM, seconds)
        self.reclaim_steps_max = max(self.reclaim_steps_max, steps)
        self.reclaim_seconds_max = max(self.reclaim_seconds_max, seconds)
