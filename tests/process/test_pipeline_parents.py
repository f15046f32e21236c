"""The engine does not outlive its parent; threads, forks and collected pipelines leave none behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import textwrap
import threading
import time
import warnings

import pytest
from counts import happened
from process.lanes import (
    Traces,
    engine_pid,
    gone,
    kill,
    no_more_than,
    plain_lane,
    said,
    script,
    simulated_lane,
    until,
)

from boundedgen import BoundedPipeline, FinishReason, Limits

pytestmark = pytest.mark.timeout(100)

LEAVES_WITHIN = 2.0

LAUNCHED = textwrap.dedent(
    """
    import sys, time
    from process.lanes import engine_pid, plain_lane, simulated_lane, until_in_step, until
    from boundedgen import Limits
    kind = sys.argv[1]
    limits = Limits(step=100.0)
    if kind == "load":
        lane = simulated_lane({"boot_s": 60})
        until(lambda: lane._driver.link is not None)
        time.sleep(0.5)
    elif kind == "hang":
        lane = simulated_lane({"hang_at": 3}, limits=limits)
        lane.wait_ready()
        generation = lane.submit([5], max_new_tokens=100)
        until_in_step(lane, for_s=0.3)
    elif kind == "step":
        lane = plain_lane(limits=limits, num_kv_blocks=1200, max_num_batched_tokens=32_768)
        lane.wait_ready()
        generation = lane.submit([10] * 30_000, max_new_tokens=2)
        until_in_step(lane, for_s=0.2)
    else:
        lane = simulated_lane()
        lane.wait_ready()
        generations = [lane.submit([5], max_new_tokens=30_000, ignore_eos=True) for _ in range(4)]
        until(lambda: all(g.partial.token_ids for g in generations))
    print(engine_pid(lane), flush=True)
    time.sleep(100)
    """
)


@pytest.mark.parametrize("moment", ["load", "traffic", "step", "hang"])
def test_field_report_46_the_engine_leaves_within_2_s_of_its_parents_death(moment: str) -> None:
    """During load, under traffic, inside a long real step, and while it hangs holding the interpreter's lock."""
    with script(LAUNCHED, moment) as process:
        pid = int(said(process))
        try:
            process.kill()
            seconds = gone(pid, LEAVES_WITHIN)
            print(f"\n{moment}: gone after {seconds * 1e3:.0f} ms")
        finally:
            kill(pid)


def test_a_pipeline_built_in_a_thread_that_has_ended_keeps_its_engine() -> None:
    built: list[BoundedPipeline] = []
    thread = threading.Thread(target=lambda: built.append(simulated_lane()))
    thread.start()
    thread.join()
    with contextlib.closing(built[0]) as lane:
        lane.wait_ready()
        pid = engine_pid(lane)
        time.sleep(0.5)
        assert lane.generate([5], max_new_tokens=3, ignore_eos=True).finish_reason is FinishReason.LENGTH
        assert (engine_pid(lane), lane.stats().restarts_total) == (pid, 0)


def test_an_unclosed_pipeline_warns_and_its_engine_leaves() -> None:
    before = Traces.now()
    lane = simulated_lane()
    lane.wait_ready()
    pid = engine_pid(lane)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del lane
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "unclosed" in str(caught[0].message)
    gone(pid, 5.0)
    no_more_than(before)


def test_a_collected_pipeline_with_generations_inside_answers_them_and_its_engine_leaves() -> None:
    lane = simulated_lane()
    lane.wait_ready()
    pid = engine_pid(lane)
    generation = lane.submit([5], max_new_tokens=30_000, ignore_eos=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del lane
        gc.collect()
    until(lambda: generation.finish_reason is not None, 5.0)
    assert generation.finish_reason is FinishReason.SHUTDOWN
    gone(pid, 5.0)


FORKER = textwrap.dedent(
    """
    import os, sys, time
    from boundedgen import Bounds, PipelineClosed
    from process.lanes import plain_lane
    lane = plain_lane()
    lane.wait_ready()
    running = lane.submit([5], max_new_tokens=1500, ignore_eos=True)
    lease = lane.lease("me", ttl=600)
    if (child := os.fork()) == 0:
        told = []
        for act in (
            lambda: lane.submit([5], max_new_tokens=3),
            lambda: lane.generate([5], max_new_tokens=3),
            lambda: lane.lease("me", ttl=5),
            lambda: lane.probe(1.0).verdict.name,
            lambda: running.result(1.0),
            lambda: next(iter(running)),
            lambda: lane.wait_ready(1.0),
            lambda: lease.renew(),
            lambda: running.cancel(),
            lambda: running.tighten(Bounds(total=1)),
            lambda: lease.revoke(),
            lambda: lane.close(),
        ):
            try:
                told.append(repr(act()))
            except PipelineClosed as error:
                told.append("closed" if "fork" in str(error) else str(error))
            except BaseException as error:
                told.append(repr(error))
        lane.stats()
        health = lane.health()
        told.append(f"{health.state} {health.ready} {health.live} {'fork' in health.reason}")
        os.write(1, (" ".join(told) + "\\n").encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(running.result(30).finish_reason, lane.generate([5], max_new_tokens=3, timeout=20).completion_tokens)
    print(lane.stats().restarts_total, lease.live, flush=True)
    lane.close()
    """
)


def test_field_report_52_a_fork_of_the_users_process_gets_typed_errors_and_leaves_its_parent_unharmed() -> None:
    with script(FORKER) as process:
        asking, ending, health = (
            "closed closed closed 'FAILED'" + 4 * " closed",
            "False None None None",
            "closed False False",
        )
        assert said(process) == f"{asking} {ending} {health} True"
        assert said(process) == "length 3"
        assert said(process) == "0 True"


def test_the_parent_of_a_stopped_process_group_keeps_its_deadlines_and_its_engine() -> None:
    """The whole parent stands still for 5 s under load; at its first wake it settles what is due, and kills nobody."""
    source = textwrap.dedent(
        """
        import sys, time
        from boundedgen import Bounds, DeadlineExceeded, Limits
        from process.lanes import engine_pid, simulated_lane, until
        lane = simulated_lane({"step_s": 0.002}, limits=Limits(step=1.0, ack=1.0, reclaim=1.0, progress=1.0))
        lane.wait_ready()
        short = lane.submit([5], max_new_tokens=30_000, ignore_eos=True, bounds=Bounds(total=2.0))
        endless = lane.submit([6], max_new_tokens=30_000, ignore_eos=True)
        until(lambda: short.partial.token_ids and endless.partial.token_ids)
        before = now = time.monotonic()
        print(engine_pid(lane), flush=True)
        while now - before < 1.0:  # until it is stopped, and wakes up
            before = now
            time.sleep(0.01)
            now = time.monotonic()
        woken = time.monotonic()
        while time.monotonic() - before < 3.0 or short.finish_reason is None:
            time.sleep(0.002)
            if short.finish_reason is not None:
                break
        print(f"{short.finish_reason} {time.monotonic() - woken < 0.5}", flush=True)
        seen = len(endless.partial.token_ids)
        until(lambda: len(endless.partial.token_ids) > seen + 50)
        stats = lane.stats()
        print(stats.restarts_total, sum(stats.kills_total.values()), lane.health().state, flush=True)
        time.sleep(2.0)
        tokens = lane.generate([7], max_new_tokens=2, timeout=10).completion_tokens
        print(lane.stats().restarts_total, tokens, flush=True)
        lane.close()
        """
    )
    with script(source) as process:
        pid = int(said(process))
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(process.pid, signal.SIGCONT)
        assert said(process) == "deadline True"
        assert said(process) == "0 0 ready"
        assert said(process) == "0 2"
        assert process.wait(10) == 0
        gone(pid, 2.0)


def test_calls_that_wait_raise_in_a_thread_with_a_running_loop_and_name_the_awaitable() -> None:
    async def refused() -> list[str]:
        names = []
        generation = lane.submit([5], max_new_tokens=30_000, ignore_eos=True)
        for call in (
            lane.wait_ready,
            lambda: lane.generate([5]),
            lambda: lane.generate_many([[5]]),
            lane.probe,
            generation.result,
            generation.wait_reclaimed,
            lambda: iter(generation),
        ):
            with pytest.raises(RuntimeError) as caught:
                call()
            names.append(str(caught.value).rpartition("use ")[2])
        generation.cancel()
        return names

    with contextlib.closing(simulated_lane(limits=Limits(running_max=2))) as lane:
        lane.wait_ready()
        assert asyncio.run(refused()) == [
            "'await pipeline.await_ready()'",
            "'await pipeline.agenerate(…)'",
            "'await pipeline.agenerate_many(…)'",
            "'await pipeline.aprobe(…)'",
            "'await generation'",
            "'await generation.await_reclaimed()'",
            "'async for'",
        ]
        until(lambda: happened(lane.stats().finished_total) == {"cancelled": 1})
        assert lane.stats().submitted_total == 1


def test_the_real_pipeline_closes_without_a_trace() -> None:
    with plain_lane() as lane:
        lane.generate("hello", max_new_tokens=2)
    before = Traces.now()
    with plain_lane() as lane:
        lane.generate("hello", max_new_tokens=2)
    no_more_than(before)
