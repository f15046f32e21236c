"""What users write, as mypy sees it. Never run: `mypy --strict` over tests/ is the test."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import assert_type

import tenacity

import boundedgen as b


def threads() -> None:
    limits = b.Limits(running_max=4, boot=60.0)
    bounds = b.Bounds(total=timedelta(minutes=5), first_token=30, next_token=None)
    restart = b.RestartPolicy(wait=tenacity.wait_exponential(max=10), stop=tenacity.stop_after_attempt(3))
    with b.BoundedPipeline("model", {"num_kv_blocks": 64}, "CPU", limits=limits, bounds=bounds, restart=restart) as p:
        assert_type(p, b.BoundedPipeline)
        with p.submit("hello", max_new_tokens=20, lease=p.lease("me", ttl=30)) as g:
            assert_type(g, b.Generation)
            for chunk in g:
                assert_type(chunk, b.Chunk)
                assert_type(chunk.text, str)
            assert_type(g.result(1.0), b.Completion)
            assert_type(g.wait_reclaimed(), b.Reclamation)
            assert_type(g.finish_reason, b.FinishReason | None)
            assert_type(g.deadline, b.Deadline)
            assert_type(g.cancel(), bool)
        assert_type(p.generate([1, 2, 3]), b.Completion)
        assert_type(p.generate_many(["a", "b"]), list[b.Completion])
        assert_type(p.generate_many(["a"], return_errors=True), list[b.Completion | b.BoundedGenError])
        assert_type(p.find_lease("id"), b.Lease | None)
        assert_type(p.probe(), b.ProbeResult)


async def coroutines(p: b.BoundedPipeline) -> None:
    async with p, await p.asubmit([{"role": "user", "content": "hi"}]) as g:
        async for chunk in g:
            assert_type(chunk, b.Chunk)
        assert_type(await g, b.Completion)
        assert_type(await g.wait(1), bool)
        assert_type(await g.await_reclaimed(), b.Reclamation)
    assert_type(await p.agenerate("x"), b.Completion)
    assert_type(await asyncio.gather(p.agenerate("x"), p.agenerate("y")), tuple[b.Completion, b.Completion])


def looking(p: b.BoundedPipeline) -> None:
    stats = p.stats(sequences=True)
    assert_type(stats, b.SchedulerStats)
    assert_type(stats.finished_total, Mapping[str, int])
    assert_type(stats.pools, tuple[b.PoolStats, ...])
    assert_type(stats.times.next_token, b.TimeHistogram)
    assert_type(stats.times.next_token.buckets_s, Mapping[float, int])
    assert_type(stats.sequences, tuple[b.SequenceRow, ...] | None)
    assert_type(stats.oldest_waiting_s, float | None)
    assert_type(p.health().state, b.HealthState)
    assert_type(p.health().ready, bool)


def failing(p: b.BoundedPipeline) -> int:
    try:
        p.generate("x")
    except b.DeadlineExceeded as error:
        assert_type(error.deadline, b.Deadline | None)
        assert_type(error.partial, b.Completion | None)
        return error.http_status_hint
    except b.Saturated as error:
        assert_type(error.retry_after_s, float)
    except b.BoundedGenError as error:
        assert_type(error.retryable, bool)
        assert_type(error.finish_reason, b.FinishReason | None)
    return 0
