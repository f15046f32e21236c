"""How long things took: histograms with fixed edges, of which a photograph is taken at each wake."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from attrs import define, field

#: Upper edges, in seconds; what is above the last one has a bucket too.
EDGES: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5),
    *(1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
WIDTH: Final = len(EDGES) + 1
QUEUED, FIRST_TOKEN, NEXT_TOKEN, TOTAL, STEP, RECLAIM = KINDS = range(6)
Photograph = tuple[Sequence[Sequence[int]], Sequence[float]]  #: by kind: buckets, each alone; seconds in all


@define
class Times:
    """A row that was photographed stays as it is: each change makes a new one, of a few numbers."""

    rows: list[list[int]] = field(factory=lambda: [[0] * WIDTH for _ in KINDS])  #: the buckets of each kind
    sums: list[float] = field(factory=lambda: [0.0] * len(KINDS))  #: seconds, of each kind

    def add(self, kind: int, seconds: float, times: int = 1) -> None:
        """It took so long, so many times. Less than nothing, by clocks that were read in another order, is nothing."""
        taken = max(0.0, seconds)
        self.rows[kind] = row = self.rows[kind].copy()
        row[bisect_left(EDGES, taken)] += times
        self.sums[kind] += taken * times

    def photograph(self) -> Photograph:
        return self.rows.copy(), self.sums.copy()
