"""Counters: one ending updates everything that counts it, in one place."""

from collections import Counter

from attrs import define, field

#: Upper edges, in seconds, of the histogram of reclaim times; the last bucket has no edge.
RECLAIM_EDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@define
class Tally:
    submitted: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    late_tokens: int = 0
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
    reclaimed: int = 0
    reclaim_steps_max: int = 0
    reclaim_seconds_max: float = 0.0
    reclaim_histogram: list[int] = field(factory=lambda: [0] * (len(RECLAIM_EDGES) + 1))

    def reclaim(self, steps: int, seconds: float) -> None:
        """A stay that was made to leave has left, proved."""
        self.reclaimed += 1
        self.reclaim_steps_max = max(self.reclaim_steps_max, steps)
        self.reclaim_seconds_max = max(self.reclaim_seconds_max, seconds)
        bucket = next((i for i, edge in enumerate(RECLAIM_EDGES) if seconds <= edge), len(RECLAIM_EDGES))
        self.reclaim_histogram[bucket] += 1
