"""Engines that are killed, stopped, or raise: noticed in time, callers answered, replaced, and no trace is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from attrs import evolve
from counts import happened
from process.lanes import (
    Traces,
    at_rest,
    engine_pid,
    gone,
    kill,
    no_more_than,
    plain_lane,
    simulated_lane,
    until,
)

from boundedgen import (
    BoundedPipeline,
    EngineFailed,
    EngineLost,
    FinishReason,
    Generation,
    GenerationEngineFailed,
    HealthState,
    Limits,
    RestartPolicy,
)

pytestmark = pytest.mark.timeout(110)

BUDGET = 0.5  #: seconds of each budget below
SLACK = 1.0  #: of a machine that is shared
NIMBLE = Limits(step=BUDGET, first_step=1.0, new_shape=1.0, ack=BUDGET, reclaim=BUDGET, progress=BUDGET, running_max=8)
FOR_EVER = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)

How = Callable[[BoundedPipeline], None]


def killed(lane: BoundedPipeline) -> None:
    kill(engine_pid(lane))


def frozen(lane: BoundedPipeline) -> None:
    kill(engine_pid(lane), signal.SIGSTOP)


def raising(lane: BoundedPipeline) -> None:
    """Its own fault does it, a few steps from here."""


WITHIN: dict[How, float] = {killed: 0.0, frozen: BUDGET, raising: 0.0}
CAUSES: dict[How, tuple[str, ...]] = {killed: ("died",), frozen: ("step", "ack", "progress"), raising: ("step_raised",)}


def replaced(lane: BoundedPipeline, was: int) -> None:
    until(lambda: lane.stats().incarnation > was and lane.health().ready)


def streaming(lane: BoundedPipeline) -> Generation:
    """A generation that has shown some tokens and would go on for long."""
    generation = lane.submit([5, 6, 7], max_new_tokens=30_000, ignore_eos=True)
    until(lambda: len(generation.partial.token_ids) >= 4 or generation.finish_reason is not None)
    return generation


def lost_and_served_again(lane: BoundedPipeline, hurt: How) -> None:
    """One cycle: something is running, the engine is hurt, its caller is told, the next request is served."""
    was, before = engine_pid(lane), lane.stats()
    running = streaming(lane)
    hurt(lane)
    at = time.monotonic()
    with pytest.raises(EngineLost) as caught:
        running.result(30)
    noticed = time.monotonic() - at
    partial = caught.value.partial
    assert partial is not None
    assert len(partial.token_ids) >= 4
    assert caught.value.retryable
    assert noticed < WITHIN[hurt] + SLACK, f"{hurt.__name__}: noticed after {noticed:.2f} s"
    assert caught.value.detail.split(":")[0] in CAUSES[hurt]
    assert running.wait_reclaimed(5).proof == "died"
    assert lane.generate([5], max_new_tokens=3, ignore_eos=True, timeout=30).finish_reason is FinishReason.LENGTH
    gone(was, 2.0)
    stats = lane.stats()
    assert stats.incarnation == before.incarnation + 1
    assert stats.restarts_total == before.restarts_total + 1


def nothing_more_than(before: Traces, lane: BoundedPipeline) -> None:
    """As many descriptors and threads as then, no file more, and no child but the engine."""
    no_more_than(evolve(before, children=frozenset({engine_pid(lane)})))


@pytest.mark.slow
def test_field_report_53_of_50_engines_that_are_killed_stopped_or_raise_nothing_is_left_behind() -> None:
    fault = {"raise_at": 30, "incarnations": list(range(2, 60, 3))}
    with contextlib.closing(simulated_lane(fault, limits=NIMBLE, restart=FOR_EVER)) as lane:
        lane.wait_ready()
        lost_and_served_again(lane, killed)
        before = Traces.now()
        for _ in range(17):
            for hurt in (raising, killed, frozen):
                lost_and_served_again(lane, hurt)
        at_rest(lane)
        nothing_more_than(before, lane)
        stats = lane.stats()
        assert stats.restarts_total == 52
        assert happened(stats.finished_total) == {"engine_lost": 52, "length": 52}
        assert stats.blocks_free == stats.blocks_total


@pytest.mark.slow
def test_field_report_56_the_real_engine_is_replaced_6_times_without_a_trace_and_nobody_grows() -> None:
    with contextlib.closing(plain_lane(limits=NIMBLE, restart=FOR_EVER, num_kv_blocks=1024)) as lane:
        lane.wait_ready()
        lost_and_served_again(lane, killed)
        before, parent, engines = Traces.now(), resident_mib(os.getpid()), [resident_mib(engine_pid(lane))]
        for _ in range(3):
            for hurt in (killed, frozen):
                lost_and_served_again(lane, hurt)
                engines.append(resident_mib(engine_pid(lane)))
        at_rest(lane)
        nothing_more_than(before, lane)
        assert resident_mib(os.getpid()) - parent < 15.0
        assert max(engines) < 1.05 * min(engines), "each after the same three tokens"


def resident_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss / (1 << 20))


def test_a_closed_pipeline_leaves_no_process_descriptor_thread_or_file() -> None:
    before = Traces.now()
    for _ in range(3):
        with contextlib.closing(simulated_lane()) as lane:
            lane.wait_ready()
            lane.generate([5], max_new_tokens=3)
    no_more_than(before)


def test_what_waits_keeps_its_place_while_the_engine_is_replaced() -> None:
    limits = Limits(running_max=2)
    with contextlib.closing(simulated_lane({"step_s": 0.005}, limits=limits)) as lane:
        lane.wait_ready()
        inside = [streaming(lane) for _ in range(2)]
        queued = [lane.submit([9], max_new_tokens=3, ignore_eos=True) for _ in range(6)]
        killed(lane)
        for generation in inside:
            with pytest.raises(EngineLost):
                generation.result(10)
        for generation in queued:
            assert generation.result(20).finish_reason is FinishReason.LENGTH
        admitted = [generation._flow.admitted_at for generation in queued]
        assert None not in admitted
        assert admitted == sorted(admitted)  # type: ignore[type-var]
        assert happened(lane.stats().finished_total) == {"engine_lost": 2, "length": 6}


def test_when_the_restart_budget_is_used_up_everything_is_settled_and_submitting_raises_at_once() -> None:
    restart = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 3)
    limits = Limits(running_max=1)
    with contextlib.closing(simulated_lane({"raise_at": 1}, limits=limits, restart=restart)) as lane:
        lane.wait_ready()
        generations = [lane.submit([5], max_new_tokens=3) for _ in range(6)]
        ended = [type(_error_of(generation)) for generation in generations]
        assert ended == [EngineLost] * 3 + [GenerationEngineFailed] * 3
        health = lane.health()
        assert (health.state, health.live, health.ready) == (HealthState.FAILED, False, False)
        assert isinstance(health.error, EngineFailed)
        began = time.monotonic()
        with pytest.raises(EngineFailed):
            lane.submit([5], max_new_tokens=3)
        assert time.monotonic() - began < 0.05
        stats = lane.stats()
        assert stats.incarnation == 3
        assert stats.submitted_total == sum(stats.finished_total.values()) == 6
        with pytest.raises(EngineFailed):
            lane.wait_ready(1)


def _error_of(generation: Generation) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is for the caller to judge
        generation.result(20)
    return caught.value


def test_served_tokens_give_the_restart_budget_back_and_mere_boots_do_not() -> None:
    def budget(forget_after: float) -> RestartPolicy:
        return RestartPolicy(
            wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 2, forget_after=forget_after
        )

    with contextlib.closing(simulated_lane(restart=budget(0.0))) as lane:
        lane.wait_ready()
        for _ in range(3):
            lane.generate([5], max_new_tokens=3, timeout=20)
            was = lane.stats().incarnation
            killed(lane)
            replaced(lane, was)
    with contextlib.closing(simulated_lane(restart=budget(0.0))) as lane:
        lane.wait_ready()
        killed(lane)
        replaced(lane, 1)
        killed(lane)
        until(lambda: lane.health().state is HealthState.FAILED)


def test_a_strategy_of_the_users_that_raises_or_never_answers_does_not_keep_the_engine_down() -> None:
    def buggy(state: object) -> float:
        raise RuntimeError("a bug of the user's")

    def sleeping(state: object) -> float:
        time.sleep(4.0)
        return 1000.0

    for wait in (buggy, sleeping):
        with contextlib.closing(simulated_lane(restart=RestartPolicy(wait=wait))) as lane:
            lane.wait_ready()
            killed(lane)
            replaced(lane, 1)
            assert lane.generate([5], max_new_tokens=3, timeout=20).completion_tokens == 3


def test_a_failure_of_the_driver_itself_leaves_no_zombie() -> None:
    with contextlib.closing(simulated_lane()) as lane:
        lane.wait_ready(20)
        pid = engine_pid(lane)
        lane._driver.governor.tick = lambda now: 1 / 0  # type: ignore[method-assign, assignment]
        lane._driver.post("revoke", "nothing")
        until(lambda: not lane._driver.alive())
        assert not psutil.pid_exists(pid)
