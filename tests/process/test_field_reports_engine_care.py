"""Field reports on replacing, draining and watching an engine. Numbers are those of the reports."""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counts import happened
from process.lanes import (
    FULL,
    engine_pid,
    error_of,
    gone,
    kill,
    many,
    simulated_lane,
    stopped,
    until,
    until_in_step,
)

from boundedgen import (
    Bounds,
    DeadlineExceeded,
    EngineFailed,
    EngineLost,
    FinishReason,
    GenerationCancelled,
    GenerationQuarantined,
    HealthState,
    Limits,
    RestartPolicy,
    Saturated,
)

pytestmark = pytest.mark.timeout(90)


@pytest.mark.slow
def test_field_report_40_the_next_engine_is_not_started_before_the_last_one_has_left(tmp_path: Path) -> None:
    """Each locks the one device for as long as it lives, and does not boot where it is locked."""
    policy = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)
    with contextlib.closing(simulated_lane({"device": str(tmp_path / "device")}, restart=policy)) as lane:
        lane.wait_ready()
        for _ in range(20):
            was, incarnation = engine_pid(lane), lane.stats().incarnation
            kill(was)
            until(lambda n=incarnation: lane.stats().incarnation > n)  # type: ignore[misc]
            gone(was, 0.0)
            until(lambda: lane.health().ready)
        assert happened(lane.stats().kills_total) == {"died": 20}


def test_field_report_41_a_drain_has_a_deadline_whatever_it_waits_for() -> None:
    with contextlib.closing(simulated_lane({"step_s": 0.01})) as lane:
        lane.wait_ready()
        endless = many(lane, 3, 20_000)
        until(lambda: all(g.partial.token_ids for g in endless))
        began = time.monotonic()
        lane.close(drain=1.5)
        took = time.monotonic() - began
        assert 1.4 <= took < 3.0
        assert {g.finish_reason for g in endless} == {FinishReason.SHUTDOWN}


def test_field_report_43_an_engine_that_does_not_take_newcomers_is_overdue_by_their_acknowledgement() -> None:
    limits = Limits(ack=1.0, reclaim=60.0, progress=60.0, step=60.0)
    with contextlib.closing(simulated_lane(limits=limits)) as lane:
        lane.wait_ready()
        lane.generate([5], max_new_tokens=10, **FULL)
        pid = engine_pid(lane)
        with stopped(pid):
            began = time.monotonic()
            error = error_of(lane.submit([5], max_new_tokens=5), 10.0)
            assert isinstance(error, EngineLost)
            assert error.detail.startswith("ack")
            assert 0.9 < time.monotonic() - began < 2.5
        until(lambda: happened(lane.stats().kills_total) == {"ack": 1})  # the snapshot comes after the answers


def test_field_report_43_newcomers_that_are_not_taken_are_noticed_while_old_ones_go_on() -> None:
    limits = Limits(ack=0.5, reclaim=60.0, progress=60.0, step=60.0)
    with contextlib.closing(
        simulated_lane({"deaf_at": 20, "step_s": 0.005, "incarnations": [1]}, limits=limits)
    ) as lane:
        lane.wait_ready()
        old = lane.submit([5], max_new_tokens=20_000, **FULL)
        until(lambda: len(old.partial.token_ids) > 25)
        shown, began = len(old.partial.token_ids), time.monotonic()
        newcomer = lane.submit([6], max_new_tokens=5, **FULL)
        error = error_of(newcomer)
        assert isinstance(error, EngineLost)
        assert error.detail.startswith("ack")
        assert 0.4 < time.monotonic() - began < 2.0
        assert len(old.partial.token_ids) > shown + 10
        assert lane.generate([6], max_new_tokens=5, **FULL).completion_tokens == 5


def test_field_report_38_what_crashes_the_engine_twice_is_quarantined_and_the_others_finish() -> None:
    policy = RestartPolicy(wait=lambda state: 0.0, resume="continue")
    with contextlib.closing(simulated_lane({"poison": 200, "step_s": 0.002}, restart=policy)) as lane:
        lane.wait_ready()
        others = [lane.submit([5, number], max_new_tokens=400, **FULL) for number in range(4)]
        until(lambda: all(other.partial.token_ids for other in others))
        culprit = lane.submit([7, 200], max_new_tokens=5, **FULL)
        assert isinstance(error_of(culprit), GenerationQuarantined)
        for number, other in enumerate(others):
            assert other.result(30).token_ids == tuple((7 * 5 + 2 + n) % 259 for n in range(400)), number
        stats = lane.stats()
        assert happened(stats.kills_total) == {"died": 2}
        assert stats.quarantined_total == 1


@pytest.mark.slow
def test_field_report_45_loading_for_longer_than_a_step_may_take_is_no_hang() -> None:
    with contextlib.closing(simulated_lane({"boot_s": 2.5}, limits=Limits(step=0.3))) as lane:
        began = time.monotonic()
        assert lane.health().state is HealthState.STARTING
        assert lane.stats().waiting == 0
        assert time.monotonic() - began < 0.05
        lane.wait_ready(30)
        assert happened(lane.stats().kills_total) == {}
    restart = RestartPolicy(wait=lambda state: 0.1, stop=lambda state: state.attempt_number >= 2)
    with contextlib.closing(simulated_lane({"boot_s": 60}, limits=Limits(boot=1.0), restart=restart)) as lane:
        until(lambda: lane.health().state is HealthState.FAILED, 10.0)
        assert happened(lane.stats().kills_total) == {"boot": 2}


def test_field_report_55_an_engine_killed_from_outside_is_noticed_at_once_and_its_signal_named() -> None:
    with contextlib.closing(simulated_lane({"hang_at": 3}, limits=Limits(step=60.0))) as lane:
        lane.wait_ready()
        generation = lane.submit([5], max_new_tokens=100)
        until_in_step(lane, for_s=0.1)
        began = time.monotonic()
        kill(engine_pid(lane))
        error = error_of(generation)
        assert time.monotonic() - began < 0.5
        assert isinstance(error, EngineLost)
        assert "signal 9" in error.detail


def test_reports_of_strangers_change_nothing_and_a_forged_life_breaks_the_wire() -> None:
    with contextlib.closing(simulated_lane({"stale_at": 10, "incarnations": [1]})) as lane:
        lane.wait_ready()
        error = error_of(lane.submit([5], max_new_tokens=100, **FULL))
        assert isinstance(error, EngineLost)
        assert error.detail.startswith("wire")
        assert lane.generate([5], max_new_tokens=30, timeout=20, **FULL).completion_tokens == 30


def test_field_report_23_a_lane_that_is_full_of_waiters_refuses_the_next_in_milliseconds() -> None:
    """The queue is bounded in length and in age."""
    limits = Limits(running_max=1, waiting_max=8, step=60.0)
    with contextlib.closing(simulated_lane({"hang_at": 1}, limits=limits)) as lane:
        lane.wait_ready()
        first = lane.submit([5], max_new_tokens=5)
        until_in_step(lane)
        waiting = [lane.submit([5], max_new_tokens=5, bounds=Bounds(queued=1.0)) for _ in range(8)]
        took = []
        for _ in range(91):
            began = time.monotonic()
            with pytest.raises(Saturated) as caught:
                lane.submit([5], max_new_tokens=5)
            took.append(time.monotonic() - began)
            assert caught.value.retry_after_s > 0
        assert sorted(took)[80] < 0.01
        for generation in waiting:
            error = error_of(generation)
            assert isinstance(error, DeadlineExceeded)
            assert error.deadline is not None
            assert (error.deadline.bound, error.retryable, error.http_status_hint) == ("queued", True, 503)
            assert 1.0 <= generation.partial.total_s < 1.2
        assert first.finish_reason is None
        assert happened(lane.stats().rejected_total) == {"Saturated": 91}


def test_field_report_66_a_load_that_fails_ends_typed_with_the_engines_words_after_the_attempts_that_may_be() -> None:
    """Not for ever, and not at the first one: it may be another process that has the memory."""
    words = "Check 'budget_in_bytes <= total_available_memory' failed"
    restart = RestartPolicy(wait=lambda state: 0.1, stop=lambda state: state.attempt_number >= 3)
    with contextlib.closing(simulated_lane({"boot_raises": ["memory", words, False]}, restart=restart)) as lane:
        began = time.monotonic()
        with pytest.raises(EngineFailed, match="total_available_memory"), lane:
            pass
        assert time.monotonic() - began < 10.0
        stats, health = lane.stats(), lane.health()
        assert (stats.incarnation, stats.engine_pid, happened(stats.kills_total)) == (3, None, {"boot": 3})
        assert isinstance(health.error, EngineFailed)
        assert words in str(health.error)


def test_field_report_69_each_of_800_from_16_threads_gets_the_echo_of_its_own_number() -> None:
    """The simulated engine counts on from seven times the first token; some are stopped at a random moment."""
    with contextlib.closing(simulated_lane()) as lane:
        lane.wait_ready()

        def fifty(thread: int) -> list[int]:
            rnd, own = random.Random(thread), []
            for nth in range(50):
                number = (50 * thread + nth) % 259
                generation = lane.submit([number, 5], max_new_tokens=5, **FULL)
                own.append(generation.id)
                if rnd.random() < 0.3:
                    generation.cancel()
                error, got = error_of(generation), generation.partial.token_ids
                assert error is None or isinstance(error, GenerationCancelled)
                assert got == tuple((7 * number + 2 + n) % 259 for n in range(5 if error is None else len(got)))
            return own

        with ThreadPoolExecutor(16) as threads:
            submitted = [id_ for own in threads.map(fifty, range(16)) for id_ in own]
        assert len(set(submitted)) == 800
        stats = lane.stats()
        assert stats.submitted_total == sum(stats.finished_total.values()) == 800
