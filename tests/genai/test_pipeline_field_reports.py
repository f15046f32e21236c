"""Faults that people met in the field, retold on the real engine; the report's number is in the test's name."""

import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psutil
import pytest
from genai.lanes import F32, FULL, PLAIN, at_rest, conserved, ids, lane, sampled, until

import boundedgen as bg

SLACK_S = 0.5


@pytest.fixture(scope="module")
def one_slot() -> Iterator[bg.BoundedPipeline]:
    with lane(limits=bg.Limits(running_max=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def pipeline() -> Iterator[bg.BoundedPipeline]:
    with lane(scheduler={"num_kv_blocks": 128}, limits=bg.Limits(running_max=6)) as opened:
        yield opened


def _running(pipeline: bg.BoundedPipeline, count: int = 1) -> None:
    assert until(pipeline, lambda stats: stats.running == count).running == count


# --- orphans, cancels ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_field_report_1_waves_of_orphans_do_not_keep_a_one_token_request_waiting() -> None:
    lease_s, waits = 0.4, []
    with lane(scheduler={"num_kv_blocks": 640}, limits=bg.Limits(running_max=4)) as pipeline:
        for wave in range(10):
            lease = pipeline.lease(f"wave {wave}", ttl=lease_s)
            orphans = [pipeline.submit(ids(50), max_new_tokens=5000, lease=lease, **FULL) for _ in range(4)]
            time.sleep(lease_s / 2)
            small = pipeline.submit(ids(5), max_new_tokens=1, bounds=bg.Bounds(total=5), **FULL)
            assert pipeline.probe(5).ok
            waits.append(small.result().total_s)
            for orphan in orphans:
                with pytest.raises(bg.LeaseLost):
                    orphan.result(5)
                assert orphan.partial.total_s < lease_s + SLACK_S
                assert orphan.wait_reclaimed(5).seconds < SLACK_S
        stats = at_rest(pipeline)
    print(f"\nwaits of the small ones: {', '.join(f'{w:.3f}' for w in waits)} s")
    assert stats.finished_total == {"lease": 40, "length": 10}
    assert waits[-1] < 2 * waits[0] + 0.1


def test_field_report_7_a_cancel_ends_all_samples_of_a_request(pipeline: bg.BoundedPipeline) -> None:
    generation = pipeline.submit(ids(100), max_new_tokens=400, do_sample=True, num_return_sequences=4, **FULL)
    assert until(pipeline, lambda stats: (stats.blocks_used or 0) >= 4).blocks_reserved == 4 * 16
    generation.cancel()
    assert generation.wait_reclaimed(5).steps <= 2
    assert until(pipeline, lambda stats: stats.blocks_used == 0, 1).blocks_used == 0


def test_field_report_7_those_cancelled_in_the_queue_are_never_computed(one_slot: bg.BoundedPipeline) -> None:
    with one_slot.submit(ids(10), max_new_tokens=1500, **FULL):
        _running(one_slot)
        before = one_slot.stats().prompt_tokens_total
        queued = [one_slot.submit(ids(500, seed), max_new_tokens=5, **FULL) for seed in range(5)]
        for generation in queued:
            generation.cancel()
        assert {generation.wait_reclaimed(5).proof for generation in queued} == {"never_held"}
        assert all(generation.partial.queued_s is None for generation in queued)
        assert one_slot.stats().prompt_tokens_total == before


def test_field_report_8_those_whose_lease_lapses_in_the_queue_never_enter_the_engine(
    one_slot: bg.BoundedPipeline,
) -> None:
    with one_slot.submit(ids(10), max_new_tokens=2000, **FULL):
        _running(one_slot)
        lease = one_slot.lease("gone", ttl=0.2)
        queued = [one_slot.submit(ids(1000, seed), max_new_tokens=5, lease=lease, **FULL) for seed in range(5)]
        for generation in queued:
            with pytest.raises(bg.LeaseLost):
                generation.result(5)
            assert generation.wait_reclaimed(5).proof == "never_held"


def test_field_report_8_a_prompt_in_chunks_is_given_up_between_two_of_them() -> None:
    limits = bg.Limits(running_max=1)
    with lane(scheduler={"num_kv_blocks": 300, "max_num_batched_tokens": 64}, limits=limits) as pipeline:
        steps = pipeline.stats().steps_total
        generation = pipeline.submit(ids(8000), max_new_tokens=5, **FULL)
        until(pipeline, lambda stats: stats.steps_total > steps + 2)
        generation.cancel()
        assert generation.wait_reclaimed(10).steps <= 2
        assert pipeline.stats().steps_total < steps + 8000 // 64
        assert generation.partial.token_ids == ()


def test_field_report_11_both_readers_of_a_stopped_generation_get_the_same_end(pipeline: bg.BoundedPipeline) -> None:
    generation = pipeline.submit(ids(10), max_new_tokens=2000, **FULL)
    reading = iter(generation)
    next(reading)
    with ThreadPoolExecutor(2) as readers:
        ends: list[Future[object]] = [readers.submit(generation.result), readers.submit(list, reading)]
        generation.cancel()
        for end in ends:
            with pytest.raises(bg.GenerationCancelled):
                end.result(2)


def test_field_report_11_dropping_every_reference_cancels_and_is_counted(pipeline: bg.BoundedPipeline) -> None:
    before = at_rest(pipeline).finished_total.get("cancelled", 0)
    generation = pipeline.submit(ids(10), max_new_tokens=2000, **FULL)
    _running(pipeline)
    del generation
    gc.collect()
    after = until(pipeline, lambda stats: stats.running + stats.stopping == 0, 1)
    assert after.finished_total["cancelled"] == before + 1


@pytest.mark.slow
def test_field_report_13_blocking_calls_leave_nothing_in_any_table(pipeline: bg.BoundedPipeline) -> None:
    prompt, process = ids(5), psutil.Process()
    for _ in range(100):
        pipeline.generate(prompt, max_new_tokens=2, **FULL)
    gc.collect()
    before = process.memory_info().rss
    for _ in range(500):
        assert pipeline.generate(prompt, max_new_tokens=2, **FULL).completion_tokens == 2
    gc.collect()
    assert process.memory_info().rss - before < 10 << 20
    at_rest(pipeline)
    assert not pipeline._driver.flows


def test_field_report_13_a_blocking_call_ends_at_its_deadline(pipeline: bg.BoundedPipeline) -> None:
    began = time.monotonic()
    with pytest.raises(bg.DeadlineExceeded) as caught:
        pipeline.generate(ids(10), max_new_tokens=3900, bounds=bg.Bounds(total=0.3), **FULL)
    assert time.monotonic() - began < 0.3 + SLACK_S
    assert caught.value.deadline is not None
    assert caught.value.deadline.bound == "total"


@pytest.mark.slow
def test_field_report_14_every_cause_of_an_end_gives_everything_back() -> None:
    limits = bg.Limits(running_max=1, owner_max=1)
    with lane(scheduler={"num_kv_blocks": 64}, limits=limits) as pipeline:
        for turn in range(20):
            for cause in (_finished, _stopped_running, _stopped_queued, _expired_running, _expired_queued, _rejected):
                cause(pipeline, turn)
                stats = until(pipeline, lambda stats: stats.blocks_reserved == 0 and not stats.sequences, 5)
                assert (stats.blocks_reserved, stats.sequences) == (0, ()), cause
                assert conserved(stats)
        assert pipeline.stats().finished_total == {"length": 20, "cancelled": 80, "deadline": 40}


def _finished(pipeline: bg.BoundedPipeline, seed: int) -> None:
    pipeline.generate(ids(20, seed), max_new_tokens=3, owner="me", **FULL)


def _stopped_running(pipeline: bg.BoundedPipeline, seed: int) -> None:
    generation = pipeline.submit(ids(20, seed), max_new_tokens=2000, owner="me", **FULL)
    _running(pipeline)
    generation.cancel()
    with pytest.raises(bg.GenerationCancelled):
        generation.result(5)


def _stopped_queued(pipeline: bg.BoundedPipeline, seed: int) -> None:
    with pipeline.submit(ids(20, seed), max_new_tokens=2000, owner="holder", **FULL):
        generation = pipeline.submit(ids(20, seed), max_new_tokens=5, owner="me", **FULL)
        generation.cancel()
        with pytest.raises(bg.GenerationCancelled):
            generation.result(5)


def _expired_running(pipeline: bg.BoundedPipeline, seed: int) -> None:
    with pytest.raises(bg.DeadlineExceeded):
        pipeline.generate(ids(20, seed), max_new_tokens=2000, owner="me", bounds=bg.Bounds(total=0.05), **FULL)


def _expired_queued(pipeline: bg.BoundedPipeline, seed: int) -> None:
    bounds = bg.Bounds(queued=0.02)
    with (
        pipeline.submit(ids(20, seed), max_new_tokens=2000, owner="holder", **FULL),
        pytest.raises(bg.DeadlineExceeded),
    ):
        pipeline.generate(ids(20), max_new_tokens=5, owner="me", bounds=bounds, **FULL)


def _rejected(pipeline: bg.BoundedPipeline, seed: int) -> None:
    with pytest.raises(bg.NeverFits):
        pipeline.submit(ids(2000, seed), max_new_tokens=500, owner="me")


@pytest.mark.slow
def test_field_report_16_a_burst_that_is_cancelled_as_a_whole_leaves_the_lane_as_fast_as_before() -> None:
    limits = bg.Limits(running_max=8, waiting_max=100)
    with lane(scheduler={"num_kv_blocks": 32}, limits=limits) as pipeline:
        for turn in range(10):
            burst = [pipeline.submit(ids(200, seed), max_new_tokens=50, **FULL) for seed in range(60)]
            time.sleep(0.1)
            for generation in burst:
                generation.cancel()
            began = time.monotonic()
            short = pipeline.generate_many([ids(5, turn)] * 5, max_new_tokens=3, **FULL)
            assert [output.completion_tokens for output in short] == [3] * 5
            assert time.monotonic() - began < 5
        stats = at_rest(pipeline)
        assert sum(stats.finished_total.values()) == 650


# --- deadlines, leases ---------------------------------------------------------------------------------------------


def test_field_report_18_a_deadline_is_told_apart_by_the_phase_it_was_reached_in(one_slot: bg.BoundedPipeline) -> None:
    with one_slot.submit(ids(10), max_new_tokens=1500, **FULL):
        _running(one_slot)
        before = one_slot.stats().prompt_tokens_total
        with pytest.raises(bg.DeadlineExceeded) as queued:
            one_slot.generate(ids(1000), max_new_tokens=5, bounds=bg.Bounds(total=0.2), **FULL)
        assert one_slot.stats().prompt_tokens_total == before
    with pytest.raises(bg.DeadlineExceeded) as decoding:
        one_slot.generate(ids(10), max_new_tokens=2000, bounds=bg.Bounds(total=0.5), **FULL)
    in_queue, in_decode = queued.value.partial, decoding.value.partial
    assert in_queue is not None
    assert in_decode is not None
    assert 0.2 <= in_queue.total_s < 0.2 + SLACK_S
    assert (in_queue.queued_s, in_queue.first_token_s, in_queue.token_ids) == (None, None, ())
    assert 0.5 <= in_decode.total_s < 0.5 + SLACK_S
    assert in_decode.queued_s is not None
    assert 0 < len(in_decode.token_ids) < 2000
    assert in_decode.finish_reason is bg.FinishReason.DEADLINE
    assert one_slot.generate(ids(10), max_new_tokens=5, **FULL).finish_reason is bg.FinishReason.LENGTH


def test_field_report_19_an_owner_that_wakes_up_cannot_touch_its_successor(pipeline: bg.BoundedPipeline) -> None:
    refused = pipeline.stats().leases_total.get("refused", 0)
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
    assert pipeline.stats().leases_total.get("refused", 0) >= refused


def test_field_report_23_a_queue_that_is_full_says_so_at_once_and_one_that_is_old_is_dropped() -> None:
    with lane(limits=bg.Limits(running_max=1, waiting_max=8)) as pipeline:
        with pipeline.submit(ids(10), max_new_tokens=2000, **FULL):
            _running(pipeline)
            queued, refusals, slowest = [], [], 0.0
            for seed in range(100):
                began = time.monotonic()
                try:
                    bounds = bg.Bounds(queued=0.5)
                    queued.append(pipeline.submit(ids(5, seed), max_new_tokens=5, bounds=bounds, **FULL))
                except bg.Saturated as error:
                    refusals.append(error)
                    slowest = max(slowest, time.monotonic() - began)
            assert (len(queued), len(refusals)) == (8, 92)
            print(f"\nslowest refusal {slowest * 1e3:.2f} ms")
            assert slowest < 0.05
            assert all(error.retry_after_s > 0 and error.retryable for error in refusals)
            for generation in queued:
                with pytest.raises(bg.DeadlineExceeded) as caught:
                    generation.result(5)
                assert caught.value.http_status_hint == 503
                assert caught.value.deadline is not None
                assert caught.value.deadline.bound == "queued"
                assert 0.5 <= generation.partial.total_s < 0.5 + SLACK_S
        assert pipeline.stats().rejected_total == {"Saturated": 92}


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
        five = [pipeline.submit(ids(10), max_new_tokens=1000, **FULL) for _ in range(5)]
        _running(pipeline, 5)
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

    with bg.BoundedPipeline(PLAIN, {"num_kv_blocks": 64}, "CPU", F32) as pipeline, ThreadPoolExecutor(2) as readers:
        generation = pipeline.submit(ids(10), max_new_tokens=1900, **FULL)
        stream = iter(generation)
        next(stream)
        ends: list[Future[object]] = [readers.submit(generation.result), readers.submit(list, stream)]
        setattr(pipeline._driver, stage, fail)
        began = time.monotonic()
        for end in ends:
            with pytest.raises(bg.GenerationInternalError):
                end.result(2)
        assert time.monotonic() - began < 0.5
        health = pipeline.health()
        assert (health.state, health.live, health.ready) == (bg.HealthState.FAILED, False, False)
        with pytest.raises(bg.EngineFailed):
            pipeline.submit("x")
