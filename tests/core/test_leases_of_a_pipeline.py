"""Leases and shares as users hold them: renewed by whom, limited to what. The engine is under the test's hand."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tenacity
from core.hand_engine import A, HandEngine, held_up, lane, until
from counts import happened

import boundedgen as b


def test_an_explicit_lease_is_renewed_by_renew_and_by_nothing_else() -> None:
    with lane() as (pipeline, engine):
        lease = pipeline.lease("me", ttl=10)
        g = pipeline.submit("x", max_new_tokens=20, lease=lease)
        assert (g.owner, lease.live, lease.ttl_s) == ("me", True, 10)
        stream = iter(g)
        for _ in range(3):
            engine.clock.skip(4)
            engine.say(A)
            next(stream)
            if lease.remaining_s > 4:
                lease.renew()
        engine.clock.skip(9)
        engine.say(A)
        with pytest.raises(b.LeaseLost):  # noqa: PT012
            for _ in stream:
                engine.clock.skip(2)
        assert not lease.live
        with pytest.raises(b.LeaseExpired):
            lease.renew()
        with pytest.raises(b.LeaseExpired):
            pipeline.submit("x", lease=lease)


def test_with_renew_on_read_whoever_reads_keeps_it() -> None:
    with lane() as (pipeline, engine):
        lease = pipeline.lease("me", ttl=10, renew_on_read=True)
        g = pipeline.submit("x", max_new_tokens=20, lease=lease)
        stream = iter(g)
        for _ in range(5):
            engine.clock.skip(6)
            engine.say(A)
            assert next(stream).text == "a"
        assert g.phase == "running"
        engine.clock.skip(11)
        until(lambda: g.phase == "settled")
        assert g.finish_reason is b.FinishReason.LEASE
        until(lambda: not lease.live)


def test_an_implicit_lease_is_kept_by_reading_and_lost_by_silence() -> None:
    with lane(lease_ttl=10) as (pipeline, engine):
        read, left = (pipeline.submit("x", max_new_tokens=20) for _ in range(2))
        stream = iter(read)
        for _ in range(3):
            engine.clock.skip(6)
            engine.say(A)
            next(stream)
        until(lambda: left.phase == "settled")
        assert left.finish_reason is b.FinishReason.LEASE
        assert read.phase == "running"


def test_a_blocked_waiter_is_there_for_as_long_as_it_waits() -> None:
    with lane(lease_ttl=5) as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=20)
        results: list[b.Completion] = []
        waiter = threading.Thread(target=lambda: results.append(g.result(20)))
        waiter.start()
        until(lambda: g._flow._readers)
        for _ in range(6):
            engine.clock.skip(4)
            time.sleep(0.01)
        assert g.phase == "running"
        engine.say(A)
        engine.finish()
        waiter.join(20)
        assert [r.text for r in results] == ["a"]
        assert pipeline.stats().leases == 0


def test_revoking_ends_everything_under_it_and_is_done_once() -> None:
    with lane() as (pipeline, _engine):
        with pipeline.lease("me", ttl=60) as lease:
            under = [pipeline.submit("x", max_new_tokens=8, lease=lease.id) for _ in range(6)]
            other = pipeline.submit("x", max_new_tokens=8)
            assert pipeline.find_lease(lease.id) is lease
        for g in under:
            with pytest.raises(b.LeaseLost):
                g.result(20)
        assert other.phase != "settled"
        assert not pipeline.revoke(lease.id)
        assert pipeline.find_lease(lease.id) is None


def test_unknown_expired_and_another_owner_s_lease_look_alike() -> None:
    with lane() as (pipeline, engine):
        lease = pipeline.lease("me", ttl=60)
        messages = set()
        for id_, owner in (("0" * 32, None), (lease.id, "you")):
            with pytest.raises(b.LeaseExpired) as caught:
                pipeline.renew(id_, owner)
            messages.add(str(caught.value))
        assert pipeline.renew(lease.id, "me") is lease
        engine.clock.skip(61)
        with pytest.raises(b.LeaseExpired) as caught:
            pipeline.renew(lease.id, "me")
        messages.add(str(caught.value))
        assert len(messages) == 1


def test_a_lease_counts_from_its_grant_however_late_the_driver_hears_of_it() -> None:
    with lane() as (pipeline, engine):
        with held_up(engine):
            lease = pipeline.lease("me", ttl=60)
            engine.clock.skip(61)
        until(lambda: pipeline.stats().leases_total["expired"] == 1)
        assert not lease.live


def test_the_owner_comes_from_the_lease() -> None:
    with lane() as (pipeline, _engine):
        lease = pipeline.lease("me", ttl=60)
        with pytest.raises(b.InvalidRequest, match="owner comes from the lease"):
            pipeline.submit("x", lease=lease, owner="you")
        assert pipeline.submit("x", max_new_tokens=8, lease=lease, owner="me").owner == "me"


# --- limits ----------------------------------------------------------------------------------------------------------


def refused(pipeline: b.BoundedPipeline, **arguments: Any) -> b.Saturated:
    with pytest.raises(b.Saturated) as caught:
        pipeline.submit("x", max_new_tokens=8, **arguments)
    assert caught.value.retry_after_s > 0
    return caught.value


def test_a_lease_has_as_many_sequences_as_it_may_have_and_each_end_makes_room() -> None:
    with lane() as (pipeline, _engine):
        lease = pipeline.lease("me", ttl=60, max_sequences=2)
        first, second = (pipeline.submit("x", max_new_tokens=8, lease=lease) for _ in range(2))
        assert "lease" in str(refused(pipeline, lease=lease))
        first.cancel()
        until(lambda: first.phase == "settled")
        third = pipeline.submit("x", max_new_tokens=8, lease=lease)
        refused(pipeline, lease=lease)
        assert {second.phase, third.phase} <= {"waiting", "running"}


def test_an_owner_has_as_many_as_it_may_have_and_others_are_not_in_its_way() -> None:
    with lane(limits=b.Limits(owner_max=1, progress=1e6)) as (pipeline, engine):
        mine = pipeline.submit("x", max_new_tokens=8, owner="me")
        refused(pipeline, owner="me")
        yours = pipeline.submit("x", max_new_tokens=8, owner="you")
        engine.stay(1)
        engine.say(A)
        engine.finish()
        mine.result(20)
        again = pipeline.submit("x", max_new_tokens=8, owner="me")
        assert {again.phase, yours.phase} <= {"waiting", "running"}


def test_a_full_queue_refuses_and_what_is_refused_costs_nothing() -> None:
    with lane(HandEngine(running_max=1), limits=b.Limits(waiting_max=2, owner_max=5, progress=1e6)) as (
        pipeline,
        _engine,
    ):
        running = pipeline.submit("x", max_new_tokens=8)
        until(lambda: running.phase == "running")
        waiting = [pipeline.submit("x", max_new_tokens=8) for _ in range(2)]
        for _ in range(20):
            refused(pipeline)
        until(lambda: pipeline.stats().submitted_total == 3)
        assert happened(pipeline.stats().rejected_total) == {"Saturated": 20}
        waiting[0].cancel()
        until(lambda: waiting[0].phase == "settled")
        waiting[0] = pipeline.submit("x", max_new_tokens=8)
        refused(pipeline)


def test_a_call_that_is_refused_for_another_reason_gives_its_places_back() -> None:
    with lane(limits=b.Limits(waiting_max=3, owner_max=2, progress=1e6)) as (pipeline, _engine):
        lease = pipeline.lease("me", ttl=60, max_sequences=1)
        for _ in range(10):
            with pytest.raises(b.NeverFits) as kept:  # with its traceback, and all that is on it
                pipeline.submit("x" * 2000, max_new_tokens=8, lease=lease)
            with pytest.raises(b.InvalidRequest):
                pipeline.submit("x", no_such_field=1, lease=lease)
            with pytest.raises(b.InvalidRequest):
                pipeline.submit(b"x", lease=lease)
            with pytest.raises(b.NeverFits):
                pipeline.generate_many(["x", "x" * 2000], max_new_tokens=8)
        assert pipeline.submit("x", max_new_tokens=8, lease=lease).phase in ("waiting", "running")
        until(lambda: pipeline.stats().submitted_total == 1)
        assert kept.value.needed


def test_leases_are_limited_and_their_places_come_back() -> None:
    with lane(limits=b.Limits(leases_max=2, progress=1e6)) as (pipeline, engine):
        first, second = pipeline.lease("a", ttl=10), pipeline.lease("b", ttl=60)
        with pytest.raises(b.Saturated):
            pipeline.lease("c", ttl=60)
        first.revoke()
        third = pipeline.lease("c", ttl=60)
        until(lambda: pipeline.stats().leases == 2 and pipeline.stats().leases_total["granted"] == 3)
        engine.clock.skip(61)
        until(lambda: len(pipeline._leasing._left) == 2)
        assert not second.live
        assert not third.live
        assert len([pipeline.lease("d", ttl=60) for _ in range(2)]) == 2


def test_a_lease_is_live_the_moment_that_its_renewal_returned() -> None:
    """Whether or not the driver has heard of it."""
    with lane() as (pipeline, engine):
        lease = pipeline.lease("me", ttl=10)
        until(lambda: pipeline.stats().leases == 1)
        for _ in range(50):
            with driver_held_up(pipeline):
                engine.clock.skip(9)
                lease.renew()
                engine.clock.skip(5)
                assert lease.remaining_s == pytest.approx(5, abs=0.5)
                assert pipeline.find_lease(lease.id) is lease
                assert pipeline.submit("x", max_new_tokens=8, lease=lease).phase in ("waiting", "running")
                lease.renew()


@contextlib.contextmanager
def driver_held_up(pipeline: b.BoundedPipeline) -> Iterator[None]:
    """It stands in the middle of a wake."""
    inside, on = threading.Event(), threading.Event()

    def stand(_now: float) -> None:
        inside.set()
        assert on.wait(20)

    governor: Any = pipeline._driver.governor
    governor.stand = stand
    pipeline._driver.post("stand")
    assert inside.wait(20)
    try:
        yield
    finally:
        on.set()


def test_a_pipeline_that_is_closed_or_failed_holds_no_lease() -> None:
    for end in (lambda pipeline, _: pipeline.close(), lambda _, engine: engine.die()):
        with lane(restart=b.RestartPolicy(stop=tenacity.stop_after_attempt(1))) as (pipeline, engine):
            lease = pipeline.lease("me", ttl=60)
            end(pipeline, engine)
            until(lambda: not pipeline.health().live)
            assert (pipeline.stats().leases, lease.live, pipeline.find_lease(lease.id)) == (0, False, None)
            assert pipeline.stats().leases_total["revoked"] == 1
            with pytest.raises(b.LeaseExpired):
                lease.renew()


def test_every_renewal_that_is_refused_is_counted_once_whatever_it_was_refused_for() -> None:
    with lane() as (pipeline, engine):
        lease = pipeline.lease("me", ttl=10)
        lease.renew()
        refusals: list[Callable[[], object]] = [
            lambda: pipeline.renew(lease.id, "somebody else"),
            lambda: pipeline.renew("0" * 32),
            lambda: pipeline.renew("no id"),
        ]
        for ask in refusals:
            with pytest.raises(b.LeaseExpired):
                ask()
        assert pipeline.stats().leases_total["refused"] == 3
        engine.clock.skip(11)
        for ask in (lease.renew, lambda: pipeline.renew(lease.id)):
            with pytest.raises(b.LeaseExpired):
                ask()
        until(lambda: pipeline.stats().leases_total["expired"] == 1)
        with pytest.raises(b.LeaseExpired):
            pipeline.submit("x", lease=lease.id)  # no renewal
        totals = pipeline.stats().leases_total
        assert (totals["renewed"], totals["refused"]) == (1, 5)
        assert pipeline.find_lease(lease.id) is None


def test_a_renewal_that_loses_the_race_with_the_expiry_is_one_refusal() -> None:
    with lane() as (pipeline, _):
        lease = pipeline.lease("me", ttl=10)
        assert lease._cell.close(), "the driver is about to end it"
        with pytest.raises(b.LeaseExpired):
            lease.renew()
        pipeline._driver.governor.leases.end(lease.id)
        until(lambda: not pipeline._driver._commands)
        assert pipeline.stats().leases_total["refused"] == 1


def test_rows_show_a_hash_of_a_lease_and_never_its_id() -> None:
    with lane() as (pipeline, engine):
        lease = pipeline.lease("me", ttl=600)
        held = pipeline.submit("x", max_new_tokens=8, lease=lease), pipeline.submit("x", max_new_tokens=8)
        engine.stay(1)
        stats = pipeline.stats(sequences=True)
        assert stats.sequences is not None
        digits = hashlib.sha256(lease.id.encode()).hexdigest()[:8]
        assert [row.lease for row in stats.sequences] == [digits, None]
        assert lease.id not in repr(stats) + str(stats.to_dict())
        assert pipeline.find_lease(lease.id) is lease
        for generation in held:
            generation.cancel()
