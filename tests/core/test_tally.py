"""One ending updates everything that counts it."""

from boundedgen._core._tally import Tally
from boundedgen._core._times import EDGES, RECLAIM


def test_a_reclaim_is_in_both_maxima_and_among_the_times() -> None:
    tally = Tally()
    tally.reclaim(2, 0.02)
    tally.reclaim(1, EDGES[-1] + 1)
    assert (tally.reclaim_steps_max, tally.reclaim_seconds_max) == (2, EDGES[-1] + 1)
    assert (sum(tally.times.rows[RECLAIM]), tally.times.sums[RECLAIM]) == (2, EDGES[-1] + 1.02)
    tally.reclaim(5, 0.02)
    assert (tally.reclaim_steps_max, tally.reclaim_seconds_max) == (5, EDGES[-1] + 1)
    assert sum(tally.times.rows[RECLAIM]) == 3
