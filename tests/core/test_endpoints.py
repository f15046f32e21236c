"""Answers to probes: what an orchestrator and a balancer do is right in every state, of one lane and of several."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundedgen import EngineFailed, Health, HealthState, Limits, ModelLoadFailed
from boundedgen.endpoints import Answer, kubernetes_probes, liveness, readiness, startup
from boundedgen.testing import Fault, FaultKind, Simulation

DEAD = (HealthState.FAILED, HealthState.CLOSED)
HEALING = (HealthState.STARTING, HealthState.STALLED, HealthState.RECOVERING, HealthState.DRAINING)

ERRORS = {HealthState.FAILED: st.sampled_from([EngineFailed("gave up"), ModelLoadFailed("no such file")])}


@st.composite
def healths(draw: st.DrawFn) -> Health:
    state = draw(st.sampled_from(HealthState))
    never = state in (HealthState.READY, *DEAD)
    return Health(
        state=state,
        reason=draw(st.text(max_size=20)),
        since_s=draw(st.floats(0, 1e6)),
        incarnation=draw(st.integers(1, 9)),
        error=draw(ERRORS.get(state, st.none())),
        retry_after_s=None if never else draw(st.none() | st.floats(1e-3, 1e6)),
        driver_alive=draw(st.booleans()),
    )


LANES = st.dictionaries(st.text(max_size=5), healths(), min_size=1, max_size=4)


def told(health: Health) -> tuple[int, int, int]:
    return startup(health).status, liveness(health).status, readiness(health).status


@given(healths())
def test_what_each_probe_says_follows_from_the_state(health: Health) -> None:
    started, live, ready = told(health)
    assert started == (503 if health.state is HealthState.STARTING else 200)
    assert live == (200 if health.driver_alive and health.state not in DEAD else 503)
    assert ready == (200 if health.driver_alive and health.state is HealthState.READY else 503)
    assert not (ready == 200 and (live == 503 or started == 503)), "work for a lane that is being replaced"
    if health.state in HEALING and health.driver_alive:
        assert (live, ready) == (200, 503)  # nobody kills what heals, nobody sends work there


@given(healths())
def test_every_answer_can_be_sent_and_none_is_kept(health: Health) -> None:
    for answer in (startup(health), liveness(health), readiness(health)):
        assert answer.status in (200, 503)
        assert answer.headers["Cache-Control"] == "no-store"
        assert all(isinstance(value, str) for value in answer.headers.values())
        assert json.loads(json.dumps(answer.body, allow_nan=False)) == answer.body
        assert answer.body["status"] == ("ok" if answer.status == 200 else "unavailable")
        assert answer.body["state"] == health.state


@given(healths())
def test_retry_after_is_in_whole_seconds_never_early_and_only_where_it_helps(health: Health) -> None:
    for answer in (startup(health), readiness(health)):
        after = answer.headers.get("Retry-After")
        if answer.status == 200 or health.retry_after_s is None:
            assert after is None
        else:
            assert after is not None
            assert after.isdecimal()
            assert max(1.0, health.retry_after_s) <= int(after) < max(1.0, health.retry_after_s) + 1
    assert "Retry-After" not in liveness(health).headers  # a process that is replaced is not asked again


@given(LANES)
def test_of_several_lanes_all_have_to_be_so_or_any(lanes: dict[str, Health]) -> None:
    for probe in (startup, liveness, readiness):
        alone = {name: probe(health) for name, health in lanes.items()}
        good = [answer.status == 200 for answer in alone.values()]
        assert probe(lanes).status == probe(lanes, need="all").status == (200 if all(good) else 503)
        assert probe(lanes, need="any").status == (200 if any(good) else 503)
        assert probe(lanes).body["lanes"] == {name: answer.body for name, answer in alone.items()}
        assert probe(lanes).body["status"] == ("ok" if all(good) else "unavailable")


@given(LANES)
def test_of_several_lanes_one_waits_for_as_many_as_are_needed(lanes: dict[str, Health]) -> None:
    waits = [health.retry_after_s for health in lanes.values() if readiness(health).status == 503]
    known = [seconds for seconds in waits if seconds is not None]
    every, some = readiness(lanes), readiness(lanes, need="any")
    if every.status == 503:
        complete = len(known) == len(waits)
        assert every.headers.get("Retry-After") == (whole(max(known)) if known and complete else None)
    if some.status == 503:
        assert some.headers.get("Retry-After") == (whole(min(known)) if known else None)


def whole(seconds: float) -> str:
    return str(max(1, math.ceil(seconds)))


@pytest.mark.parametrize(
    ("given", "needed", "error", "names"),
    [
        ({}, "all", ValueError, "lanes is empty"),
        ({"chat": None}, "all", TypeError, r"lanes\['chat'\] must be a Health"),
        (None, "all", TypeError, "lanes must be a Health"),
        ({}, "most", ValueError, 'need must be "all" or "any"'),
    ],
)
def test_a_wrong_argument_is_named(given: Any, needed: Any, error: type[Exception], names: str) -> None:
    for probe in (startup, liveness, readiness):
        with pytest.raises(error, match=names):
            probe(given, need=needed)


def test_a_balancer_is_told_the_load_of_each_lane(bounded_simulation: Simulation) -> None:
    sim = bounded_simulation
    kept = sim.pipeline.submit("hello", max_new_tokens=50)
    sim.advance(0.1)
    health, stats = sim.pipeline.health(), sim.pipeline.stats()
    load = readiness(health, stats).body["load"]
    assert kept.remaining_s is not None  # who drops it cancels it
    assert (load["running"], load["waiting"], load["running_max"]) == (1, 0, stats.running_max)
    rows = readiness({"a": health, "b": health}, {"a": stats, "gone": stats}).body["lanes"]
    assert (rows["a"]["load"], "load" in rows["b"], "gone" in rows) == (load, False, False)
    with pytest.raises(TypeError, match="stats must be a SchedulerStats"):
        readiness(health, {"a": stats})
    with pytest.raises(TypeError, match="stats must be a SchedulerStats, or a mapping"):
        readiness({"a": health}, stats)


# --- through the life of a lane --------------------------------------------------------------------------------------


def test_through_a_start_a_hang_a_crash_and_a_drain_only_the_readiness_changes() -> None:
    with contextlib.closing(Simulation()) as sim:  # which does not wait until it is ready
        assert told(sim.pipeline.health()) == (503, 200, 503)
        sim.pipeline.wait_ready()
        assert told(sim.pipeline.health()) == (200, 200, 200)
        for kind in (FaultKind.WEDGE, FaultKind.CRASH):
            hurt(sim, kind)
            assert told(sim.pipeline.health()) == (200, 200, 503)
            assert int(readiness(sim.pipeline.health()).headers["Retry-After"]) >= 1
            sim.pipeline.wait_ready()
            assert told(sim.pipeline.health()) == (200, 200, 200)
        sim.pipeline.close()
        assert told(sim.pipeline.health()) == (200, 503, 503)


def hurt(sim: Simulation, kind: FaultKind) -> None:
    sim.inject(Fault(kind=kind))
    kept = sim.pipeline.submit("hello", max_new_tokens=50)
    sim.run_until(lambda: not sim.pipeline.health().ready, within=300)
    assert kept.id  # who drops it cancels it


def test_a_lane_that_cannot_start_is_restarted_at_once_and_not_when_its_start_is_overdue() -> None:
    fault = Fault(kind=FaultKind.BOOT_FAILS, permanent=True)
    with contextlib.closing(Simulation(faults=[fault])) as sim:
        assert startup(sim.pipeline.health()).status == 503
        sim.run_until(lambda: sim.pipeline.health().state is HealthState.FAILED, within=60)
        assert told(sim.pipeline.health()) == (200, 503, 503)
        answer: Answer = liveness(sim.pipeline.health())
        assert answer.body["error"] in ("EngineFailed", "ModelLoadFailed", "DeviceUnavailable")


# --- Kubernetes ------------------------------------------------------------------------------------------------------


@given(boot=st.floats(0.01, 1e5), reap=st.floats(0.01, 1e3))
def test_a_start_has_all_the_time_that_the_limits_give_it(boot: float, reap: float) -> None:
    probe = kubernetes_probes(Limits(boot=boot, reap=reap))["startupProbe"]
    granted = probe["periodSeconds"] * (probe["failureThreshold"] - 1)  # the first failure can be at second 0
    assert boot + reap <= granted <= boot + reap + 2 * probe["periodSeconds"]


def test_one_bad_reading_ends_no_process_and_one_takes_it_out_of_the_balancer() -> None:
    probes = kubernetes_probes()
    assert probes["livenessProbe"]["failureThreshold"] > 1
    assert probes["readinessProbe"]["failureThreshold"] == 1
    assert all(probe["timeoutSeconds"] <= probe["periodSeconds"] for probe in probes.values())
