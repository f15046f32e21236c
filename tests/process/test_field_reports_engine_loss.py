"""Field reports on engines that die, hang or raise. Numbers are those of the reports.

Continued generations, strikes and quarantine: core/test_resuming.py and test_pipeline_resumed.py.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from counts import happened
from process.lanes import (
    AT_ONCE,
    FULL,
    MODELS,
    at_rest,
    engine_pid,
    error_of,
    gone,
    kill,
    many,
    plain_lane,
    pulse,
    simulated_lane,
    until,
    until_in_step,
)

from boundedgen import (
    BoundedPipeline,
    Bounds,
    DeadlineExceeded,
    EngineFailed,
    EngineLost,
    FinishReason,
    GenerationEngineFailed,
    GenerationError,
    HealthState,
    Limits,
    NeverFits,
    RestartPolicy,
)

pytestmark = pytest.mark.timeout(90)


def test_field_report_2_a_crash_loses_exactly_those_inside_and_serves_what_waited(tmp_path: Path) -> None:
    """An assertion aborts the process while eight have all of the cache, two blocks each; the ninth waits."""
    clock = tmp_path / "died at"
    fault = {"abort_at": 40, "step_s": 0.005, "clock": str(clock), "incarnations": [1]}
    with contextlib.closing(simulated_lane(fault, limits=Limits(running_max=9), num_kv_blocks=16)) as lane:
        lane.wait_ready()
        inside, ninth = many(lane, 8, tokens=63), lane.submit([7], max_new_tokens=5, **FULL)
        until(lambda: lane.stats().blocks_free == 0)
        errors = [error_of(generation) for generation in inside]
        for error in errors:
            assert isinstance(error, EngineLost)
            assert error.retryable
            assert "SIGABRT" in error.detail
        assert ninth.result(20).completion_tokens == 5
        stats = lane.stats()
        assert (stats.restarts_total, happened(stats.kills_total)) == (1, {"died": 1})
        assert happened(stats.finished_total) == {"engine_lost": 8, "length": 1}
        assert max(g._flow.settled_at or 0 for g in inside) - float(clock.read_text()) < 1.0


def test_field_report_3_many_live_ones_at_the_end_of_an_engine_all_have_an_outcome_and_none_is_a_leak() -> None:
    """The engine is destroyed while four of them are live, who have all of the cache."""
    with contextlib.closing(plain_lane(num_kv_blocks=16)) as lane:
        lane.wait_ready()
        generations = [lane.submit([10] * 40, max_new_tokens=88, **FULL) for _ in range(20)]
        until(lambda: lane.stats().running == 4)
        kill(engine_pid(lane))
        outcomes = [error_of(generation) for generation in generations]
        assert {type(outcome) for outcome in outcomes} == {EngineLost, type(None)}
        at_rest(lane)
        stats = lane.stats()
        assert stats.blocks_free == stats.blocks_total
        assert (stats.ghosts_total, stats.forgotten_total, happened(stats.kills_total)) == (0, 0, {"died": 1})
        assert sum(stats.finished_total.values()) == 20


def test_field_report_10_a_stop_that_the_engine_ignores_costs_the_engine_its_life_and_names_the_stay() -> None:
    fault = {"ignore_stops": True, "incarnations": [1]}
    with contextlib.closing(simulated_lane(fault, limits=Limits(reclaim=1.0))) as lane:
        lane.wait_ready()
        deaf, other = lane.submit([5], max_new_tokens=30_000, **FULL), lane.submit([6], max_new_tokens=30_000, **FULL)
        until(lambda: bool(deaf.partial.token_ids))
        assert deaf.cancel()
        error = error_of(other)
        assert isinstance(error, EngineLost)
        assert "reclaim: stay 1" in error.detail
        assert deaf.finish_reason is FinishReason.CANCELLED
        assert deaf.wait_reclaimed(5).proof == "died"
        assert lane.stats().kills_total["reclaim"] == 1
        assert lane.generate([5], max_new_tokens=3, timeout=20, **FULL).completion_tokens == 3


@pytest.mark.slow
def test_field_report_20_a_lease_that_is_renewed_outlives_a_long_step_and_a_long_restart() -> None:
    """Each takes three times the lease and more; a restart of 5 s, as in the report, would show no more."""
    restart = RestartPolicy(wait=lambda state: 3.0)
    with contextlib.closing(simulated_lane({"slow_at": 1, "slow_s": 3}, restart=restart)) as lane:
        lane.wait_ready()
        lease, over = lane.lease("w1", ttl=1.0), threading.Event()

        def renew() -> None:
            while not over.wait(0.3):
                lease.renew()

        renewing = threading.Thread(target=renew)
        renewing.start()
        try:
            assert lane.submit([5], max_new_tokens=5, lease=lease, **FULL).result(20).completion_tokens == 5
            kill(engine_pid(lane))
            until(lambda: not lane.health().ready)
            assert lane.submit([5], max_new_tokens=5, lease=lease, **FULL).result(30).completion_tokens == 5
        finally:
            over.set()
            renewing.join()
        assert lease.live
        assert lane.stats().leases_total.get("expired", 0) == 0


@pytest.mark.parametrize("where", ["waits", "is inside"])
def test_field_report_22_a_deadline_is_not_given_again_through_two_deaths(where: str) -> None:
    """One that waits keeps its place through both; one that is inside is taken up again after the first."""
    restart = RestartPolicy(wait=lambda state: 0.05, resume="continue" if where == "is inside" else "fail")
    with contextlib.closing(simulated_lane({"step_s": 0.01}, limits=Limits(running_max=1), restart=restart)) as lane:
        lane.wait_ready()
        ahead = [lane.submit([6], max_new_tokens=20_000, priority=1, **FULL) for _ in range(2 * (where == "waits"))]
        generation = lane.submit([5], max_new_tokens=20_000, bounds=Bounds(total=2.0), **FULL)
        began = time.monotonic()
        for death, at in enumerate((0.8, 1.6), 1):
            until(lambda at=at: time.monotonic() - began >= at and lane.health().ready)  # type: ignore[misc]
            kill(engine_pid(lane))
            until(lambda death=death: lane.stats().kills_total["died"] == death)  # type: ignore[misc]
        error = error_of(generation)
        assert isinstance(error, DeadlineExceeded)
        assert error.deadline is not None
        assert error.deadline.bound == "total"
        assert 2.0 <= generation.partial.total_s < 2.5
        assert [type(error_of(other)) for other in ahead] == [EngineLost] * len(ahead)


def test_field_report_24_a_hung_engine_is_killed_in_time_and_those_that_wait_run_on_the_next() -> None:
    limits = Limits(step=1.0, first_step=0.0, new_shape=0.0, running_max=5)
    with contextlib.closing(simulated_lane({"hang_at": 20, "incarnations": [1]}, limits=limits)) as lane:
        lane.wait_ready()
        pid = engine_pid(lane)
        inside = many(lane, 5)
        waiting = [lane.submit([7], max_new_tokens=5, **FULL) for _ in range(3)]
        until_in_step(lane, for_s=0.1)
        hung_at = pulse(lane).begun_at
        assert {type(error_of(generation)) for generation in inside} == {EngineLost}
        declared = time.monotonic() - hung_at
        gone(pid, 1.0)
        print(f"\ndeclared after {declared:.2f} s of a budget of 1 s and its tokens")
        assert 1.0 <= declared < 2.5
        assert [generation.result(20).completion_tokens for generation in waiting] == [5, 5, 5]
        assert happened(lane.stats().kills_total) == {"step": 1}


def test_field_report_24_an_engine_that_hangs_in_every_life_ends_failed_after_a_bounded_number_of_starts() -> None:
    limits = Limits(step=0.3, first_step=0.0, new_shape=0.0, running_max=1)
    restart = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 3)
    with contextlib.closing(simulated_lane({"hang_at": 1}, limits=limits, restart=restart)) as lane:
        lane.wait_ready()
        generations = many(lane, 5)
        assert [type(error_of(g)) for g in generations] == [EngineLost] * 3 + [GenerationEngineFailed] * 2
        assert lane.health().state is HealthState.FAILED
        with pytest.raises(EngineFailed):
            lane.submit([5])
        assert lane.stats().incarnation == 3


@pytest.mark.parametrize("how", ["killed", "stopped", "hung"])
def test_field_report_25_a_dead_or_frozen_engine_is_not_ready_and_submitting_does_not_hang(how: str) -> None:
    limits = Limits(step=1.0, first_step=0.0, new_shape=0.0, ack=1.0, progress=1.0, reclaim=1.0)
    fault = {"hang_at": 30, "incarnations": [1]} if how == "hung" else {"step_s": 0.01}
    restart = RestartPolicy(wait=lambda state: 5.0)
    with contextlib.closing(simulated_lane(fault, limits=limits, restart=restart)) as lane:
        lane.wait_ready()
        generation = lane.submit([5], max_new_tokens=20_000, **FULL)
        until(lambda: bool(generation.partial.token_ids))
        if how != "hung":
            kill(engine_pid(lane), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        else:
            until_in_step(lane, for_s=0.05)
        noticed = until(lambda: not lane.health().ready, 3.0)
        print(f"\n{how}: not ready after {noticed:.2f} s")
        assert noticed < (0.5 if how == "killed" else 1.5) + 0.5
        began = time.monotonic()
        lane.submit([5], max_new_tokens=3).cancel()
        assert time.monotonic() - began < 0.1


@pytest.mark.slow
def test_field_report_27_first_steps_and_long_prefills_are_no_hang() -> None:
    """A chunk of thousands of tokens takes many times the base budget of a step: it has a budget of its own."""
    limits = Limits(step=0.15, running_max=4)
    settings = {"num_kv_blocks": 1200, "max_num_batched_tokens": 32_768}
    with contextlib.closing(BoundedPipeline(MODELS / "plain", settings, "CPU", limits=limits, restart=AT_ONCE)) as lane:
        lane.wait_ready()
        lane.generate([10] * 30, max_new_tokens=8, timeout=30, **FULL)
        longest = 0.0
        with lane.submit([10] * 12_000, max_new_tokens=3, **FULL) as generation:
            while generation.finish_reason is None:
                longest = max(longest, lane.stats().step_current_s)
                time.sleep(0.005)
        print(f"\nlongest step {longest:.2f} s, base budget {limits.step} s")
        assert generation.result(30).completion_tokens == 3
        assert longest > limits.step
        assert lane.stats().restarts_total == 0


def test_field_report_27_a_decoding_step_that_hangs_is_judged_by_its_own_budget() -> None:
    limits = Limits(step=0.5, first_step=0.0, new_shape=0.0)
    with contextlib.closing(simulated_lane({"hang_at": 20, "incarnations": [1]}, limits=limits)) as lane:
        lane.wait_ready()
        generation = lane.submit([5], max_new_tokens=100, **FULL)
        until_in_step(lane, for_s=0.1)
        began = pulse(lane).begun_at
        assert isinstance(error_of(generation), EngineLost)
        assert 0.5 <= time.monotonic() - began < 1.5


def test_field_report_30_an_engine_that_cannot_be_killed_is_given_up_and_close_returns() -> None:
    limits = Limits(reap=1.0, running_max=1)
    with contextlib.closing(simulated_lane({"hang_at": 1}, limits=limits)) as lane:
        lane.wait_ready()
        running = lane.submit([5], max_new_tokens=5)
        waiting = lane.submit([5], max_new_tokens=5)
        until_in_step(lane)
        link, pid = lane._driver.link, engine_pid(lane)
        assert link is not None
        link._life.kill = lambda: None  # type: ignore[attr-defined]  # a process in state D
        lane._driver.post("give_up", "other", "as if its step had taken too long")
        assert isinstance(error_of(running), EngineLost)
        assert isinstance(error_of(waiting, 5.0), GenerationEngineFailed)
        assert lane.health().state is HealthState.FAILED
        assert "not left" in lane.health().reason or "not left" in str(lane.health().error)
        began = time.monotonic()
        lane.close()
        assert time.monotonic() - began < 3.0
    kill(pid)
    gone(pid, 2.0)


def test_field_report_31_a_lost_device_costs_those_inside_a_retryable_error_and_the_engine_its_life() -> None:
    limits, restart = Limits(running_max=6), RestartPolicy(wait=lambda state: 1.0, stop=lambda state: False)
    fault = {"raise_at": 15, "incarnations": [1]}
    with contextlib.closing(simulated_lane(fault, limits=limits, restart=restart)) as lane:
        lane.wait_ready()
        inside = many(lane, 6)
        waiting = [lane.submit([7], max_new_tokens=5, **FULL) for _ in range(4)]
        errors = [error_of(generation) for generation in inside]
        assert {(type(e), e.retryable) for e in errors if isinstance(e, GenerationError)} == {(EngineLost, True)}
        assert not lane.health().ready
        assert [generation.result(20).completion_tokens for generation in waiting] == [5] * 4
        assert lane.stats().restarts_total == 1


def test_field_report_31_an_over_long_prompt_is_the_callers_error_and_costs_nobody_anything() -> None:
    with contextlib.closing(plain_lane(num_kv_blocks=8)) as lane:
        lane.wait_ready()
        with pytest.raises(NeverFits) as caught:
            lane.submit([10] * 1000, max_new_tokens=5)
        assert not caught.value.retryable
        assert lane.generate([10], max_new_tokens=3, **FULL).completion_tokens == 3
        assert lane.stats().restarts_total == 0


def test_field_report_32_an_engine_that_raised_is_never_called_again_and_never_waited_for() -> None:
    """Whatever further call would hang; its process is killed, and the next request served as fast as ever."""
    with contextlib.closing(simulated_lane({"raise_at": 5, "hang_at": 6, "incarnations": [1]})) as lane:
        lane.wait_ready()
        pid = engine_pid(lane)
        assert isinstance(error_of(lane.submit([5], max_new_tokens=100, **FULL)), EngineLost)
        gone(pid, 1.0)
        assert lane.generate([5], max_new_tokens=3, timeout=20, **FULL).completion_tokens == 3


def test_field_report_34_whatever_ends_the_driver_answers_all_who_wait_and_refuses_the_next() -> None:
    with contextlib.closing(simulated_lane({"hang_at": 5})) as lane:
        lane.wait_ready()
        pid = engine_pid(lane)
        generations = many(lane, 5)
        until_in_step(lane, for_s=0.05)
        lane._driver.post("no_such_command")
        began = time.monotonic()
        reasons = {type(error_of(g, 5.0)).__name__ for g in generations}
        assert time.monotonic() - began < 1.0
        assert reasons == {"GenerationInternalError"}
        assert (lane.health().state, lane.health().live) == (HealthState.FAILED, False)
        with pytest.raises(EngineFailed):
            lane.submit([5])
        gone(pid, 1.0)


def test_field_report_35_a_step_that_raises_is_not_tried_again_and_restarts_are_spaced_and_bounded() -> None:
    delays = [0.0, 0.2, 0.4]
    restart = RestartPolicy(
        wait=lambda state: delays[state.attempt_number - 1], stop=lambda state: state.attempt_number > len(delays) - 1
    )
    with contextlib.closing(simulated_lane({"raise_at": 1}, limits=Limits(running_max=1), restart=restart)) as lane:
        lane.wait_ready()
        steps = lane.stats().steps_total
        generations = many(lane, 6)
        for generation in generations:
            error_of(generation)
        assert lane.stats().incarnation == len(delays)
        assert lane.stats().steps_total - steps <= 2 * len(delays)
        assert lane.health().state is HealthState.FAILED


@pytest.mark.slow
def test_field_report_33_under_mixed_faults_every_request_has_one_outcome_and_none_outlasts_its_deadline() -> None:
    """Dies, hangs, raises and speaks garbage in turn; the canary belongs to a later version."""
    draw = random.Random(33)
    policy = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)
    limits = Limits(step=0.5, first_step=0.0, new_shape=0.0, running_max=4)
    for fault in ({"exit_at": 40}, {"hang_at": 40}, {"raise_at": 40}, {"garbage_at": 40}):
        with contextlib.closing(simulated_lane(fault, limits=limits, restart=policy)) as lane:
            lane.wait_ready()
            generations = [
                lane.submit([5], max_new_tokens=draw.randint(1, 20), bounds=Bounds(total=20), **FULL) for _ in range(50)
            ]
            for generation in generations:
                assert isinstance(error_of(generation, 25.0), EngineLost | DeadlineExceeded | None)
                assert generation.partial.total_s < 20.5
            stats = lane.stats()
            assert stats.submitted_total == 50 == sum(stats.finished_total.values())
            assert stats.restarts_total >= 1
            assert stats.finished_total["length"] > 10
