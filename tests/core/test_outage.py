"""While the engine is replaced: who has the time waits and is served, who has not is told so at once."""

import random
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import boundedgen as b
from boundedgen import Admission, Bounds, EngineUnavailable, Generation, Limits, Saturated
from boundedgen import _prospects as prospects
from boundedgen._returning import OVERBOOKED
from boundedgen.testing import Fault, SimModel, Simulation

BOOT_S = 10.0
AT_ONCE_S = 0.01
SOME = 1.0  #: seconds


def lane(margin: float | None = 0.25, boot_s: float = BOOT_S, **limits: Any) -> Simulation:
    model = SimModel(boot_s=boot_s, step_s=0.1, running_max=4)
    simulation = Simulation(model=model, limits=Limits(boot=1000.0, **limits), admission=Admission(margin=margin))
    simulation.pipeline.wait_ready()
    return simulation


def known(simulation: Simulation) -> None:
    """So much has been served, while others waited, that times can be told."""
    held = [simulation.pipeline.submit([5], max_new_tokens=20) for _ in range(16)]
    for generation in held:
        generation.result()


def lost(simulation: Simulation, seconds: float = 0.0) -> None:
    """The engine is lost, and so many seconds have passed since."""
    simulation.engine.kill(simulation.now)
    simulation.run_until(lambda: simulation.pipeline.health().state is b.HealthState.RECOVERING)
    simulation.advance(seconds)


def rest(simulation: Simulation) -> float:
    """Of the outage, as far as health can tell."""
    after = simulation.pipeline.health().retry_after_s
    assert after is not None
    return after


def unavailable(simulation: Simulation, prompt: object = (5,), **arguments: Any) -> EngineUnavailable:
    with pytest.raises(EngineUnavailable) as caught:
        simulation.pipeline.submit(prompt, **arguments)
    assert type(caught.value) is EngineUnavailable
    return caught.value


# --- who waits, who is refused ---------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    boot_s=st.floats(1.0, 200.0),
    over=st.floats(0.0, 0.99),
    time_given=st.floats(0.1, 300.0),
    bound=st.sampled_from(["total", "queued"]),
    tokens=st.integers(1, 40),
    seen=st.booleans(),
)
def test_who_is_let_in_is_served_in_time_and_who_is_refused_would_not_have_been(
    boot_s: float, over: float, time_given: float, bound: str, tokens: int, seen: bool
) -> None:
    takes = 0.0

    def submitted(margin: float | None) -> Generation | EngineUnavailable:
        nonlocal takes
        with lane(margin, boot_s) as simulation:
            if seen:
                known(simulation)
            takes = simulation.pipeline._driver.governor.forecast.service_s(1, tokens) or 0.0
            lost(simulation, over * boot_s)
            try:
                generation = simulation.pipeline.submit(
                    [5], max_new_tokens=tokens, bounds=Bounds(**{bound: time_given})
                )
            except EngineUnavailable as error:
                return error
            simulation.run_until(lambda: generation.finish_reason)
            return generation

    found, spared = submitted(0.25), submitted(None)
    assert isinstance(spared, Generation)
    waited = spared.partial.queued_s
    if isinstance(found, Generation):
        assert found.partial.queued_s is not None, "the engine was there in time"
        cut_off_anyway = not seen or 1.25 * takes > time_given
        assert cut_off_anyway or found.finish_reason is b.FinishReason.LENGTH
    elif bound == "queued":
        assert waited is None or waited > 0.75 * time_given
    else:
        assert spared.finish_reason is b.FinishReason.DEADLINE or spared.partial.total_s > 0.75 * time_given


@pytest.mark.parametrize("bounds", [Bounds(total=2), Bounds(queued=1), Bounds(total=60, queued=9)], ids=str)
def test_it_is_refused_at_once_before_its_prompt_is_encoded_and_told_when_to_come_again(bounds: Bounds) -> None:
    with lane() as simulation:
        known(simulation)
        lost(simulation)
        taken = []
        for _ in range(20):
            began = time.perf_counter()
            error = unavailable(simulation, "a long prompt " * 50_000, bounds=bounds)
            taken.append(time.perf_counter() - began)
            assert error.retry_after_s is not None
            assert rest(simulation) <= error.retry_after_s <= 1.5 * (rest(simulation) + 60.0)
        assert sorted(taken)[-3] < AT_ONCE_S, "two may have met the collector of cycles, or other work"
        assert error.retryable
        assert simulation.pipeline.stats().rejected_total["EngineUnavailable"] == 20
        assert simulation.pipeline.stats().waiting == 0
        with pytest.raises(
            EngineUnavailable, match=r"about 1\d.* s until the engine is there.*total is 2 s; try again in"
        ):
            simulation.pipeline.submit([5], bounds=Bounds(total=2))


def test_who_comes_again_when_told_is_served() -> None:
    with lane() as simulation:
        known(simulation)
        lost(simulation, 3.0)
        error = unavailable(simulation, bounds=Bounds(total=4))
        simulation.advance(error.retry_after_s or 0.0)
        assert simulation.pipeline.generate([5], max_new_tokens=20, bounds=Bounds(total=4)).text


def test_who_has_the_time_keeps_its_place_as_before() -> None:
    with lane() as simulation:
        known(simulation)
        inside = [simulation.pipeline.submit([5], max_new_tokens=400) for _ in range(4)]
        simulation.advance(SOME)
        came = simulation.now
        held = [simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=60))]
        lost(simulation, SOME)
        held += [simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=60)) for _ in range(10)]
        later = simulation.now - came
        entered = [(g.result().queued_s or 0.0) + (later if n else 0.0) for n, g in enumerate(held)]
        assert entered == sorted(entered)
        assert all(g.finish_reason is b.FinishReason.ENGINE_LOST for g in inside)


def test_bounds_that_stand_still_meanwhile_are_no_reason() -> None:
    with lane() as simulation:
        known(simulation)
        lost(simulation)
        bounds = Bounds(total=60, first_token=1, next_token=1)
        assert simulation.pipeline.generate([5], max_new_tokens=20, bounds=bounds).text


def test_who_would_be_cut_off_anyway_is_only_refused_if_he_would_get_nothing() -> None:
    """As on a lane that has an engine: it is in nobody's way."""
    with lane() as simulation:
        known(simulation)
        lost(simulation, 4.0)
        long: dict[str, Any] = {"max_new_tokens": 500}
        unavailable(simulation, bounds=Bounds(total=7), **long)
        unavailable(simulation, max_new_tokens=50, bounds=Bounds(total=10))
        held = simulation.pipeline.submit([5], bounds=Bounds(total=10), **long)
        with pytest.raises(b.DeadlineExceeded):
            held.result()
        assert len(held.partial.token_ids) > 10


@pytest.mark.parametrize("margin", [None, -1.0])
def test_it_can_be_switched_off(margin: float | None) -> None:
    with lane(margin) as simulation:
        known(simulation)
        lost(simulation)
        with pytest.raises(b.DeadlineExceeded) as caught:
            simulation.pipeline.generate([5], bounds=Bounds(total=2))
        assert caught.value.partial is not None
        assert caught.value.partial.total_s == pytest.approx(2)


def test_a_deadline_that_is_over_is_answered_as_such() -> None:
    with lane() as simulation:
        lost(simulation)
        for total in (0.0, -1.0, float("-inf")):
            with pytest.raises(b.DeadlineExceeded):
                simulation.pipeline.generate([5], bounds=Bounds(total=total))


def test_a_boot_that_takes_longer_than_the_last_one_is_not_known_and_no_reason_any_more() -> None:
    with lane() as simulation:
        simulation.inject(Fault(kind="stillborn"))
        lost(simulation, 8.0)
        unavailable(simulation, bounds=Bounds(total=2))
        simulation.advance(4.0)
        held = simulation.pipeline.submit([5], bounds=Bounds(total=2))
        assert held.phase == "waiting"


def test_after_a_second_failure_the_outage_is_as_long_as_it_has_become() -> None:
    with lane() as simulation:
        simulation.inject(Fault(kind="boot_dies"))
        lost(simulation)
        simulation.run_until(lambda: simulation.pipeline.stats().incarnation == 2)
        simulation.run_until(lambda: simulation.pipeline.stats().kills_total["died"] == 2)
        unavailable(simulation, bounds=Bounds(total=0.9 * BOOT_S))


def test_an_engine_that_is_replaced_for_its_age_is_an_outage_too() -> None:
    with lane(engine_age=60.0) as simulation:
        known(simulation)
        simulation.run_until(lambda: simulation.pipeline.health().state is b.HealthState.RECOVERING)
        unavailable(simulation, bounds=Bounds(total=2))
        assert simulation.pipeline.generate([5], max_new_tokens=5, bounds=Bounds(total=30)).text


# --- behind others ---------------------------------------------------------------------------------------------------


def test_behind_others_the_outage_comes_on_top_of_the_queue() -> None:
    with lane() as simulation:
        known(simulation)
        lost(simulation, 4.0)
        held = [simulation.pipeline.submit([5], max_new_tokens=20, priority=1) for _ in range(30)]
        simulation.advance(0.01)
        said = r"about 6\.\d* s until the engine is there, .* s to wait, 2.* s to generate: .* and total is 20 s"
        with pytest.raises(Saturated, match=said) as caught:
            simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=20))
        assert caught.value.retry_after_s >= rest(simulation)
        held.append(simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=40)))
        assert held[-1].result().text


def test_an_engine_that_comes_back_has_room_for_as_many_as_it_holds() -> None:
    """They do not wait for each other: three that wait are no queue."""
    with lane() as simulation:
        known(simulation)
        lost(simulation, 4.0)
        held = [simulation.pipeline.submit([5], max_new_tokens=20, priority=1) for _ in range(3)]
        simulation.advance(0.01)
        held.append(simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=1.3 * 8.3)))
        assert held[-1].result().total_s < 8.7


class Outage:
    """While it lasts four times as many come as can be served, each with 15 s, of so many owners.

    `forced`: that one is not refused for its deadline.
    """

    def __init__(self, seed: int, owners: int, *, forced: int = 0) -> None:
        self.taken: dict[int, Generation] = {}
        self.refused: dict[int, str] = {}
        rng, number = random.Random(seed), 0
        with lane() as simulation:
            known(simulation)
            doors = simulation.pipeline._serving._admitting._prospects
            check = doors.hopeless
            lost(simulation)
            while not simulation.pipeline.health().ready:
                number += 1
                doors.hopeless = check if number != forced else lambda *_: None  # type: ignore[method-assign]
                bounds, owner = Bounds(total=15), f"o{rng.randrange(owners)}"
                try:
                    generation = simulation.pipeline.submit([5], max_new_tokens=20, owner=owner, bounds=bounds)
                    self.taken[number] = generation
                except b.Rejected as error:
                    self.refused[number] = type(error).__name__
                simulation.advance(rng.expovariate(8.0))
            simulation.advance(20.0)


def answered(generation: Generation) -> bool:
    return generation.finish_reason is b.FinishReason.LENGTH


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("owners", "hardly"), [(1, 0.1), (3, 0.3)])
def test_in_an_outage_hardly_anybody_is_let_in_in_vain_or_refused_who_would_have_made_it(
    seed: int, owners: int, hardly: float
) -> None:
    """Of a few owners some more are in vain: those that come later can have their turns before."""
    outage = Outage(seed, owners)
    late = [g for g in outage.taken.values() if not answered(g)]
    assert len(outage.taken) >= 20
    assert len(late) <= hardly * len(outage.taken)
    assert set(outage.refused.values()) == {"EngineUnavailable", "Saturated"}
    for number in list(outage.refused)[:: max(1, len(outage.refused) // 5)]:
        spared = Outage(seed, owners, forced=number).taken[number]
        assert not answered(spared) or spared.partial.total_s > 15 * 0.6


# --- when they come again --------------------------------------------------------------------------------------------


def test_those_who_are_refused_in_an_outage_come_back_behind_it_and_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prospects, "spread", lambda seconds, chance: seconds)
    with lane() as simulation:
        known(simulation)
        lost(simulation, SOME)
        expected = simulation.now + rest(simulation)
        backs: list[float] = []
        for n in range(60):
            backs.append(
                simulation.now
                + (unavailable(simulation, max_new_tokens=1, bounds=Bounds(total=1)).retry_after_s or 0.0)
            )
            if n == 20:  # who has the time waits, which is nothing to those who were told to come later
                held = simulation.pipeline.submit([5], max_new_tokens=20)
            simulation.advance(0.1)
        each = simulation.pipeline._driver.governor.forecast.turn.value / OVERBOOKED
        assert min(backs) >= expected
        assert all(later - sooner >= 0.99 * each for sooner, later in pairwise(backs))
        assert held.result().text


def test_an_outage_of_minutes_is_told_as_such() -> None:
    with lane(boot_s=200.0) as simulation:
        lost(simulation)
        assert (unavailable(simulation, bounds=Bounds(total=2)).retry_after_s or 0.0) >= 200.0
        held = [simulation.pipeline.submit([5]) for _ in range(3)]
        simulation.pipeline._serving._admitting._door._places.clear()
        with pytest.raises(Saturated) as caught:
            simulation.pipeline.submit([5])
        assert caught.value.retry_after_s >= 200.0
        assert held


# --- those that are not like the others ------------------------------------------------------------------------------


def test_one_that_supersedes_needs_the_time_as_everybody_does_and_is_behind_nobody() -> None:
    with lane() as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        lost(simulation, 4.0)
        first = submit([5], max_new_tokens=20, owner="me", label="job")
        others = [submit([5], max_new_tokens=20, priority=1) for _ in range(100)]
        simulation.advance(0.01)
        unavailable(simulation, owner="me", label="job", supersede=True, bounds=Bounds(total=3))
        simulation.advance(0.01)
        assert first.phase == "waiting", "who was refused has superseded nobody"
        second = submit([5], max_new_tokens=20, owner="me", label="job", supersede=True, bounds=Bounds(total=12))
        simulation.advance(0.01)
        assert second.phase == "waiting"
        assert first.finish_reason is b.FinishReason.CANCELLED
        assert others


def test_a_probe_waits_as_long_as_it_was_given_since_it_is_to_find_out() -> None:
    with lane() as simulation:
        lost(simulation)
        began = simulation.now
        assert simulation.pipeline.probe(2.0).verdict is b.ProbeVerdict.FAILED
        assert simulation.now == pytest.approx(began + 2.0)
        assert simulation.pipeline.probe(30.0).verdict is b.ProbeVerdict.OK
        assert simulation.pipeline.stats().rejected_total["EngineUnavailable"] == 0


def test_of_many_prompts_none_is_submitted() -> None:
    with lane() as simulation:
        lost(simulation)
        with pytest.raises(EngineUnavailable):
            simulation.pipeline.generate_many([[5], [6]], bounds=Bounds(total=2))
        simulation.advance(0.01)
        assert simulation.pipeline.stats().waiting == 0
