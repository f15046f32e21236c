"""The log names what happened to a lane, once each: enough to know at three in the morning, and no secrets."""

import contextlib
import logging
import re

import pytest

import boundedgen as b
from boundedgen._core import _events as ev
from boundedgen._journal import Journal
from boundedgen.testing import Fault, SimModel, Simulation

MODEL = SimModel(boot_s=1, step_s=0.5, token_s=0)
RATES = dict.fromkeys(("first_step", "new_shape", "step_per_token", "step_per_attention"), 0)
LIMITS = b.Limits(step=20, probe_idle=60, **RATES)
CONTINUE = b.RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False, resume="continue")


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "boundedgen")


def said(caplog: pytest.LogCaptureFixture, *words: str) -> list[tuple[str, str]]:
    """Level and text of the lines that have one of `words`."""
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in lines if any(word in text for word in words)]


def test_a_ready_lane_names_its_engine_and_how_long_there_was_none(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(model=MODEL, restart=CONTINUE) as sim:
        assert said(caplog, "is ready") == [("INFO", "the lane is ready (engine 1, SIM)")]
        sim.inject(Fault(kind="crash"))
        sim.pipeline.generate("hello", max_new_tokens=4)
        since = "engine 2, SIM; after 1.0 s without one"
        assert said(caplog, "is ready")[1:] == [("INFO", f"the lane is ready ({since})")]


def test_those_that_go_on_are_counted_and_who_is_quarantined_is_named(caplog: pytest.LogCaptureFixture) -> None:
    crashes = {i: [Fault(kind="crash", at_step=i)] for i in (1, 2)}
    with Simulation(model=MODEL, restart=CONTINUE, faults=crashes) as sim:
        lease = sim.pipeline.lease("me", ttl=600)
        culprit = sim.pipeline.submit("a secret", max_new_tokens=4, label="bad\none", lease=lease)
        with pytest.raises(b.GenerationQuarantined):
            culprit.result()
        (first, second) = said(caplog, "next engine", "quarantined")
        assert first == ("WARNING", "generations that the next engine goes on with: 1")
        assert second[0] == "WARNING"
        assert second[1].startswith("generation 1 ('bad\\none') is quarantined: 2 engines failed on it; the last: died")
        assert "secret" not in caplog.text
        assert lease.id not in caplog.text


def test_a_failed_idle_probe_is_a_warning_once_and_so_is_its_recovery(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(model=MODEL, limits=LIMITS) as sim:
        sim.inject(Fault(kind="slow", seconds=14))  # legal: a step may take 20 s
        sim.advance(60 + 10.1)
        assert sim.pipeline.health().state is b.HealthState.STALLED
        assert sim.pipeline.probe(1).verdict is b.ProbeVerdict.FAILED
        late = "a probe failed: no token within 10.0 s; a step had been under way for 10.0 s, of at most 20 s"
        assert said(caplog, "probe") == [("WARNING", late)]
        sim.advance(120)
        assert sim.pipeline.health().last_probe == "ok"
        (again,) = said(caplog, "probe")[1:]
        assert again[0] == "INFO"
        assert again[1].startswith("a probe has come through again, ")
        sim.advance(600)
        assert len(said(caplog, "probe")) == 2


def test_a_probe_that_fails_again_after_progress_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(model=MODEL, limits=LIMITS) as sim:
        for _ in range(2):
            sim.inject(Fault(kind="slow", seconds=14))
            assert sim.pipeline.probe(5).verdict is b.ProbeVerdict.FAILED
            sim.advance(20)
            sim.pipeline.generate("hello", max_new_tokens=2)
        assert said(caplog, "probe") == 2 * [("WARNING", "a probe failed: no token within 5.0 s")]


def test_a_recycling_is_told_when_it_is_due_when_it_pauses_and_when_it_is_put_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = b.Limits(engine_age=60, recycle_drain=5)
    with Simulation(model=MODEL, limits=limits, bounds=b.Bounds(total=10_000)) as sim:
        long = sim.pipeline.submit("hello", max_new_tokens=1000)
        sim.advance(59)
        assert not said(caplog, "engine 1 is", "paus", "put off", "age")
        sim.advance(1 + 5 + 50 + 5 + 1)
        due, *rest = said(caplog, "replaced", "paus", "put off")
        old = "recycling: older than 60 s (Limits.engine_age)"
        assert due == ("INFO", f"engine 1 is to be replaced once it holds nothing; {old}")
        pause = ("INFO", "admission pauses for at most 5.0 s, until engine 1 is empty; inside: 1")
        off = "the recycling of engine 1 is put off: inside are still 1; admission goes on, for 50.0 s"
        assert rest == 2 * [pause, ("INFO", off)]
        assert sim.pipeline.health().reason == old
        sim.advance(30)
        assert sim.pipeline.health().reason == old, "it does not change with every second"
        long.cancel()
        sim.advance(5)
        assert sim.pipeline.stats().recycled_total == 1
        assert len(said(caplog, "replaced", "paus", "put off")) == 5
        assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_deadline_tells_of_a_step_that_does_not_return() -> None:
    with Simulation(model=MODEL) as sim:
        inside = sim.pipeline.submit("hello", max_new_tokens=1000, bounds=b.Bounds(total=8))
        sim.advance(2)
        short = sim.pipeline.submit("hello", max_new_tokens=1000, bounds=b.Bounds(total=1))
        with pytest.raises(b.DeadlineExceeded) as caught:
            short.result()
        assert caught.value.detail == "", "steps come and go"
        sim.inject(Fault(kind="wedge"))
        with pytest.raises(b.DeadlineExceeded) as caught:
            inside.result()
        assert re.fullmatch(r"a step had been under way for 4\.5 s, of at most 1\d\S* s", caught.value.detail)


def test_a_deadline_tells_of_the_engine_that_was_not_there() -> None:
    faults = {2: [Fault(kind="stillborn")]}
    with Simulation(model=MODEL, faults=faults, restart=CONTINUE) as sim:
        inside = sim.pipeline.submit("hello", max_new_tokens=1000, bounds=b.Bounds(total=12))
        sim.advance(4)
        sim.inject(Fault(kind="crash"))
        sim.run_until(lambda: sim.pipeline.health().state is b.HealthState.RECOVERING)
        waiting = sim.pipeline.submit("hello", bounds=b.Bounds(total=3))
        with pytest.raises(b.DeadlineExceeded) as caught:
            waiting.result()
        lost = "the engine was being replaced: died: the process died of signal 11 (SIGSEGV)"
        assert caught.value.detail == f"it had not entered the engine; {lost}"
        assert str(caught.value) == f"generation 2 reached its bound 'total' after 3.00 s; {caught.value.detail}"
        hints = (caught.value.http_status_hint, caught.value.grpc_status_hint, caught.value.retryable)
        assert hints == (504, "DEADLINE_EXCEEDED", False), "the contract of `total` stays"
        with pytest.raises(b.DeadlineExceeded) as caught:
            inside.result()
        assert caught.value.detail == lost
        queued = sim.pipeline.submit("hello", bounds=b.Bounds(queued=1))
        with pytest.raises(b.DeadlineExceeded, match=r"'queued' after 1.00 s; it had not entered") as caught:
            queued.result()
        assert (caught.value.http_status_hint, caught.value.retryable) == (503, True)


def test_a_deadline_tells_of_the_part_of_its_time_without_an_engine() -> None:
    with Simulation(model=MODEL, restart=CONTINUE) as sim:
        cut = sim.pipeline.submit("hello", max_new_tokens=1000, bounds=b.Bounds(total=12))
        sim.inject(Fault(kind="crash", at_step=3))
        with pytest.raises(b.DeadlineExceeded) as caught:
            cut.result()
        assert caught.value.detail == "for 1.0 s of that the engine was being replaced"
        with pytest.raises(b.DeadlineExceeded) as caught:
            sim.pipeline.generate("hello", max_new_tokens=1000, bounds=b.Bounds(total=2))
        assert caught.value.detail == "", "an outage before its time is none of it"


def test_a_probe_that_waited_for_another_engine_says_nothing_of_the_one_that_came() -> None:
    with contextlib.closing(Simulation(model=MODEL, restart=CONTINUE)) as sim:
        sim.pipeline.wait_ready()
        sim.inject(Fault(kind="crash"))
        inside = sim.pipeline.submit("hello", max_new_tokens=4)
        sim.run_until(lambda: sim.pipeline.health().state is b.HealthState.RECOVERING)
        assert sim.pipeline.probe(1.2).verdict is b.ProbeVerdict.FAILED
        assert sim.pipeline.stats().incarnation == 2
        health = sim.pipeline.health()
        assert (health.state, health.last_probe) == (b.HealthState.READY, "failed"), "history, and no verdict on it"
        assert inside.result().resumed == 1


def test_a_pid_is_told_of_its_own_engine_only(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(lambda work: work(), "")
    journal.spawned(1, 4711)
    for incarnation in (1, 2):  # the second could not be started
        journal.lost(ev.Lost(incarnation, ev.Cause.BOOT, "why"), {})
    assert said(caplog, "engine")[1:] == [
        ("ERROR", "engine 1 (pid 4711) did not become ready: why"),
        ("ERROR", "engine 2 did not become ready: why"),
    ]


def test_the_worst_lag_is_kept_and_a_driver_that_is_late_all_the_time_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal(lambda work: work(), "")
    journal.woke(10.0, 20.0)
    assert said(caplog, "driver") == [], "the tokenizer is being loaded, and nobody is inside"
    assert journal.lag_max_s == 0.0
    journal.was_ready = True
    journal.woke(None, 50.0)
    for second in range(100, 220):
        journal.woke(second - 0.75, second)
    journal.woke(219.5, 219.75)
    assert journal.lag_max_s == 0.75
    assert [text[:27] for _, text in said(caplog, "driver")] == 2 * ["the driver woke 0.8 s late:"]
    journal.woke(220.0, 225.0)
    assert said(caplog, "driver")[2:] == [
        ("WARNING", "the driver woke 5.0 s late: the machine or the process was stopped, or had no processor for it")
    ]
