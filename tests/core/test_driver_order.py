"""The order of a driver's wake, what it has to wake for, and answers that are given once."""

import pytest
from core.hand_engine import A, HandEngine, held_up, lane, until
from core.test_driver_ends import break_the_governor

import boundedgen as b
from boundedgen._core import _events as ev


def test_a_finish_wins_over_a_cancel_of_the_same_wake() -> None:
    with lane() as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.say(A)
        with held_up(engine):
            generation.cancel()
            engine.finish("stop")
        assert generation.result(20).text == "a"


def test_a_renewal_behind_thousands_of_commands_comes_before_the_end_of_its_lease() -> None:
    with lane(limits=b.Limits(running_max=1, waiting_max=2000, progress=1e6, ack=1e6, reclaim=1e6)) as (
        pipeline,
        engine,
    ):
        lease = pipeline.lease("owner", ttl=100)
        generations = [pipeline.submit("x", max_new_tokens=8) for _ in range(1001)]
        with held_up(engine):
            engine.clock.skip(60)
            for generation in generations[1:]:
                generation.cancel()
            lease.renew()
            engine.clock.skip(60)  # the ttl that was granted is over, the renewed one is not
        until(lambda: pipeline.stats().finished_total["cancelled"] == 1000)
        assert lease.live
        assert pipeline.stats().leases_total["expired"] == 0


def test_the_driver_wakes_when_text_will_have_been_unread_for_too_long() -> None:
    with lane(limits=b.Limits(unread=0.25, progress=1e6)) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        stream = iter(generation)
        engine.say(A)
        assert next(stream).text == "a"
        engine.say(A + 1)
        until(lambda: generation.partial.text == "ab" or generation.finish_reason is not None)
        expected = pipeline._driver.snapshot.expected
        assert expected is not None
        assert expected - pipeline._driver.snapshot.at <= 0.25
        until(lambda: generation.finish_reason is b.FinishReason.SLOW_READER)


def test_what_was_answered_keeps_its_answer_though_the_driver_breaks_before_its_proof() -> None:
    with lane(HandEngine(obedient=False)) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.stay()
        generation.cancel()
        until(lambda: generation.finish_reason is not None)
        break_the_governor(pipeline)
        until(lambda: pipeline._driver.over and not pipeline._driver.alive())
        assert generation.finish_reason is b.FinishReason.CANCELLED


def test_the_release_of_a_stay_that_was_put_back_is_no_proof_for_its_generation() -> None:
    with lane(HandEngine()) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.finish("ignored")
        engine.stay(1)  # it has entered again
        with pytest.raises(TimeoutError):
            generation.wait_reclaimed(0.05)
        engine.say(A, nth=1)
        engine.finish("stop", nth=1)
        assert generation.result(20).text == "a"
        assert generation.wait_reclaimed(20).proof == "perf_metrics"


def test_what_a_link_has_to_say_of_a_command_is_heard_although_its_engine_is_silent() -> None:
    with lane() as (pipeline, engine):
        link = engine.link

        def full(*args: object) -> None:
            """The command pipe is full: only the next `receive` tells, and no descriptor announces it."""
            link._reports.append(ev.WireBroken(link.incarnation, "it does not read its commands"))

        link.admit = full  # type: ignore[method-assign,assignment]
        generation = pipeline.submit("x", max_new_tokens=8)
        until(lambda: pipeline.stats().running == 1 or generation.finish_reason is not None)
        pipeline._driver.post("revoke", "nothing")  # any wake that the engine has not caused
        with pytest.raises(b.EngineLost):
            generation.result(5)
