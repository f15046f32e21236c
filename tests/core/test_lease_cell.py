"""A renewal that was answered well is never followed by an expiry before its ttl: threads against the real driver."""

import sys
import threading
import time
from collections import deque

import pytest
from core.hand_engine import HandEngine, lane, until

from boundedgen import Lease, LeaseExpired
from boundedgen._core._leases import Lease as Row
from boundedgen._door import Place
from boundedgen._lease import LeaseCell


def cell() -> tuple[LeaseCell, deque[int]]:
    """And where its place came from."""
    home = deque([0])
    place = Place(home)
    assert place.take()
    return LeaseCell(Row("id", "owner", 1.0), False, place), home


def test_who_is_first_wins_and_the_other_hears_of_it() -> None:
    one, _ = cell()
    assert one.claim()
    assert not one.close(), "there is a renewal to be looked at"
    assert one.close()
    assert not one.claim()
    other, _ = cell()
    assert other.close()
    assert not other.claim()
    assert other.close()


def test_a_renewal_that_finds_its_claim_closed_is_refused_though_there_is_time_left() -> None:
    with lane(HandEngine()) as (pipeline, _engine):
        lease = pipeline.lease("me", ttl=60)
        until(lambda: pipeline.stats().leases == 1)
        assert pipeline._driver.cells[lease.id].close()  # the driver is about to end it
        assert lease.remaining_s > 50
        with pytest.raises(LeaseExpired):
            lease.renew()


def test_a_lease_that_has_ended_is_never_claimed_again() -> None:
    one, _ = cell()
    assert one.claim()
    one.end()
    assert not one.claim()
    assert one.row.ended


def test_its_place_is_given_back_once_however_many_end_it() -> None:
    for _ in range(200):
        one, home = cell()
        go = threading.Barrier(3)

        def end(one: LeaseCell = one, go: threading.Barrier = go) -> None:
            go.wait()
            one.end()

        threads = [threading.Thread(target=end) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(home) == 1


@pytest.fixture
def fine_switching() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("fine_switching")
def test_a_renewal_that_was_answered_well_is_kept_for_its_ttl() -> None:
    """Renewers aim at the very instant of expiry, where renewal and expiry race."""
    ttl, kept, lost = 0.012, [0], [0]
    failures: list[str] = []

    def owner(lease: Lease, seed: int) -> None:
        renewed = float("-inf")  # it may be over before its thread has started
        for n in range(40):
            target = renewed + ttl - 0.0004 + ((seed * 7 + n * 13) % 9) * 0.0001
            while time.monotonic() < target:
                if lease._cell.row.ended and time.monotonic() < renewed + ttl:
                    failures.append(f"over {renewed + ttl - time.monotonic():.6f} s before its time")
                    return
            before = time.monotonic()
            try:
                lease.renew()
            except LeaseExpired:
                lost[0] += 1
                return
            renewed = before
            kept[0] += 1

    with lane() as (pipeline, _):
        end = time.monotonic() + 2.5
        while time.monotonic() < end and not failures:
            owners = [threading.Thread(target=owner, args=(pipeline.lease("o", ttl=ttl), seed)) for seed in range(3)]
            for thread in owners:
                thread.start()
            for thread in owners:
                thread.join(20)
        assert failures == []
        assert kept[0] > 20
        until(lambda: pipeline.stats().leases == 0)
        stats = pipeline.stats().leases_total
        assert stats["granted"] == stats["expired"]
        assert stats["renewed"] >= kept[0], "each that was answered well was done"
    print(f"kept {kept[0]}, lost {lost[0]}")


def test_leases_that_came_and_went_leave_nothing() -> None:
    with lane(HandEngine()) as (pipeline, _):
        for n in range(300):
            with pipeline.lease(f"owner {n}", ttl=60):
                pass
        until(lambda: not pipeline._driver.cells)
        assert pipeline.stats().leases == 0
        assert len(pipeline._leasing._left) == pipeline._limits.leases_max


def test_an_owner_that_revokes_while_the_driver_expires_harms_nobody() -> None:
    with lane() as (pipeline, _):
        for n in range(60):
            lease = pipeline.lease("owner", ttl=0.003)
            time.sleep(0.0025 + (n % 10) * 0.0001)
            lease.revoke()
        until(lambda: not pipeline._driver.cells)
        assert pipeline.health().ready
        assert len(pipeline._leasing._left) == pipeline._limits.leases_max
