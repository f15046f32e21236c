"""probe(): one at a time, shared, each caller with a timeout of its own."""

import threading
import time

from core.hand_engine import A, held_up, lane, until

import boundedgen as b


def probing(pipeline: b.BoundedPipeline, timeout: float, into: list[b.ProbeResult]) -> threading.Thread:
    thread = threading.Thread(target=lambda: into.append(pipeline.probe(timeout)))
    thread.start()
    return thread


def test_who_joins_a_probe_has_the_whole_of_his_own_timeout() -> None:
    with lane() as (pipeline, engine):
        short: list[b.ProbeResult] = []
        long: list[b.ProbeResult] = []
        first = probing(pipeline, 0.3, short)
        engine.stay()
        second = probing(pipeline, 30.0, long)
        until(lambda: getattr(pipeline._probing._attempt, "asking", 0) == 2)
        first.join(20)
        assert [result.verdict for result in short] == [b.ProbeVerdict.FAILED]
        assert second.is_alive()
        engine.say(A)
        engine.finish("length")
        second.join(20)
        assert [result.verdict for result in long] == [b.ProbeVerdict.OK]
        assert len(engine.link.requests) == 1, "one probe for both"


def test_a_probe_ends_with_the_last_who_waits_for_it() -> None:
    with lane() as (pipeline, engine):
        assert pipeline.probe(0.05).verdict is b.ProbeVerdict.FAILED
        stay = engine.stay()
        until(lambda: engine.link.stops == [stay])
        began = time.monotonic()
        assert pipeline.probe(0.05).verdict is b.ProbeVerdict.FAILED
        assert time.monotonic() - began < 5
        assert len(engine.link.requests) == 2


def test_a_signal_handler_may_look_and_probe_while_its_thread_is_in_the_middle_of_that() -> None:
    with lane() as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=4)
        engine.say(A)
        until(lambda: generation.partial.token_ids)
        with generation._flow._taking, pipeline._probing._beginning, pipeline._serving.rejections._adding:
            assert generation.partial.token_ids == (A,)
            assert pipeline.probe(0.02).verdict is b.ProbeVerdict.FAILED
            pipeline._serving.rejections.add(b.InvalidRequest("x"))
        generation.cancel()


def test_a_probe_that_is_given_up_before_it_could_be_admitted_is_nothing_against_the_lane() -> None:
    with lane() as (pipeline, engine), held_up(engine):
        assert pipeline.probe(1e-6).verdict is b.ProbeVerdict.FAILED
        assert pipeline.stats().last_probe is None


def test_while_the_pipeline_probes_itself_the_verdict_before_is_the_last_known() -> None:
    with lane(limits=b.Limits(progress=1e6, ack=1e6, reclaim=1e6, probe_idle=30)) as (pipeline, engine):
        for nth in range(3):
            engine.clock.skip(31)
            engine.stay(nth)
            assert pipeline.stats().last_probe is (b.ProbeVerdict.OK if nth else None)
            engine.say(A, nth=nth)
            engine.finish("length", nth=nth)
            until(lambda: pipeline.stats().last_probe is b.ProbeVerdict.OK)
            until(lambda: not pipeline._driver.governor.stays)
