"""Faults that people met in the field, retold on the real engine; the report's number is in the test's name."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import pytest
from counts import happened
from genai.lanes import F32, FULL, PLAIN, conserved, ids, lane, running, sampled, until
from genai.witness import Ticks, percentile

import boundedgen as bg

SLACK_S = 0.5


# --- deadlines, leases ---------------------------------------------------------------------------------------------


def test_field_report_18_a_deadline_is_told_apart_by_the_phase_it_was_reached_in(one_slot: bg.BoundedPipeline) -> None:
    with one_slot.submit(ids(10), max_new_tokens=1500, **FULL):
        running(one_slot)
        until(one_slot, lambda stats: stats.prompt_tokens_total == 10, 5)  # the engine has taken it
        with Ticks() as waiting, pytest.raises(bg.DeadlineExceeded) as queued:
            one_slot.generate(ids(1000), max_new_tokens=5, bounds=bg.Bounds(total=0.2), **FULL)
        assert one_slot.stats().prompt_tokens_total == 10
    with Ticks() as working, pytest.raises(bg.DeadlineExceeded) as decoding:
        one_slot.generate(ids(10), max_new_tokens=2000, bounds=bg.Bounds(total=0.5), **FULL)
    in_queue, in_decode = queued.value.partial, decoding.value.partial
    assert in_queue is not None
    assert in_decode is not None
    assert in_queue.total_s >= 0.2
    assert waiting.own_s < 0.2 + SLACK_S
    assert (in_queue.queued_s, in_queue.first_token_s, in_queue.token_ids) == (None, None, ())
    assert in_decode.total_s >= 0.5
    assert working.own_s < 0.5 + SLACK_S
    assert in_decode.queued_s is not None
    assert 0 < len(in_decode.token_ids) < 2000
    assert in_decode.finish_reason is bg.FinishReason.DEADLINE
    assert one_slot.generate(ids(10), max_new_tokens=5, **FULL).finish_reason is bg.FinishReason.LENGTH


def test_field_report_19_an_owner_that_wakes_up_cannot_touch_its_successor(pipeline: bg.BoundedPipeline) -> None:
    refused = pipeline.stats().leases_total["refused"]
    old = pipeline.lease("w1", ttl=0.2)
    first = pipeline.submit(ids(10), max_new_tokens=3000, lease=old, label="job", **FULL)
    with pytest.raises(bg.LeaseLost):
        first.result(5)
    new = pipeline.lease("w1", ttl=30)
    second = pipeline.submit(ids(10), max_new_tokens=300, lease=new, label="job", **FULL)
    too_late: tuple[Callable[[], object], ...] = (
        old.renew,
        lambda: pipeline.renew(old.id),
        lambda: pipeline.renew(old.id, "w1"),
        lambda: pipeline.submit(ids(5), lease=old),
        lambda: pipeline.submit(ids(5), lease=old.id),
    )
    for attempt in too_late:
        with pytest.raises(bg.LeaseExpired):
            attempt()
    old.revoke()
    assert not pipeline.revoke(old.id)
    assert not first.cancel()
    with pytest.raises(bg.LeaseLost):
        list(first)
    assert (old.live, old.remaining_s) == (False, 0.0)
    assert pipeline.find_lease(old.id) is None
    assert new.live
    assert second.result(20).completion_tokens == 300
    new.revoke()
    assert pipeline.stats().leases_total["refused"] == refused + 3, "each renewal that came too late"


def test_field_report_23_a_queue_that_is_full_says_so_at_once_and_one_that_is_old_is_dropped() -> None:
    with lane(limits=bg.Limits(running_max=1, waiting_max=8)) as pipeline:
        with pipeline.submit(ids(10), max_new_tokens=2000, **FULL):
            running(pipeline)
            prompt, bounds = ids(5), bg.Bounds(queued=0.5)
            queued = [pipeline.submit(prompt, max_new_tokens=5, bounds=bounds, **FULL) for _ in range(8)]
            took = []
            for _ in range(92):
                began = time.monotonic()
                with pytest.raises(bg.Saturated) as refused:
                    pipeline.submit(prompt, max_new_tokens=5, bounds=bounds, **FULL)
                took.append(time.monotonic() - began)
                assert refused.value.retry_after_s > 0
                assert refused.value.retryable
            print(f"\nrefused within {percentile(took, 0.5) * 1e3:.2f} ms (median), {max(took) * 1e3:.2f} ms at most")
            assert percentile(took, 0.5) < 0.01
            with Ticks() as ticks:
                for generation in queued:
                    with pytest.raises(bg.DeadlineExceeded) as caught:
                        generation.result(5)
                    assert caught.value.http_status_hint == 503
                    assert caught.value.deadline is not None
                    assert caught.value.deadline.bound == "queued"
                    assert generation.partial.total_s >= 0.5
            assert ticks.own_s < 0.5 + SLACK_S
        assert happened(pipeline.stats().rejected_total) == {"Saturated": 92}


# --- ids, threads --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_field_report_69_submits_from_many_threads_get_their_own_answers(pipeline: bg.BoundedPipeline) -> None:
    expected = [pipeline.generate(ids(8, seed), max_new_tokens=5, **FULL).token_ids for seed in range(10)]
    assert len(set(expected)) == 10

    def fifty(thread: int) -> list[int]:
        rnd, own = random.Random(thread), []
        for _ in range(50):
            seed = rnd.randrange(10)
            generation = pipeline.submit(ids(8, seed), max_new_tokens=5, **FULL)
            own.append(generation.id)
            if rnd.random() < 0.3:
                generation.cancel()
            with contextlib.suppress(bg.GenerationCancelled):
                assert len(generation.result(30).token_ids) == 5
            got = generation.partial.token_ids
            assert got == expected[seed][: len(got)]
        return own

    with ThreadPoolExecutor(16) as threads:
        submitted = [id_ for own in threads.map(fifty, range(16)) for id_ in own]
    assert len(set(submitted)) == 800


@pytest.mark.slow
def test_field_report_70_labels_may_be_used_again_at_once(pipeline: bg.BoundedPipeline) -> None:
    bystander = pipeline.submit(ids(10), max_new_tokens=600, label="other", **FULL)
    two = [pipeline.submit(ids(10, seed), max_new_tokens=20, label="x", **FULL) for seed in range(2)]
    first, second = (generation.result(20).token_ids for generation in two)
    assert first != second
    generation = pipeline.submit(ids(10), max_new_tokens=20, label="x", **FULL)
    stopped = []
    for _ in range(200):
        generation.cancel()
        stopped.append(generation)
        generation = pipeline.submit(ids(10), max_new_tokens=20, label="x", **FULL)
    assert generation.result(20).token_ids == first
    assert len({each.id for each in stopped}) == 200
    for each in stopped:
        each.wait_reclaimed(10)
        assert each.finish_reason in (bg.FinishReason.CANCELLED, bg.FinishReason.LENGTH)
    assert bystander.result(30).completion_tokens == 600
    assert pipeline.stats().restarts_total == 0


# --- stats ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_field_report_77_stats_are_true_right_after_a_mass_cancel_and_after_the_engines_death() -> None:
    limits = bg.Limits(running_max=6)
    with (
        lane(scheduler={"num_kv_blocks": 256}, limits=limits, restarts=1) as pipeline,
        sampled(pipeline, 0.002) as samples,
    ):
        ten = [pipeline.submit(ids(10), max_new_tokens=1000, **FULL) for _ in range(10)]
        assert until(pipeline, lambda stats: stats.running == 6 and stats.waiting == 4).waiting == 4
        for generation in ten:
            generation.cancel()
        stats = until(pipeline, lambda stats: stats.running + stats.stopping == 0 and stats.blocks_used == 0, 1)
        assert (stats.waiting, stats.running, stats.stopping) == (0, 0, 0)
        assert (stats.blocks_reserved, stats.blocks_used, stats.incarnation) == (0, 0, 1)
        assert stats.snapshot_age_s < 1
        five = [pipeline.submit(ids(10), max_new_tokens=1000, **FULL) for _ in range(5)]
        running(pipeline, 5)
        _kill_engine()
        stats = until(pipeline, lambda stats: stats.running + stats.stopping == 0, 1)
        assert (stats.running, stats.stopping, stats.blocks_reserved) == (0, 0, 0)
        assert pipeline.health().state is bg.HealthState.RECOVERING
        for generation in five:
            with pytest.raises(bg.EngineLost) as caught:
                generation.result(1)
            assert caught.value.retryable
        assert pipeline.generate(ids(10), max_new_tokens=5, **FULL).completion_tokens == 5
        rnd = random.Random(77)
        while len(samples) < 1000 or rnd.random() < 0.9:
            _any_end(pipeline, rnd)
    assert len(samples) >= 1000
    for sample in samples:
        assert conserved(sample), sample
        gauges = (sample.waiting, sample.running, sample.stopping, sample.blocks_reserved or 0, sample.blocks_free or 0)
        assert min(gauges) >= 0


def _kill_engine() -> None:
    """The youngest one: pipelines of other tests are older."""
    engines = [p for p in psutil.Process().children() if "boundedgen._engine" in " ".join(p.cmdline())]
    os.kill(max(engines, key=lambda engine: engine.create_time()).pid, signal.SIGKILL)


def _any_end(pipeline: bg.BoundedPipeline, rnd: random.Random) -> None:
    bounds = bg.Bounds(total=rnd.uniform(0.001, 0.1))
    generations = [pipeline.submit(ids(5), max_new_tokens=30, bounds=bounds, **FULL) for _ in range(rnd.randint(1, 9))]
    for generation in generations[::2]:
        generation.cancel()
    for generation in generations:
        generation.wait_reclaimed(10)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["_drain", "_take_commands", "_gather_evidence", "_carry_out", "_emit", "_publish"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_field_report_75_an_exception_in_any_stage_of_the_loop_releases_every_reader(stage: str) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError(stage)

    lane = bg.BoundedPipeline(PLAIN, {"num_kv_blocks": 64}, "CPU", F32)
    with contextlib.closing(lane) as pipeline, ThreadPoolExecutor(2) as readers:
        pipeline.wait_ready()
        generation = pipeline.submit(ids(10), max_new_tokens=1900, **FULL)
        stream = iter(generation)
        next(stream)
        ends: list[Future[object]] = [readers.submit(generation.result), readers.submit(list, stream)]
        setattr(pipeline._driver, stage, fail)
        with Ticks() as ticks:
            for end in ends:
                with pytest.raises(bg.GenerationInternalError):
                    end.result(20)
        assert ticks.own_s < 0.5
        health = pipeline.health()
        assert (health.state, health.live, health.ready) == (bg.HealthState.FAILED, False, False)
        with pytest.raises(bg.EngineFailed):
            pipeline.submit("x")
