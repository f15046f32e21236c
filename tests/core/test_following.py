"""Who follows generations holds up none of them: it has a thread of its own, room for so many, and an end."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from core.hand_engine import A, HandEngine, lane, until

import boundedgen as b
from boundedgen import _aside
from boundedgen._flow import Ending, Flow
from boundedgen._following import Tell

NAME = "boundedgen-following"


def followers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@contextmanager
def blocked() -> Iterator[Tell]:
    """What is told blocks until this is left."""
    over = threading.Event()
    try:
        yield lambda ending: over.wait(60)
    finally:
        over.set()


def followed(pipeline: b.BoundedPipeline, tell: Tell) -> None:
    follower: Callable[[Flow], Tell] = lambda flow: tell  # noqa: E731
    pipeline._serving.follow(follower)


def answered(pipeline: b.BoundedPipeline, engine: HandEngine, nth: int = 0) -> float:
    """Seconds that it takes until a token and the end have come through."""
    began = time.monotonic()
    generation = pipeline.submit("x", max_new_tokens=8)
    stream = iter(generation)
    engine.say(A, nth=nth)
    assert next(stream).text == "a"
    engine.finish(nth=nth)
    assert generation.result(10).completion_tokens == 1
    return time.monotonic() - began


def test_it_hears_of_each_at_submit_in_the_caller_s_thread_and_of_its_end_in_its_own() -> None:
    begun: list[str] = []
    ended: list[tuple[str, Ending]] = []

    def follower(flow: Flow) -> Tell:
        begun.append(threading.current_thread().name)
        assert flow.prompt_kind == "text"
        return lambda ending: ended.append((threading.current_thread().name, ending))

    with lane() as (pipeline, engine):
        following = pipeline._serving.follow(follower)
        assert following.aside._thread is None, "nothing was submitted"
        answered(pipeline, engine)
        until(lambda: ended)
    assert begun == [threading.current_thread().name]
    ((name, ending),) = ended
    assert name == NAME
    assert (ending.reason, ending.output_tokens, ending.incarnations, ending.results) == ("stop", 1, (1,), 1)
    assert ending.admitted_at is not None
    assert ending.first_token_at is not None
    assert ending.submission.submitted_at <= ending.admitted_at <= ending.first_token_at <= ending.settled_at
    until(lambda: not followers())


def test_one_that_blocks_delays_no_token_and_no_close() -> None:
    with blocked() as tell:
        with lane() as (pipeline, engine):
            followed(pipeline, tell)
            took = [answered(pipeline, engine, nth) for nth in range(20)]
            began = time.monotonic()
            pipeline.close()
            closing = time.monotonic() - began
            assert followers(), "it still blocks"
        print(f"\nanswers: {max(took) * 1e3:.1f} ms at most; the close: {closing:.2f} s")
        assert closing < 20, "a second for what is on its way, and a busy machine"
        assert pipeline.stats().finished_total["stop"] == 20
    until(lambda: not followers())


def test_what_there_is_no_room_for_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_aside, "WAITING_MOST", 5)
    told: list[int] = []
    over = threading.Event()

    def tell(ending: Ending) -> None:
        over.wait(20)
        told.append(ending.submission.id)

    with lane() as (pipeline, engine):
        followed(pipeline, tell)
        following = pipeline._serving._following
        assert following is not None
        for nth in range(12):
            answered(pipeline, engine, nth)
        over.set()
        until(lambda: len(told) + following.dropped.total == 12)
        assert 5 <= len(told) <= 6, "one of them in its hands"
        answered(pipeline, engine, 12)
        until(lambda: len(told) + following.dropped.total == 13)
        assert told == sorted(told)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_one_that_raises_harms_nobody_and_is_logged(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def tell(ending: Ending) -> None:
        raise error("a follower")

    with lane() as (pipeline, engine):
        followed(pipeline, tell)
        for nth in range(3):
            answered(pipeline, engine, nth)
    assert caplog.text.count("work beside the driver failed") == 3


def test_one_that_raises_at_submit_harms_nobody_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def follower(flow: Flow) -> Tell:
        raise ZeroDivisionError("a follower")

    with lane() as (pipeline, engine):
        following = pipeline._serving.follow(follower)
        answered(pipeline, engine)
        assert following.aside._thread is None
    assert "a follower of generations failed" in caplog.text


def test_those_of_a_driver_that_failed_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with lane() as (pipeline, _):
        followed(pipeline, lambda ending: told.append(ending.reason))
        inside = pipeline.submit("x", max_new_tokens=8)
        monkeypatch.setattr(pipeline._driver.governor, "tick", lambda now: 1 / 0)
        with pytest.raises(b.GenerationInternalError):
            inside.result(10)
        until(lambda: told)
    assert told == ["internal"]


def test_each_of_those_that_come_while_it_closes_is_told_or_counted() -> None:
    told: list[int] = []
    with lane(HandEngine(running_max=64)) as (pipeline, _):
        followed(pipeline, lambda ending: told.append(ending.submission.id))
        following = pipeline._serving._following
        assert following is not None
        accepted: list[b.Generation] = []

        def come() -> None:
            try:
                while True:
                    accepted.append(pipeline.submit("x", max_new_tokens=8))
            except b.Rejected:
                pass

        threads = [threading.Thread(target=come) for _ in range(3)]
        for thread in threads:
            thread.start()
        pipeline.close()
        for thread in threads:
            thread.join(20)
        until(lambda: len(told) + following.dropped.total == len(accepted))
    assert len(set(told)) == len(told)


def test_unfollowed_it_hears_of_nothing_new_and_another_can_follow() -> None:
    told: list[str] = []
    with lane() as (pipeline, engine):
        first = pipeline._serving.follow(lambda flow: lambda ending: told.append("first"))
        with pytest.raises(RuntimeError, match="already"):
            pipeline._serving.follow(lambda flow: None)
        answered(pipeline, engine)
        pipeline._serving.unfollow(first)
        first.aside.join(20)
        assert first.aside._thread is not None
        assert not first.aside._thread.is_alive()
        pipeline._serving.follow(lambda flow: lambda ending: told.append("second"))
        pipeline._serving.unfollow(first)
        answered(pipeline, engine, 1)
        until(lambda: len(told) == 2)
    assert told == ["first", "second"]


WITHOUT_SDK = """
import sys, threading
import boundedgen as b
from boundedgen.exporters.opentelemetry import instrument
from boundedgen.testing import Simulation
with Simulation() as sim, instrument(sim.pipeline) as telling:
    generation = sim.pipeline.submit("hello", max_new_tokens=3, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    assert generation._flow.on_end is None, "nobody listens"
    generation.result()
    assert sim.pipeline._serving._following.aside._thread is None
    assert telling.dropped == 0
assert threading.active_count() == 1
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
print("nothing")
"""
WITHOUT_API = """
import sys
sys.modules["opentelemetry"] = None
import boundedgen as b
import boundedgen.exporters
from boundedgen.testing import Simulation
with Simulation() as sim:
    sim.pipeline.generate("hello", max_new_tokens=3, traceparent="x")
try:
    import boundedgen.exporters.opentelemetry
except ImportError as error:
    print(error)
"""
MISSING = (
    "boundedgen.exporters.opentelemetry needs opentelemetry-api; install it with: "
    "pip install 'boundedgen[opentelemetry]'"
)
LATER = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from boundedgen.exporters.opentelemetry import instrument
from boundedgen.testing import Simulation
with Simulation() as sim, instrument(sim.pipeline):
    sim.pipeline.generate("hello", max_new_tokens=3)
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(MeterProvider([reader]))
    sim.pipeline.generate("hello", max_new_tokens=3)
    sim.advance(0)
    told = reader.get_metrics_data().to_json()
print(len(exporter.get_finished_spans()), "boundedgen.submitted" in told, "time_to_first_token" in told)
"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (WITHOUT_SDK, "nothing"),
        (WITHOUT_API, MISSING),
        (LATER, "1 True True"),
    ],
    ids=["without an SDK", "without the API", "an SDK that comes later"],
)
def test_what_is_not_installed_or_not_there_yet(code: str, says: str) -> None:
    if code is not WITHOUT_API:
        pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == says
