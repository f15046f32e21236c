"""Once over, a lease is over; an outage costs nobody his lease, and saves nobody twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._core._leases import Lease, Leases


def granted(ttl: float = 5.0, grace: float = 2.0, at: float = 0.0) -> tuple[Leases, Lease]:
    leases, row = Leases(grace), Lease("a", "owner", ttl)
    leases.grant(row, at)
    return leases, row


def test_it_is_live_until_its_ttl_and_over_at_it() -> None:
    leases, row = granted()
    assert leases.expired(4.999) == []
    assert leases.expired(5.0) == [row]
    assert "a" not in leases


def test_one_that_is_over_is_never_renewed() -> None:
    leases, _ = granted()
    leases.expired(5.0)
    assert not leases.renew("a", 5.0)
    assert not leases.renew("a", 0.0), "not with evidence from before its end either"
    assert leases.earliest() is None


def test_one_whose_time_has_come_is_not_renewed_even_before_anybody_ended_it() -> None:
    leases, row = granted()
    assert not leases.renew("a", 5.0)
    assert leases.expired(5.0) == [row]


def test_evidence_that_arrives_late_counts_from_when_it_was_given() -> None:
    leases, row = granted()
    assert leases.renew("a", 3.0)
    assert row.expires == 8.0
    assert leases.renew("a", 1.0), "older evidence is true, and adds nothing"
    assert row.expires == 8.0


def test_whoever_is_there_when_it_would_expire_keeps_it() -> None:
    leases, row = granted()
    assert leases.seen("a", 4.0, 7.0)
    assert row.expires == 12.0


def test_whoever_comes_when_it_has_expired_does_not() -> None:
    leases, row = granted()
    assert not leases.seen("a", 5.0, 7.0)
    assert leases.expired(7.0) == [row]


def test_ending_it_gives_it_once() -> None:
    leases, row = granted()
    assert leases.end("a") is row
    assert leases.end("a") is None
    assert leases.expired(100.0) == []


def test_looking_at_what_is_due_ends_nothing() -> None:
    leases, row = granted()
    assert leases.overdue(5.0) == ["a"] == leases.overdue(6.0)
    assert leases.renew("a", 4.0)
    assert leases.overdue(8.9) == []
    assert leases.expired(9.0) == [row]


def test_grace_is_added_to_what_was_left_up_to_the_ttl() -> None:
    leases, row = granted(ttl=5.0, grace=2.0)
    leases.grace(4.0)
    assert row.expires == 7.0
    leases, row = granted(ttl=5.0, grace=60.0)
    leases.grace(4.0)
    assert row.expires == 9.0, "at most its ttl from now"


def test_grace_never_takes_anything_away() -> None:
    leases, row = granted(ttl=5.0, grace=2.0)
    leases.grace(0.0)
    assert row.expires == 5.0


def test_there_is_no_second_grace_without_a_renewal() -> None:
    leases, row = granted(ttl=5.0, grace=2.0)
    leases.grace(3.0)
    leases.grace(3.5)
    assert row.expires == 7.0
    assert leases.renew("a", 4.0)
    leases.grace(5.0)
    assert row.expires == 10.0, "9 by the renewal, and 10 is its ttl from now"


def test_an_id_is_never_granted_twice_at_once() -> None:
    leases, _ = granted()
    with pytest.raises(AssertionError):
        leases.grant(Lease("a", "other", 1.0), 0.0)


@given(st.lists(st.tuples(st.sampled_from(["renew", "expire", "grace"]), st.floats(0.0, 2.0)), max_size=40))
def test_over_means_over_whatever_follows(script: list[tuple[str, float]]) -> None:
    leases, row = granted(ttl=1.5, grace=0.5)
    now, over = 0.0, False
    for what, later in script:
        now += later
        match what:
            case "renew":
                due = row.expires <= now
                assert leases.renew("a", now) is not (over or due)
            case "expire":
                over = bool(leases.expired(now)) or over
            case "grace":
                leases.grace(now)
        assert over is ("a" not in leases)
        assert row.expires <= now + row.ttl or over
