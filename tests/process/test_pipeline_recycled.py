"""Engines that are replaced for their age or size: nobody is harmed, and no memory is left behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import psutil
import pytest
from counts import happened
from process.lanes import Traces, at_rest, engine_pid, plain_lane, simulated_lane, until

from boundedgen import BoundedPipeline, FinishReason, Limits, RestartPolicy
from boundedgen._engine._size import Size

pytestmark = pytest.mark.timeout(110)

MB = 1_000_000
NEVER = RestartPolicy(stop=lambda state: True)  #: a single loss would be the end of the lane


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


@contextlib.contextmanager
def flat_memory() -> Iterator[None]:
    """Field report 56: the parent grows by less than 15 MB."""
    before = resident(psutil.Process().pid)
    yield
    assert resident(psutil.Process().pid) - before < 15 * MB


def close_together(sizes: list[int]) -> None:
    """Field report 56: each engine, when it was ready, within 5 % of the first."""
    assert max(abs(size - sizes[0]) for size in sizes) < 0.05 * sizes[0], sizes


def note(lane: BoundedPipeline, sizes: dict[int, int]) -> int:
    """What each engine told when it was ready. Returns how many were recycled."""
    stats = lane.stats()
    if stats.engine_rss_bytes is not None:
        sizes.setdefault(stats.incarnation, stats.engine_rss_bytes)
    return stats.recycled_total


def test_of_three_recyclings_under_load_no_generation_notices_anything() -> None:
    sizes: dict[int, int] = {}
    limits = Limits(engine_age=0.7, recycle_drain=30, running_max=4)
    with contextlib.closing(plain_lane(limits=limits, restart=NEVER)) as lane:
        lane.wait_ready()
        generations = [lane.submit([5, 6, 7], max_new_tokens=20, ignore_eos=True) for _ in range(8)]
        before = Traces.now()
        with flat_memory():
            while note(lane, sizes) < 3:
                if lane.stats().waiting < 8:
                    generations.append(lane.submit([5, 6, 7], max_new_tokens=20, ignore_eos=True))
                time.sleep(0.002)
            ends = [generation.result(60).finish_reason for generation in generations]
            at_rest(lane)
        stats = lane.stats()
        assert set(ends) == {FinishReason.LENGTH}
        assert happened(stats.finished_total) == {"length": len(generations)}
        assert (stats.restarts_total, happened(stats.kills_total)) == (0, {})
        close_together(list(sizes.values()))
        until(lambda: lane.health().ready)
        traces = Traces.now()
        assert traces.descriptors <= before.descriptors
        assert traces.shared_memory <= before.shared_memory


def test_field_report_56_ten_respawns_leave_no_memory_behind_and_each_engine_has_its_size() -> None:
    """In the ordinary run without a model, which takes ten times as long; `nox -s deep` does it with one."""
    sizes: dict[int, int] = {}
    lane_of = plain_lane if "BOUNDEDGEN_EXAMPLES" in os.environ else simulated_lane
    with contextlib.closing(lane_of(limits=Limits(engine_age=0.1), restart=NEVER)) as lane:
        lane.wait_ready()
        with flat_memory():
            until(lambda: note(lane, sizes) >= 10, timeout=90)
    assert len(sizes) >= 5, "most of them were met while they were ready"
    close_together(list(sizes.values()))


def test_an_engine_that_has_grown_beyond_its_limit_is_replaced() -> None:
    """The fault has it grow while it serves; a fresh one is small again."""
    fault = {"grow_at": 3, "grow_bytes": 200 * MB, "incarnations": [1]}
    limits = Limits(engine_rss_bytes=150 * MB)
    with contextlib.closing(simulated_lane(fault, limits=limits, restart=NEVER)) as lane:
        lane.wait_ready()
        small, was = lane.stats().engine_rss_bytes, engine_pid(lane)
        assert small is not None
        assert abs(small - resident(was)) < 0.1 * small
        while lane.stats().recycled_total == 0:
            assert lane.generate([5], max_new_tokens=20, ignore_eos=True).finish_reason is FinishReason.LENGTH
        until(lambda: lane.health().ready)
        assert lane.stats().engine_rss_bytes < 150 * MB  # type: ignore[operator]


def test_the_size_of_a_process_is_told_once_a_second() -> None:
    size = Size()
    first = size.due(10.0)
    assert first is not None
    assert abs(first - resident(psutil.Process().pid)) < 5 * MB
    assert size.due(10.9) is None
    assert size.due(11.0) is not None
