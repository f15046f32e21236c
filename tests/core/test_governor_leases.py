"""Leases and tightened bounds, as the governor sees them."""

import math

import pytest
from core.governed import Governed

from boundedgen._bounds import Bounds, Deadline
from boundedgen._core import _events as ev
from boundedgen._core._events import Finish, Output, Release
from boundedgen._core._leases import Lease


def released(stay: int) -> tuple[Release, ...]:
    return (Release(stay, 1, 0.01, 0),)


# --- leases and tightening -------------------------------------------------------------------------------------------


def test_everything_under_a_lease_ends_with_it() -> None:
    g = Governed()
    g.lease(ttl=5.0)
    running, _ = g.running(lease="lease")
    g.running()
    waiting = g.submit(lease="lease")
    other = g.submit()
    g.governor.revoke("lease", g.now)
    g.tick()
    assert (g.reason(running), g.reason(waiting), g.reason(other)) == ("lease", "lease", None)
    assert g.all(ev.EndLease) == [ev.EndLease("lease", "revoked")]
    assert g.reason(g.submit(lease="lease")) == "lease", "submitted in the meantime"


def test_a_lease_that_was_revoked_before_it_was_granted_lives_no_longer_than_to_the_revocation() -> None:
    g = Governed()
    g.governor.grant(Lease("lease", "owner", 5.0), g.now)
    g.governor.revoke("lease", g.now)
    g.tick()
    assert len(g.governor.leases) == 0
    assert g.all(ev.EndLease) == [ev.EndLease("lease", "revoked")], "whoever keeps a row of it can drop it"
    assert g.governor.tally.leases == {"granted": 1, "revoked": 1}


def test_a_lease_stands_still_while_the_engine_is_replaced_and_has_a_grace_then() -> None:
    g = Governed()
    g.lease(ttl=5.0)
    sequence = g.submit(lease="lease", prompt=29, new=4, cleared=False)
    g.tick(4.0)
    g.die()
    g.tick(100.0)
    g.restarted()
    assert g.reason(sequence) is None
    g.tick(2.9)
    assert g.reason(sequence) is None, "one second was left, and two of grace"
    g.tick(0.2)
    assert g.reason(sequence) == "lease"


def test_an_implicit_lease_ends_with_its_sequence_and_leaves_nothing() -> None:
    g = Governed()
    sequence, stay = g.running(implicit_ttl=5.0)
    g.tick(4.0)
    g.governor.seen(f"implicit-{sequence}", g.now, g.now)
    g.tick(4.0)
    assert g.reason(sequence) is None
    g.step(outputs=(Output(stay, (1,)),), finished=(Finish(stay, "stop"),), released=released(stay))
    assert len(g.governor.leases) == 0
    silent, _ = g.running(implicit_ttl=5.0)
    for _ in range(10):
        g.step()
        g.tick(0.5)
    assert g.reason(silent) == "lease"


def test_tightening_counts_total_from_submission_and_the_rest_from_now() -> None:
    g = Governed()
    one, _ = g.running()
    other, _ = g.running()
    g.tick(3.0)
    g.governor.tighten(one, Bounds(total=4.0), g.now, g.now)
    g.governor.tighten(other, Bounds(first_token=4.0), g.now, g.now)
    g.step()
    g.tick(1.0)
    assert (g.reason(one), g.reason(other)) == ("deadline", None)
    for _ in range(3):
        g.step()
        g.tick(1.0)
    assert g.reason(other) == "deadline"


def test_tightening_never_gives_more_time() -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=5.0, first_token=4.0, next_token=2.0))
    looser = Bounds(total=50.0, queued=50.0, first_token=50.0, next_token=50.0)
    g.governor.tighten(sequence, looser, g.now, g.now)
    g.step(outputs=(Output(stay, (1,)),))
    g.tick(1.5)
    g.governor.tighten(sequence, looser, g.now, g.now)
    g.step()
    g.tick(0.5)
    settled = g.settled(sequence)
    assert settled is not None
    assert settled.bound == "next_token"


@pytest.mark.parametrize("loose", [math.inf, 1e9])
def test_a_gap_that_was_tightened_to_nothing_finite_can_be_tightened_still(loose: float) -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(next_token=loose))
    g.step(outputs=(Output(stay, (1,)),))
    g.governor.tighten(sequence, Bounds(next_token=loose), g.now, g.now)
    g.governor.tighten(sequence, Bounds(next_token=1.0), g.now, g.now)
    g.tick(0.9)
    assert g.reason(sequence) is None
    g.tick(0.11)
    assert g.reason(sequence) == "deadline"


@pytest.mark.parametrize("name", ["total", "queued", "first_token", "next_token"])
@pytest.mark.parametrize("under_way", [True, False])
def test_tightening_to_minus_infinity_ends_it_at_once(name: str, under_way: bool) -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=50.0, next_token=5.0))
    if under_way:
        g.step(outputs=(Output(stay, (1,)),))
    for _ in range(2):
        g.governor.tighten(sequence, Bounds(**{name: -math.inf}), g.now, g.now)
    g.tick()
    over = {"queued"} | ({"first_token"} if under_way else set())
    assert g.reason(sequence) == (None if name in over else "deadline"), "what was met once cannot be missed"


def test_tightening_the_gap_that_is_under_way_ends_it_at_the_earlier_of_both() -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=600, next_token=5.0))
    g.step(outputs=(Output(stay, (1,)),))
    g.tick(1.0)
    g.governor.tighten(sequence, Bounds(next_token=2.0), g.now, g.now)
    for _ in range(19):
        g.step()
        g.tick(0.1)
    assert g.reason(sequence) is None
    g.tick(0.11)
    assert g.reason(sequence) == "deadline"


def test_a_gap_that_was_not_bounded_before_counts_from_the_tightening() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.step(outputs=(Output(stay, (1,)),))
    g.tick(3.0)
    g.governor.tighten(sequence, Bounds(next_token=2.0), g.now, g.now)
    assert g.governor.sequences[sequence].ready_deadline() == Deadline(g.governor.clock.at(g.now) + 2.0, "next_token")


def test_tightening_another_bound_leaves_the_gap_that_is_under_way_alone() -> None:
    g = Governed()
    sequence, stay = g.running(bounds=Bounds(total=600, next_token=4.0))
    g.step(outputs=(Output(stay, (1,)),))
    due = g.governor.sequences[sequence].ready_deadline()
    g.tick(3.0)
    g.governor.tighten(sequence, Bounds(total=100), g.now, g.now)
    assert g.governor.sequences[sequence].ready_deadline() == due


@pytest.mark.parametrize("waiting", [True, False])
def test_tightening_to_nothing_ends_it_at_the_next_tick(waiting: bool) -> None:
    g = Governed()
    if waiting:
        g.running(prompt=29, new=4)
    sequence = g.submit(prompt=29, new=4)
    g.tick(1.0)
    g.governor.tighten(sequence, Bounds(total=0.0), g.now, g.now)
    g.tick()
    assert g.reason(sequence) == "deadline"
