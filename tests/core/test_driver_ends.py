"""When the driver itself breaks, or is driven wrongly: everybody is answered, and nothing is left behind."""

import gc
import math
import os
import threading
import weakref
from typing import Any

import pytest
import tenacity
from core.hand_engine import A, HandEngine, lane, until

import boundedgen as b
from boundedgen._core import _events as ev


def break_the_governor(pipeline: b.BoundedPipeline, *also: str) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("a bug of ours")

    for name in ("tick", *also):
        setattr(pipeline._driver.governor, name, broken)
    pipeline._driver.post("revoke", "nothing")


@pytest.mark.parametrize("also", [(), ("running",)], ids=["a wake", "a wake and its snapshot"])
def test_a_broken_driver_answers_everybody_and_says_failed(also: tuple[str, ...]) -> None:
    with lane(HandEngine(running_max=1)) as (pipeline, engine):
        running, waiting = (pipeline.submit("x", max_new_tokens=8) for _ in range(2))
        lease = pipeline.lease("me", ttl=60)
        engine.say(A)
        until(lambda: running.partial.text == "a")
        break_the_governor(pipeline, *also)
        for g in (running, waiting):
            with pytest.raises(b.GenerationInternalError):
                g.result(20)
        assert running.partial.text == "a"
        assert waiting.wait_reclaimed(20).proof == "never_held"
        with pytest.raises(TimeoutError, match="before the pipeline ended"):
            running.wait_reclaimed()
        until(lambda: not pipeline._driver.alive())
        health = pipeline.health()
        assert (health.state, health.live, health.ready) == (b.HealthState.FAILED, False, False)
        assert isinstance(health.error, b.EngineFailed)
        with pytest.raises(b.EngineFailed):
            pipeline.submit("x", max_new_tokens=8)
        assert not lease.live
        assert engine.link.disposed
        assert pipeline.probe(1).verdict is b.ProbeVerdict.FAILED


def test_an_engine_that_cannot_be_given_back_does_not_keep_anybody_waiting() -> None:
    with lane() as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        dispose = engine.link.dispose

        def stuck() -> None:
            dispose()
            raise OSError("no")

        engine.link.dispose = stuck  # type: ignore[method-assign]
        break_the_governor(pipeline)
        with pytest.raises(b.GenerationInternalError):
            g.result(20)


@pytest.mark.parametrize("drain", [math.inf, math.nan, None, "5"])
def test_a_drain_that_makes_no_sense_is_refused_in_the_caller_s_thread(drain: Any) -> None:
    with lane() as (pipeline, _):
        with pytest.raises((TypeError, ValueError), match="drain"):
            pipeline.close(drain)
        assert pipeline.health().ready


def test_a_restart_that_is_put_off_for_ever_harms_nobody() -> None:
    policy = b.RestartPolicy(wait=lambda state: math.inf, stop=tenacity.stop_never)
    with lane(restart=policy) as (pipeline, engine):
        engine.die()
        until(lambda: pipeline.health().state is b.HealthState.RECOVERING)
        until(lambda: pipeline._driver.governor.life.respawn_at == math.inf)
        pipeline._driver.post("revoke", "nothing")
        assert pipeline.health().live
        with pytest.raises(b.DeadlineExceeded):
            pipeline.submit("x", max_new_tokens=8, bounds=b.Bounds(total=0.05)).result(20)


def test_an_engine_that_is_started_again_at_once_is_heard() -> None:
    """Its descriptors have the numbers of the one before."""
    policy = b.RestartPolicy(wait=tenacity.wait_none(), stop=tenacity.stop_never)
    with lane(restart=policy) as (pipeline, engine):
        for n in range(2, 30):
            engine.die()
            until(lambda: len(engine.links) == n)  # noqa: B023
            pipeline.wait_ready(20)
            until(lambda: pipeline.stats().incarnation == n)  # noqa: B023


def test_a_stream_of_commands_does_not_hold_up_deadlines() -> None:
    with lane(limits=b.Limits(progress=1e6, ack=1e6)) as (pipeline, _):
        over = threading.Event()

        def hammer() -> None:
            while not over.is_set():
                pipeline._driver.post("revoke", "nothing")

        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            with pytest.raises(b.DeadlineExceeded):
                pipeline.submit("x", max_new_tokens=8, bounds=b.Bounds(total=0.1)).result(20)
        finally:
            over.set()
            for thread in threads:
                thread.join(20)


def test_a_dropped_pipeline_is_closed_at_once_and_says_that_it_was_not() -> None:
    engine = HandEngine()
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock)
    pipeline.wait_ready(20)
    driver, gone = pipeline._driver, weakref.ref(pipeline)
    until(lambda: "boundedgen-tokenizer" not in {t.name for t in threading.enumerate()})
    gc.disable()
    try:
        with pytest.warns(ResourceWarning, match="unclosed"):
            del pipeline
        assert gone() is None
    finally:
        gc.enable()
    until(lambda: not driver.alive())
    assert engine.link.disposed


def test_closed_from_many_threads_at_once_it_leaves_no_thread_and_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    engine = HandEngine()
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock)
    pipeline.wait_ready(20)
    closers = [threading.Thread(target=pipeline.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(20)
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("boundedgen")])
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(b.PipelineClosed):
        pipeline.submit("x")


def test_an_answer_of_the_restart_policy_that_comes_too_late_is_none_to_the_next_question() -> None:
    gate, asked = threading.Event(), threading.Semaphore(0)

    def wait(state: tenacity.RetryCallState) -> float:
        asked.release()
        if state.attempt_number == 1:
            gate.wait(20)
        return 0.0

    def stop(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number == 1  # it would have given up the first time

    with lane(restart=b.RestartPolicy(wait=wait, stop=stop)) as (pipeline, engine):
        engine.die()
        assert asked.acquire(timeout=20)
        engine.clock.skip(3)  # the default decides
        until(lambda: pipeline._driver.governor.life.respawn_at is not None or len(engine.links) == 2)
        engine.clock.skip(30)
        until(lambda: len(engine.links) == 2)
        pipeline.wait_ready(20)
        pipeline._driver.asking.due = None
        engine.link.tell(ev.Exited(2, -11, ""))
        until(lambda: pipeline._driver.asking.asked is not None)
        gate.set()
        until(lambda: len(engine.links) == 3)
        assert pipeline.health().state is not b.HealthState.FAILED
