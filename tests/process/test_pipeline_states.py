"""stats(), health() and close() answer at once and tell the truth, in every state of the engine."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from counts import happened
from process.lanes import (
    AT_ONCE,
    MODELS,
    at_rest,
    engine_pid,
    gone,
    kill,
    percentile,
    simulated_host,
    simulated_lane,
    stopped,
    until,
    until_in_step,
)

from boundedgen import (
    Admission,
    BoundedGenError,
    BoundedPipeline,
    Bounds,
    DeviceUnavailable,
    EngineFailed,
    EngineUnavailable,
    GenerationShutDown,
    HealthState,
    Limits,
    ModelLoadFailed,
    PipelineClosed,
    RestartPolicy,
)

pytestmark = pytest.mark.timeout(60)

AT_ONCE_S = 0.005
STUCK = Limits(step=100.0, ack=100.0, reclaim=100.0, progress=100.0)
HANGS = {"hang_at": 2}


def answers_at_once(lane: BoundedPipeline) -> HealthState:
    """The state that it tells; the median of its answers took microseconds, and every kind of them came."""
    took = []
    for _ in range(50):
        began = time.perf_counter()
        stats, health, rows = lane.stats(), lane.health(), lane.stats(sequences=True).sequences
        took.append(time.perf_counter() - began)
        assert rows is not None
        assert stats.submitted_total == sum(stats.finished_total.values()) + stats.waiting + stats.running
    assert percentile(took, 0.5) < AT_ONCE_S
    return health.state


def test_stats_and_the_log_name_the_process_of_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "boundedgen")
    host = simulated_host(models_path=str(MODELS / "plain"))
    with BoundedPipeline(None, engine=host, restart=AT_ONCE) as lane:
        first = lane.stats().engine_pid
        assert first == engine_pid(lane) != os.getpid()
        os.kill(first, signal.SIGKILL)
        until(lambda: lane.stats().restarts_total == 1)
        second = lane.stats().engine_pid
        assert second == engine_pid(lane) != first
    assert lane.stats().engine_pid is None
    assert f"the lane is ready (engine 1, pid {first}, CPU, plain)" in caplog.text
    assert f"engine 1 (pid {first}) died: the process was killed by signal 9" in caplog.text
    assert f"the lane is ready (engine 2, pid {second}, CPU, plain; after " in caplog.text
    assert f"engine 2 (pid {second}) ended: closed" in caplog.text


def test_they_answer_while_the_engine_starts_and_submitting_is_refused() -> None:
    with contextlib.closing(simulated_lane({"boot_s": 3.0})) as lane:
        assert answers_at_once(lane) is HealthState.STARTING
        assert (lane.health().ready, lane.health().live) == (False, True)
        assert lane.stats().blocks_total is None
        with pytest.raises(EngineUnavailable) as caught:
            lane.submit([5])
        assert caught.value.retryable
        with pytest.raises(EngineUnavailable, match="not ready within"):
            lane.wait_ready(0.1)


def test_they_answer_while_the_engine_hangs_and_tell_the_age_of_its_step() -> None:
    with contextlib.closing(simulated_lane(HANGS, limits=STUCK)) as lane:
        lane.wait_ready()
        assert answers_at_once(lane) is HealthState.READY
        generation = lane.submit([5], max_new_tokens=100)
        until_in_step(lane, for_s=0.3)
        generation.cancel()
        until(lambda: generation.finish_reason is not None)
        answers_at_once(lane)
        stats = lane.stats()
        assert stats.step_current_s >= 0.3
        assert (stats.running, stats.stopping) == (0, 1)
        assert stats.snapshot_age_s < 2.0
        assert stats.driver_lag_s < 0.5


def test_they_answer_while_the_engine_is_stopped_and_a_stopped_engine_is_not_ready_for_long() -> None:
    limits = Limits(step=1.0, first_step=0.0, new_shape=0.0, ack=1.0, progress=1.0, reclaim=1.0)
    with contextlib.closing(simulated_lane({"step_s": 0.005}, limits=limits)) as lane:
        lane.wait_ready()
        with lane.submit([5], max_new_tokens=10_000, ignore_eos=True) as generation:
            until(lambda: bool(generation.partial.token_ids))
            with stopped(engine_pid(lane)):
                assert answers_at_once(lane) is HealthState.READY
                until(lambda: not lane.health().ready, 2.5, "not ready")


def test_they_answer_while_it_recovers_and_the_lane_is_live() -> None:
    restart = RestartPolicy(wait=lambda state: 1.5)
    with contextlib.closing(simulated_lane(restart=restart)) as lane:
        lane.wait_ready()
        kill(engine_pid(lane))
        until(lambda: lane.health().state is HealthState.RECOVERING)
        assert answers_at_once(lane) is HealthState.RECOVERING
        health = lane.health()
        assert (health.ready, health.live) == (False, True)
        assert "died" in health.reason
        assert lane.submit([5], max_new_tokens=3, ignore_eos=True).result(20).completion_tokens == 3


def test_they_answer_while_it_drains_and_when_it_is_closed() -> None:
    with contextlib.closing(simulated_lane({"step_s": 0.01})) as lane:
        lane.wait_ready()
        generation = lane.submit([5], max_new_tokens=100, ignore_eos=True)
        until(lambda: bool(generation.partial.token_ids))
        closing = threading.Thread(target=lane.close, args=(20.0,))
        closing.start()
        until(lambda: lane.health().state is HealthState.DRAINING)
        assert answers_at_once(lane) is HealthState.DRAINING
        with pytest.raises(PipelineClosed):
            lane.submit([5])
        assert generation.result(20).completion_tokens == 100
        closing.join()
        assert answers_at_once(lane) is HealthState.CLOSED
        assert not lane.health().live
        with pytest.raises(PipelineClosed):
            lane.submit([5])
        with pytest.raises(PipelineClosed):
            lane.lease("me", ttl=1)


def test_they_answer_when_it_has_failed() -> None:
    with contextlib.closing(simulated_lane(restart=RestartPolicy(stop=lambda state: True))) as lane:
        lane.wait_ready()
        kill(engine_pid(lane))
        until(lambda: lane.health().state is HealthState.FAILED)
        assert answers_at_once(lane) is HealthState.FAILED
        assert isinstance(lane.health().error, EngineFailed)
        with pytest.raises(EngineFailed):
            lane.submit([5])


@pytest.mark.slow
def test_submissions_are_ended_waiting_or_running_in_1000_snapshots_under_load_and_faults() -> None:
    over, draw = threading.Event(), random.Random(5)
    policy = RestartPolicy(wait=lambda state: 0.0, stop=lambda state: False)

    def load(number: int) -> None:
        mine = random.Random(number)
        while not over.is_set():
            with contextlib.suppress(BoundedGenError, TimeoutError):
                bounds = Bounds(total=mine.choice([0.0, 0.02, 0.2, 5.0]))
                with lane.submit([5], max_new_tokens=mine.randint(1, 60), ignore_eos=True, bounds=bounds) as generation:
                    generation.result(mine.choice([0.0, 0.01, 2.0]))

    with contextlib.closing(
        simulated_lane({"step_s": 0.001}, limits=Limits(running_max=4, waiting_max=8), restart=policy)
    ) as lane:
        lane.wait_ready()
        threads = [threading.Thread(target=load, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        kills = sorted(draw.sample(range(1000), 4))
        try:
            for look in range(1000):
                stats = lane.stats()
                assert stats.submitted_total == sum(stats.finished_total.values()) + stats.waiting + stats.running
                assert stats.times.total.count_total == sum(stats.finished_total.values())
                assert stats.times.step.count_total == stats.steps_total
                assert stats.times.first_token.count_total + stats.times.next_token.count_total == stats.tokens_total
                assert min(stats.waiting, stats.running, stats.stopping, stats.leases) >= 0
                assert stats.running <= 4
                assert stats.blocks_reserved is None or 0 <= stats.blocks_reserved <= (stats.blocks_total or 0)
                if look in kills and lane._driver.link is not None:
                    kill(engine_pid(lane))
                time.sleep(draw.uniform(0, 0.02))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        at_rest(lane)
        stats = lane.stats()
        assert stats.submitted_total == sum(stats.finished_total.values())
        assert len(happened(stats.finished_total)) >= 3
        assert stats.restarts_total >= 2


# --- engines that never start ------------------------------------------------------------------------------------


def test_a_path_that_is_not_there_is_failed_without_retries_and_typed(tmp_path: Path) -> None:
    with contextlib.closing(BoundedPipeline(tmp_path / "missing", {"num_kv_blocks": 8}, "CPU")) as lane:
        with pytest.raises(ModelLoadFailed) as caught:
            lane.wait_ready(30)
        assert "missing" in str(caught.value)
        assert isinstance(lane.health().error, ModelLoadFailed)
        assert answers_at_once(lane) is HealthState.FAILED
        assert lane.stats().incarnation <= 1
        with pytest.raises(ModelLoadFailed):
            lane.submit([5])


def test_a_broken_model_is_failed_without_retries_and_typed(tmp_path: Path) -> None:
    for file in (MODELS / "plain").iterdir():
        if file.name != "openvino_model.bin":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "openvino_model.xml").write_text("<net", encoding="utf-8")
    with contextlib.closing(BoundedPipeline(tmp_path, {"num_kv_blocks": 8}, "CPU")) as lane:
        with pytest.raises(ModelLoadFailed):
            lane.wait_ready(30)
        assert lane.stats().incarnation == 1


@pytest.mark.skipif(Path("/dev/dri").exists(), reason="this machine may have a GPU")
def test_a_gpu_without_a_driver_is_failed_without_retries_and_says_what_is_missing() -> None:
    with contextlib.closing(BoundedPipeline(MODELS / "plain", {"num_kv_blocks": 8}, "GPU")) as lane:
        with pytest.raises(DeviceUnavailable) as caught:
            lane.wait_ready(30)
        print(f"\n{caught.value}")
        assert any(word in str(caught.value) for word in ("libOpenCL", "OpenCL", "/dev/dri", "driver"))
        assert lane.stats().incarnation == 1
        with pytest.raises(DeviceUnavailable), lane:
            pass


@pytest.mark.parametrize(
    ("kind", "error"), [("device", DeviceUnavailable), ("model", ModelLoadFailed), ("other", EngineFailed)]
)
def test_a_boot_error_that_cannot_heal_is_told_by_its_type(kind: str, error: type[BoundedGenError]) -> None:
    with contextlib.closing(simulated_lane({"boot_raises": [kind, "the reason, in words", True]})) as lane:
        with pytest.raises(error, match="the reason, in words"):
            lane.wait_ready(20)
        assert lane.stats().incarnation == 1


def test_a_boot_error_that_can_heal_is_tried_again() -> None:
    fault = {"boot_raises": ["memory", "busy", False], "incarnations": [1, 2]}
    with contextlib.closing(simulated_lane(fault)) as lane:
        lane.wait_ready(30)
        assert lane.stats().incarnation == 3


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"bounds": Bounds(total=None)}, ValueError, "bounds.total"),
        ({"bounds": Bounds(total=math.inf)}, ValueError, "bounds.total"),
        ({"bounds": 5}, TypeError, "bounds"),
        ({"limits": {"running_max": 2}}, TypeError, "limits"),
        ({"restart": 3}, TypeError, "restart"),
        ({"admission": "reserve"}, TypeError, "admission"),
        ({"lease_ttl": -1}, ValueError, "lease_ttl"),
        ({"lease_ttl": math.nan}, ValueError, "lease_ttl"),
        ({"lease_ttl": "5"}, TypeError, "lease_ttl"),
        ({"black_box": 5}, TypeError, "black_box"),
        ({"device": 7}, TypeError, "device"),
        ({"models_path": None}, TypeError, "models_path"),
        ({"scheduler_config": {"nonsense": 1}}, (ValueError, TypeError), "nonsense"),
        ({"properties": {"A": object()}}, (ValueError, TypeError), "properties"),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_nothing_is_started(
    arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    given = {"models_path": MODELS / "plain", "device": "CPU", **arguments}
    before = threading.active_count()
    with pytest.raises(error, match=named):
        BoundedPipeline(given.pop("models_path"), **given)
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="policy"):
        Admission(policy="hope")


# --- close -------------------------------------------------------------------------------------------------------


def _hung() -> BoundedPipeline:
    lane = simulated_lane(HANGS, limits=STUCK)
    lane.wait_ready()
    with lane.submit([5], max_new_tokens=100):
        until_in_step(lane, for_s=0.2)
    return lane


def _booting() -> BoundedPipeline:
    lane = simulated_lane({"boot_s": 60})
    until(lambda: lane._driver.link is not None)
    return lane


def _recovering() -> BoundedPipeline:
    lane = simulated_lane(restart=RestartPolicy(wait=lambda state: 60.0))
    lane.wait_ready()
    kill(engine_pid(lane))
    until(lambda: lane.health().state is HealthState.RECOVERING)
    return lane


def _stopped() -> BoundedPipeline:
    lane = simulated_lane(limits=STUCK)
    lane.wait_ready()
    kill(engine_pid(lane), signal.SIGSTOP)
    lane.submit([5], max_new_tokens=100)
    return lane


def _killed() -> BoundedPipeline:
    """While it leaves, and some are inside."""
    lane = simulated_lane(restart=RestartPolicy(wait=lambda state: 0.0, resume="continue"))
    lane.wait_ready()
    streams = [lane.submit([5], max_new_tokens=10_000, ignore_eos=True) for _ in range(3)]
    until(lambda: all(stream.partial.token_ids for stream in streams))
    kill(engine_pid(lane))
    return lane


@pytest.mark.parametrize("make", [_hung, _booting, _recovering, _stopped, _killed])
def test_close_is_back_in_time_from_four_threads_and_again(make: Any) -> None:
    lane = make()
    pid = None if lane._driver.link is None else engine_pid(lane)
    began = time.monotonic()
    threads = [threading.Thread(target=lane.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lane.close()
    took = time.monotonic() - began
    print(f"\n{make.__name__}: closed in {took * 1e3:.0f} ms")
    assert took < 3.0
    assert answers_at_once(lane) is HealthState.CLOSED
    if pid is not None:
        gone(pid, 1.0)


def test_of_several_that_close_at_once_the_shortest_drain_holds_for_all() -> None:
    lane = simulated_lane({"step_s": 0.005})
    lane.wait_ready()
    streams = [lane.submit([5], max_new_tokens=10_000, ignore_eos=True) for _ in range(3)]
    until(lambda: all(stream.partial.token_ids for stream in streams))
    began = time.monotonic()
    threads = [threading.Thread(target=lane.close, args=(drain,)) for drain in (30, 0.5, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.4 < time.monotonic() - began < 3.0
    assert answers_at_once(lane) is HealthState.CLOSED


def test_close_from_inside_the_loop_that_reads_ends_the_reader() -> None:
    lane = simulated_lane({"step_s": 0.005})
    lane.wait_ready()
    generation = lane.submit([5], max_new_tokens=10_000, ignore_eos=True)
    stream = iter(generation)
    for _ in range(3):
        next(stream)
    lane.close()
    with pytest.raises(GenerationShutDown) as caught:
        list(stream)
    assert caught.value.partial is not None
    assert caught.value.partial.completion_tokens >= 3


def left_with_an_error(lane: BoundedPipeline) -> None:
    with lane:
        lane.submit([5], max_new_tokens=10_000, ignore_eos=True, label="kept").cancel()
        raise ZeroDivisionError


def test_a_context_that_is_left_with_an_error_does_not_drain() -> None:
    lane = simulated_lane({"hang_at": 1}, limits=STUCK)
    lane.wait_ready()
    generation = lane.submit([5], max_new_tokens=10_000, ignore_eos=True)
    until_in_step(lane)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        left_with_an_error(lane)
    assert time.monotonic() - began < 3.0
    with pytest.raises(GenerationShutDown):
        generation.result(1)


def test_a_host_of_the_callers_own_serves_pipeline_after_pipeline() -> None:
    host = simulated_host()
    for _ in range(2):
        with BoundedPipeline(None, engine=host, restart=AT_ONCE) as lane:
            assert lane.generate([5], max_new_tokens=3, ignore_eos=True).completion_tokens == 3
