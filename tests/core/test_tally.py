"""One ending updates everything that counts it."""

from boundedgen._core._tally import RECLAIM_EDGES, Tally


def test_a_reclaim_is_in_the_count_in_both_maxima_and_in_its_bucket() -> None:
    tally = Tally()
    tally.reclaim(2, 0.02)
    tally.reclaim(1, RECLAIM_EDGES[0])  # an edge belongs to the bucket below it
    tally.reclaim(1, RECLAIM_EDGES[-1] + 1)
    assert (tally.reclaimed, tally.reclaim_steps_max) == (3, 2)
    assert tally.reclaim_seconds_max == RECLAIM_EDGES[-1] + 1
    assert tally.reclaim_histogram == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    tally.reclaim(5, 0.02)
    assert (tally.reclaimed, tally.reclaim_steps_max, tally.reclaim_seconds_max) == (4, 5, RECLAIM_EDGES[-1] + 1)
