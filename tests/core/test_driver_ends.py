"""When the driver itself breaks, or is driven wrongly: everybody is answered, and nothing is left behind."""

import gc
import json
import logging
import math
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tenacity
from core.hand_engine import A, HandEngine, HandLink, lane, until

import boundedgen as b
from boundedgen._blackbox._box import AT_ONCE_MOST
from boundedgen._core import _events as ev
from boundedgen._driver import LOGGING


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


@pytest.mark.parametrize(
    ("margin", "error"), [(None, b.DeadlineExceeded), (-1.0, b.DeadlineExceeded), (0.25, b.EngineUnavailable)]
)
def test_a_restart_that_is_put_off_for_ever_harms_nobody(margin: float | None, error: type[b.BoundedGenError]) -> None:
    policy = b.RestartPolicy(wait=lambda state: math.inf, stop=tenacity.stop_never)
    with lane(restart=policy, admission=b.Admission(margin=margin)) as (pipeline, engine):
        engine.die()
        until(lambda: pipeline.health().state is b.HealthState.RECOVERING)
        until(lambda: pipeline._driver.governor.life.respawn_at == math.inf)
        pipeline._driver.post("revoke", "nothing")
        assert pipeline.health().live
        for _ in range(3):
            with pytest.raises(error) as caught:
                pipeline.submit("x", max_new_tokens=8, bounds=b.Bounds(total=0.05)).result(20)
            assert 60.0 <= getattr(caught.value, "retry_after_s", 60.0) <= 180.0
            assert not re.search(r"\b(inf|nan)\b", str(caught.value)), "it is said in words"
        json.dumps(pipeline.health().to_dict(), allow_nan=False)


def test_an_engine_that_is_started_again_at_once_is_heard() -> None:
    """Its descriptors have the numbers of the one before."""
    policy = b.RestartPolicy(wait=tenacity.wait_none(), stop=tenacity.stop_never)
    with lane(restart=policy) as (pipeline, engine):
        for n in range(2, 30):
            engine.die()
            until(lambda: len(engine.links) == n)  # noqa: B023
            pipeline.wait_ready(20)
            until(lambda: pipeline.stats().incarnation == n)  # noqa: B023


@pytest.mark.parametrize(
    "error", [TypeError("expected str, not NoneType"), ValueError("embedded null byte"), KeyError()]
)
def test_whatever_starting_an_engine_raises_is_a_failed_boot(error: Exception) -> None:
    engine = HandEngine()
    spawn, raised = engine.spawn, [error]

    def broken(incarnation: int) -> HandLink:
        if raised:
            raise raised.pop()
        return spawn(incarnation)

    engine.spawn = broken  # type: ignore[method-assign]
    with lane(engine, restart=b.RestartPolicy(wait=tenacity.wait_none())) as (pipeline, _):
        stats = pipeline.stats()
        assert (stats.kills_total["boot"], stats.incarnation) == (1, 2)


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


def threads_of(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_an_answer_of_the_restart_policy_that_comes_too_late_is_none_to_the_next_question() -> None:
    gates, asked = {1: threading.Event(), 2: threading.Event()}, threading.Semaphore(0)

    def wait(state: tenacity.RetryCallState) -> float:
        asked.release()
        gates[state.attempt_number].wait(20)
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
        engine.link.tell(ev.Exited(2, -11, ""))
        assert asked.acquire(timeout=20)
        gates[1].set()
        until(lambda: threads_of("boundedgen-restart") == 1)
        assert pipeline._driver.asking.asked is not None
        gates[2].set()
        until(lambda: len(engine.links) == 3)
        assert pipeline.health().state is not b.HealthState.FAILED


def never_returns(state: tenacity.RetryCallState) -> float:
    threading.Event().wait(40)
    return 0.0


def exits(state: tenacity.RetryCallState) -> float:
    raise SystemExit(3)


@pytest.mark.parametrize("wait", [never_returns, exits])
def test_whatever_a_restart_strategy_does_the_log_goes_on_and_closing_is_soon_over_and_frees_the_device(
    wait: Callable[[tenacity.RetryCallState], float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "boundedgen")
    lock = tmp_path / "gpu0.lock"
    with lane(restart=b.RestartPolicy(wait=wait), device_lock=lock) as (pipeline, engine):
        engine.die()
        until(lambda: pipeline._driver.snapshot.state == "recovering")
        until(lambda: pipeline._driver.asking.due is None or wait is never_returns)
        engine.clock.skip(3)  # the default decides
        until(lambda: pipeline._driver.governor.life.respawn_at is not None or len(engine.links) == 2)
        engine.clock.skip(30)
        until(lambda: len(engine.links) == 2)
        pipeline.wait_ready(20)
        began = time.monotonic()
        pipeline.close()
        assert time.monotonic() - began < 0.9
        assert "the lane is closed" in caplog.text
        assert ("strategy raised" in caplog.text) is (wait is exits)
    with lane(device_lock=lock):
        pass


class Handler(logging.Handler):
    """A server's own, which raises or blocks."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.emit = lambda record: act()  # type: ignore[method-assign, assignment]


def raises() -> None:
    raise SystemExit("a logging handler")


@pytest.mark.parametrize("act", [raises, lambda: threading.Event().wait(15)], ids=["raises", "blocks"])
def test_a_logging_handler_that_raises_or_blocks_holds_up_no_restart_and_no_close(
    act: Callable[[], object], tmp_path: Path
) -> None:
    logger, lock = logging.getLogger("boundedgen"), tmp_path / "gpu0.lock"
    logger.addHandler(handler := Handler(act))
    try:
        with lane(restart=b.RestartPolicy(wait=tenacity.wait_none()), device_lock=lock) as (pipeline, engine):
            engine.die()
            until(lambda: len(engine.links) == 2)
            pipeline.wait_ready(20)
            assert pipeline.stats().restarts_total == 1
            began = time.monotonic()
            pipeline.close()
            assert time.monotonic() - began < LOGGING + 0.9
        logger.removeHandler(handler)
        with lane(device_lock=lock):
            pass
    finally:
        logger.removeHandler(handler)


def test_what_the_black_box_cannot_keep_is_told_by_another_thread_than_the_driver_s(tmp_path: Path) -> None:
    """The driver would stand still for as long as a logging handler does."""
    told: list[str] = []
    logger = logging.getLogger("boundedgen")
    logger.addHandler(handler := Handler(lambda: told.append(threading.current_thread().name)))
    try:
        with lane(black_box=tmp_path, restart=b.RestartPolicy(wait=tenacity.wait_none())) as (pipeline, engine):
            box = pipeline._driver.leaving.black_box
            assert box is not None
            box.about.witness = (sys.executable, "-S", "-c", "import time; time.sleep(0.7)")
            for n in range(AT_ONCE_MOST + 2):
                engine.die()
                until(lambda: len(engine.links) == n + 2)  # noqa: B023
                pipeline.wait_ready(20)
            until(lambda: box.about.complained)
    finally:
        logger.removeHandler(handler)
    assert told
    assert "boundedgen-driver" not in told
