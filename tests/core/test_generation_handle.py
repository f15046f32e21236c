"""The handle of a generation, for threads: reading, waiting, abandoning. The engine is under the test's hand."""

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from core.hand_engine import A, HandEngine, lane, until

import boundedgen as b

Lane = tuple[b.BoundedPipeline, HandEngine]
B = A + 1


@pytest.fixture
def served() -> Iterator[Lane]:
    with lane() as found:
        yield found


def test_chunks_come_as_they_are_said_and_join_to_the_completion(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    stream = iter(g)
    engine.say(A)
    assert next(stream).text == "a"
    engine.say(B, A)
    assert next(stream).token_ids == (B, A)
    engine.finish()
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    assert g.result().text == "aba"
    assert (g.phase, g.finish_reason, g.remaining_s) == ("settled", b.FinishReason.STOP, 0.0)


def test_a_second_stream_is_refused_while_the_first_is_read(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    first = iter(g)
    with pytest.raises(RuntimeError, match="one stream"):
        iter(g)
    engine.say(A)
    engine.finish()
    assert [c.text for c in first] == ["a"]


def test_of_many_threads_that_begin_to_read_at_once_one_may(served: Lane) -> None:
    pipeline, _ = served
    for _ in range(30):
        g = pipeline.submit("x", max_new_tokens=8)
        go = threading.Barrier(4)
        streams: list[object] = []
        refused: list[RuntimeError] = []

        def begin(g: b.Generation = g, go: threading.Barrier = go, to: Any = streams, no: Any = refused) -> None:
            go.wait()
            try:
                to.append(iter(g))
            except RuntimeError as error:
                no.append(error)

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert (len(streams), len(refused)) == (1, 3)


def test_an_abnormal_end_is_raised_once_by_the_stream_and_then_it_is_over(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    stream = iter(g)
    engine.say(A)
    engine.say(B)
    engine.finish("ignored")
    read = ""
    with pytest.raises(b.CacheExhausted) as caught:  # noqa: PT012
        for chunk in stream:
            read += chunk.text
    assert read == "ab", "all there was comes first"
    assert caught.value.partial is not None
    assert caught.value.partial.text == "ab"
    assert caught.value.generation_id == g.id
    with pytest.raises(StopIteration):
        next(stream)


def test_every_waiter_gets_the_result_or_a_copy_of_the_error_of_its_own(served: Lane) -> None:
    pipeline, engine = served
    good, bad = pipeline.submit("x", max_new_tokens=8), pipeline.submit("x", max_new_tokens=8)
    results: list[b.Completion] = []
    errors: list[BaseException] = []

    def wait() -> None:
        results.append(good.result(20))
        try:
            bad.result(20)
        except b.BoundedGenError as error:
            errors.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(12)]
    for waiter in waiters:
        waiter.start()
    engine.say(A, nth=0)
    engine.finish(nth=0)
    engine.say(B, nth=1)
    bad.cancel()
    for waiter in waiters:
        waiter.join(20)
    assert len(results) == 12
    assert set(results) == {good.result()}
    assert len({id(error) for error in errors}) == 12
    assert {type(error) for error in errors} == {b.GenerationCancelled}
    assert good.result() == good.result(), "and whoever comes later"


def test_a_timeout_ends_only_the_wait(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    with pytest.raises(TimeoutError) as caught:
        g.result(0.01)
    assert not isinstance(caught.value, b.BoundedGenError)
    with pytest.raises(TimeoutError, match="no proof of release"):
        g.wait_reclaimed(0.01)
    engine.say(A)
    engine.finish()
    assert g.result(20).text == "a"
    assert g.wait_reclaimed(20).proof == "perf_metrics"


# --- abandonment -----------------------------------------------------------------------------------------------------


def cancelled(engine: HandEngine, nth: int = 0) -> None:
    stay = engine.stay(nth)
    until(lambda: stay in engine.link.stops)


def test_leaving_the_with_block_cancels(served: Lane) -> None:
    pipeline, engine = served
    with pipeline.submit("x", max_new_tokens=8) as g:
        engine.stay()
    cancelled(engine)
    with pytest.raises(b.GenerationCancelled):
        g.result(20)
    assert g.wait_reclaimed(20).steps == 1


def test_leaving_it_by_an_exception_cancels_and_lets_the_exception_through(served: Lane) -> None:
    pipeline, engine = served
    with pytest.raises(ZeroDivisionError), pipeline.submit("x", max_new_tokens=8):
        _ = engine.stay() / 0
    cancelled(engine)


def test_leaving_the_loop_cancels_at_once(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    engine.say(A)
    gc.disable()  # not by the collector, some day
    try:
        for _ in g:
            break
        cancelled(engine)
    finally:
        gc.enable()
    with pytest.raises(b.GenerationCancelled):
        g.result(20)


def test_dropping_the_last_reference_cancels_at_once(served: Lane) -> None:
    pipeline, engine = served
    gc.disable()
    try:
        g = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        del g
        cancelled(engine)
        g = pipeline.submit("x", max_new_tokens=8)
        stream = iter(g)
        del g
        engine.say(A, nth=1)
        assert next(stream).text == "a", "whoever reads it has it"
        del stream
        cancelled(engine, 1)
    finally:
        gc.enable()


def test_closing_the_stream_cancels_and_reading_on_ends(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    stream = iter(g)
    engine.stay()
    stream.close()  # type: ignore[attr-defined]
    cancelled(engine)
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(b.GenerationCancelled):
        g.result(20)


def test_a_stream_that_was_read_to_its_end_cancels_nothing(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    engine.say(A)
    engine.finish()
    assert "".join(c.text for c in g) == "a"
    assert g.result().finish_reason is b.FinishReason.STOP
    assert not g.cancel()
    assert engine.link.stops == []


def test_cancelling_says_whether_it_came_in_time(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    engine.stay()
    assert g.cancel()
    until(lambda: g.phase == "settled")
    assert not g.cancel()


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_the_deadline_is_the_tighter_of_both_and_is_answered_while_the_engine_still_holds_it() -> None:
    with lane(HandEngine(obedient=False), bounds=b.Bounds(total=60)) as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=8, bounds=b.Bounds(total=600, queued=30))
        assert g.bounds == b.Bounds(total=60, queued=30)
        engine.say(A)
        until(lambda: g.phase == "running")
        assert g.deadline.bound == "total"
        assert 0 < g.remaining_s <= 60
        engine.clock.skip(60)
        with pytest.raises(b.DeadlineExceeded) as caught:
            g.result(20)
        assert caught.value.deadline is not None
        assert caught.value.deadline.bound == "total"
        assert g.remaining_s == 0
        assert pipeline.stats().stopping == 1
        with pytest.raises(TimeoutError):
            g.wait_reclaimed(0.01)
        engine.release()
        assert g.wait_reclaimed(20) == b.Reclamation(steps=2, seconds=0.5, proof="perf_metrics")


def test_tightening_is_seen_at_once_and_never_loosens(served: Lane) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8)
    engine.stay()
    g.tighten(b.Bounds(total=50))
    assert g.bounds.total == 50
    g.tighten(b.Bounds(total=500))
    assert g.bounds.total == 50
    engine.clock.skip(49)
    with pytest.raises(TimeoutError):
        g.result(0.05)
    engine.clock.skip(1)
    with pytest.raises(b.DeadlineExceeded):
        g.result(20)


@pytest.mark.parametrize("total", [0, -1, -1e9])
def test_a_call_whose_time_is_up_already_never_enters_the_engine(served: Lane, total: float) -> None:
    pipeline, engine = served
    g = pipeline.submit("x", max_new_tokens=8, bounds=b.Bounds(total=total))
    with pytest.raises(b.DeadlineExceeded):
        g.result(20)
    assert engine.link.requests == {}
    assert g.wait_reclaimed(20).proof == "never_held"


# --- readers that leave ----------------------------------------------------------------------------------------------


def test_a_reader_that_began_and_left_text_unread_is_ended() -> None:
    with lane(limits=b.Limits(unread=30, progress=1e6)) as (pipeline, engine):
        begun, never_begun = (pipeline.submit("x", max_new_tokens=8) for _ in range(2))
        stream = iter(begun)
        engine.say(A, nth=0)
        assert next(stream).text == "a"
        engine.say(B, nth=0)
        engine.say(B, nth=1)
        until(lambda: begun.partial.text == "ab" and never_begun.partial.text == "b")
        engine.clock.skip(29)
        with pytest.raises(TimeoutError):
            begun.result(0.05)
        engine.clock.skip(29)  # that wait counted as being there
        engine.say(B, nth=0)
        until(lambda: begun.partial.text == "abb")
        assert begun.phase == "running"
        engine.clock.skip(2)
        until(lambda: begun.phase == "settled")
        with pytest.raises(b.SlowReader) as caught:
            begun.result(20)
        assert caught.value.partial is not None
        assert caught.value.partial.text.startswith("ab")
        assert never_begun.phase == "running", "whoever only waits for the result may do so"


def test_text_from_before_the_reader_began_is_not_held_against_it() -> None:
    with lane(limits=b.Limits(unread=30, progress=1e6)) as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=8)
        engine.say(A)
        until(lambda: g.partial.text == "a")
        engine.clock.skip(300)
        stream = iter(g)
        engine.say(B)
        time.sleep(0.05)
        assert next(stream).text == "ab"


def test_a_closed_pipeline_s_handles_answer_and_wait_for_nothing() -> None:
    with lane(HandEngine(obedient=False, mortal=False), limits=b.Limits(reap=0.1)) as (pipeline, engine):
        g = pipeline.submit("x", max_new_tokens=8)
        others = [pipeline.submit("x", max_new_tokens=8) for _ in range(4)]
        engine.stay(3)
        pipeline.close()
        with pytest.raises(b.GenerationShutDown):
            g.result()
        with pytest.raises(TimeoutError, match="before the pipeline ended"):
            g.wait_reclaimed()
        assert others[-1].wait_reclaimed().proof == "never_held"
        g.tighten(b.Bounds(total=1))
        assert not g.cancel()
        with pytest.raises(b.PipelineClosed):
            pipeline.submit("x")
