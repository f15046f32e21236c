"""Refusals at the door: at once, before anything is encoded, with an honest time to wait; of nobody who makes it."""

import random
import re
import time
from collections.abc import Callable

import pytest

import boundedgen as b
from boundedgen import Admission, Bounds, EngineUnavailable, Generation, InvalidRequest, Limits, Saturated
from boundedgen._core._sequences import Sequence, Submission
from boundedgen.testing import SimModel, Simulation

MODEL = SimModel(step_s=0.1, running_max=4)
PER_S = 1.93  #: generations of 20 tokens that the model above makes in a second
AT_ONCE_S = 0.01
Owner = Callable[[int, random.Random], str]
OWNERS: dict[str, Owner] = {
    "nobody in particular": lambda n, rng: "",
    "three": lambda n, rng: rng.choice("abc"),
    "a hundred": lambda n, rng: f"o{rng.randrange(100)}",
    "a new one each time": lambda n, rng: f"o{n}",
    "a large one and fifty": lambda n, rng: "large" if rng.random() < 0.9 else f"o{rng.randrange(50)}",
}
ONE_LINE = ("nobody in particular", "a new one each time")


def lane(margin: float | None = 0.25, **limits: int) -> Simulation:
    simulation = Simulation(model=MODEL, limits=Limits(**limits), admission=Admission(margin=margin))
    simulation.pipeline.wait_ready()
    return simulation


def known(simulation: Simulation) -> None:
    """So much has been served, while others waited, that times can be told."""
    held = [simulation.pipeline.submit([5], max_new_tokens=20) for _ in range(16)]
    for generation in held:
        generation.result()


def refusal(call: Callable[[], object], kind: type[b.Rejected] = Saturated) -> b.Rejected:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


class Encoding:
    """Counts what is encoded or templated."""

    def __init__(self, simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        tokenizer = simulation.pipeline._loading.need()
        for name in ("encode", "render"):
            monkeypatch.setattr(tokenizer, name, self._counted(getattr(tokenizer, name)))

    def _counted(self, method: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: object, **kwargs: object) -> object:
            self.count += 1
            return method(*args, **kwargs)

        return counted


# --- at once ---------------------------------------------------------------------------------------------------------


def test_what_can_be_refused_is_refused_before_the_prompt_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with lane(waiting_max=1000, owner_max=1) as simulation:
        known(simulation)
        encoding, submit = Encoding(simulation, monkeypatch), simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20, bounds=Bounds(total=4)) for _ in range(50)]
        held.append(submit("x", owner="mine"))
        simulation.advance(0)
        encoded = encoding.count
        refusal(lambda: submit("x", owner="mine"))
        refusal(lambda: submit("x", bounds=Bounds(total=5)))
        refusal(lambda: submit("x", bounds=Bounds(queued=5)))
        refusal(lambda: submit("x", temperature="hot"), InvalidRequest)
        refusal(lambda: submit([{"role": "user", "content": "x"}], num_beams=3, stop_strings=["x"]), InvalidRequest)
        assert encoding.count == encoded
        held.append(submit("x"))
        assert encoding.count == encoded + 1


@pytest.mark.parametrize("full", [False, True], ids=["its time is too short", "no place is left"])
def test_with_100_000_waiting_a_refusal_takes_no_longer_than_with_none(full: bool) -> None:
    with lane(waiting_max=100_000, running_max=1) as simulation:
        known(simulation)
        pipeline, queue = simulation.pipeline, simulation.pipeline._driver.governor.queue
        inside = pipeline.submit([5], max_new_tokens=2000)
        simulation.advance(0.5)
        for n in range(100_000):  # the core's own queue: a hundred thousand callers would take their time
            submission = Submission(n + 10**6, 5, 20, submitted_at=simulation.now, owner=f"o{n % 1000}")
            queue.add(Sequence(submission, 0.0), simulation.now)
        if full:
            pipeline._serving._admitting._door._places.clear()
        prompt, taken = "a long prompt " * 50_000, []
        for n in range(50):
            began = time.perf_counter()
            refusal(lambda n=n: pipeline.submit(prompt, owner=f"o{n}"))  # type: ignore[misc]
            taken.append(time.perf_counter() - began)
        assert sorted(taken)[25] < AT_ONCE_S / 5
        assert sorted(taken)[-3] < AT_ONCE_S, "two may have met the collector of cycles, or other work"
        assert not inside.finish_reason


# --- when to come again ----------------------------------------------------------------------------------------------


def test_a_full_queue_says_how_long_it_is_and_not_the_same_to_everybody() -> None:
    with lane(waiting_max=20) as simulation:
        known(simulation)
        held = []
        for _ in range(24):
            held.append(simulation.pipeline.submit([5], max_new_tokens=20))
            simulation.advance(0.01)
        said = [refusal(lambda: simulation.pipeline.submit([5])).retry_after_s for _ in range(50)]  # type: ignore[attr-defined]
        began = simulation.now
        simulation.run_until(lambda: all(g.phase != "waiting" for g in held))
        took = simulation.now - began
        assert 0.7 * took < min(said) < max(said) < 1.5 * 1.3 * took
        assert max(said) / min(said) > 1.2
        assert len(set(said)) == len(said)


def test_an_owner_is_told_of_its_own_queue_and_not_of_another_s() -> None:
    with lane(waiting_max=1000, owner_max=24) as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20, owner=owner) for owner in ("a",) * 24 + ("b",) * 4]
        simulation.advance(0.01)
        held += [submit([5], max_new_tokens=20, owner=f"c{n}") for n in range(3)]
        simulation.advance(0.01)
        many = refusal(lambda: submit([5], owner="a"))
        assert 0.5 * 24 / PER_S < many.retry_after_s < 1.5 * 1.3 * 31 / PER_S  # type: ignore[attr-defined]


def test_with_nothing_known_it_is_a_second_or_a_little_more() -> None:
    with lane(waiting_max=1) as simulation:
        held = [simulation.pipeline.submit([5])]
        error = refusal(lambda: simulation.pipeline.submit([5]))
        assert isinstance(error, Saturated)
        assert 1.0 <= error.retry_after_s <= 1.5
        assert not held[0].finish_reason


def test_who_comes_before_the_engine_is_ready_is_not_told_the_same_either() -> None:
    simulation = Simulation()
    try:
        errors = [refusal(lambda: simulation.pipeline.submit([5]), EngineUnavailable) for _ in range(20)]
        said = {error.retry_after_s for error in errors if isinstance(error, EngineUnavailable)}
        assert len(said) == 20
        assert all(after is not None and 1.0 <= after <= 1.5 for after in said)
    finally:
        simulation.close()


def test_the_same_simulation_says_the_same() -> None:
    def said() -> float:
        with lane(waiting_max=1) as simulation:
            held = [simulation.pipeline.submit([5])]
            error = refusal(lambda: simulation.pipeline.submit([5]))
            assert held
            assert isinstance(error, Saturated)
            return error.retry_after_s

    assert said() == said()


# --- no doomed waiting -----------------------------------------------------------------------------------------------


def test_who_cannot_make_it_is_told_what_it_would_take() -> None:
    with lane() as simulation:
        known(simulation)
        held = [simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=8)) for _ in range(30)]
        simulation.advance(0.01)
        said = r"about \d.* s to wait, 2.* s to generate: (\S+) s with Admission.margin, and total is 8 s; try again in"
        with pytest.raises(Saturated, match=said) as caught:
            simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=8))
        told = re.search(said, str(caught.value))
        assert told is not None
        assert float(told[1]) > 8, "what is counted is more than what was given"
        with pytest.raises(Saturated, match=r"s to wait: .* and queued is 8 s"):
            simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=100, queued=8))
        assert simulation.pipeline.stats().rejected_total["Saturated"] == 2
        held.append(simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=40)))
        assert held[-1].result().text


def test_a_first_token_that_would_be_late_in_the_queue_is_a_reason() -> None:
    with lane() as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20, bounds=Bounds(total=25)) for _ in range(30)]
        simulation.advance(0.01)
        with pytest.raises(
            Saturated, match=r"about \d.* s to wait, 0\.1.* s to the first token: .* and first_token is 5 s"
        ):
            submit([5], max_new_tokens=20, bounds=Bounds(first_token=5))
        held.append(submit([5], max_new_tokens=20, bounds=Bounds(first_token=20)))
        assert held[-1].result().text


def test_a_bound_of_first_tokens_is_no_reason_for_one_that_shows_none() -> None:
    with Simulation(model=MODEL, bounds=Bounds(total=100, first_token=10)) as simulation:
        known(simulation)
        submit, held = simulation.pipeline.submit, []

        def many() -> None:
            for _ in range(100):
                held.append(submit([5], max_new_tokens=20))
                simulation.advance(0.001)

        assert "and first_token is 10 s" in str(refusal(many))
        assert submit([5], max_new_tokens=20, num_return_sequences=2, do_sample=True).result().text


@pytest.mark.parametrize("margin", [None, -1.0])
def test_it_can_be_switched_off(margin: float | None) -> None:
    with lane(margin) as simulation:
        known(simulation)
        held = [simulation.pipeline.submit([5], max_new_tokens=20) for _ in range(30)]
        simulation.advance(0.01)
        held.append(simulation.pipeline.submit([5], max_new_tokens=20, bounds=Bounds(total=100, queued=3)))
        simulation.advance(0)
        assert held[-1].phase == "waiting"


def test_another_owner_s_burst_is_no_reason() -> None:
    with lane() as simulation:
        known(simulation)
        burst = [simulation.pipeline.submit([5], max_new_tokens=20, owner="burst") for _ in range(500)]
        simulation.advance(3.3)
        single = simulation.pipeline.submit([5], max_new_tokens=20, owner="single", bounds=Bounds(total=5))
        assert single.result().text
        assert not burst[-1].finish_reason


def test_an_urgent_one_is_only_behind_those_that_are_as_urgent() -> None:
    with lane() as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20, bounds=Bounds(total=600)) for _ in range(100)]
        simulation.advance(0.01)
        held.append(submit([5], max_new_tokens=20, bounds=Bounds(total=6)))
        assert held[-1].result().text
        for _ in range(40):
            simulation.advance(0.05)
            try:
                held.append(submit([5], max_new_tokens=20, bounds=Bounds(total=6)))
            except Saturated:
                break
        else:
            pytest.fail("all of them were taken, and not all can make it")


def test_a_deadline_that_is_over_is_answered_as_such() -> None:
    with lane() as simulation:
        known(simulation)
        held = [simulation.pipeline.submit([5], max_new_tokens=20) for _ in range(30)]
        for total in (0.0, -1.0, float("-inf")):
            with pytest.raises(b.DeadlineExceeded):
                simulation.pipeline.generate([5], bounds=Bounds(total=total))
        assert held


def test_max_length_counts_for_as_much_as_the_prompt_leaves() -> None:
    with lane() as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20, bounds=Bounds(total=4)) for _ in range(5)]
        simulation.advance(0.01)
        with pytest.raises(Saturated):
            submit([5] * 4, max_new_tokens=90, bounds=Bounds(total=5))
        held.append(submit([5] * 4, max_length=5, bounds=Bounds(total=5)))
        assert held[-1].max_new_tokens == 1


def test_an_outage_is_no_turn() -> None:
    with lane() as simulation:
        known(simulation)
        held = [simulation.pipeline.submit([5], max_new_tokens=20) for _ in range(30)]
        simulation.advance(1.0)
        before = simulation.pipeline._driver.governor.forecast.turn.value
        simulation.engine.kill(simulation.now)
        simulation.run_until(
            lambda: simulation.pipeline.stats().incarnation == 2 and simulation.pipeline.health().ready
        )
        simulation.advance(0.5)
        assert simulation.pipeline._driver.governor.forecast.turn.value <= 1.1 * before
        assert held


def test_a_night_after_the_last_of_a_crowd_gave_up_is_no_turn() -> None:
    with lane(running_max=1) as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20) for _ in range(3)]
        simulation.run_until(lambda: held[1].phase == "running")
        held[2].cancel()
        simulation.advance(8 * 3600)
        morning = []
        for _ in range(8):
            morning.append(submit([5], max_new_tokens=20, bounds=Bounds(total=60)))
            simulation.advance(0.01)
        assert all(g.result().finish_reason for g in morning)


def test_a_lane_that_was_slow_is_not_taken_for_slow_for_ever() -> None:
    """Nobody is let in to wait behind another, so that there is never more than one who waits."""
    with lane() as simulation:
        submit = simulation.pipeline.submit
        slow = [submit([5], max_new_tokens=400) for _ in range(24)]
        for generation in slow:
            generation.result()
        refused = [0.0]
        for _ in range(100):  # two thirds of what can be served, eight at a time, each with ten times what it takes
            for _ in range(8):
                try:
                    slow.append(submit([5], max_new_tokens=5, bounds=Bounds(total=10)))
                except Saturated:
                    refused.append(simulation.now)
                simulation.advance(0.001)
            simulation.advance(2.0)
        assert refused[-1] < simulation.now - 100, "of 200 s"


def test_nobody_is_told_to_come_again_before_an_engine_that_is_replaced_is_expected() -> None:
    with lane(owner_max=1) as simulation:
        known(simulation)
        submit = simulation.pipeline.submit
        held = [submit([5], max_new_tokens=20) for _ in range(30)]
        simulation.advance(0.5)
        simulation.engine.kill(simulation.now)
        simulation.advance(0.5)
        expected = simulation.pipeline.health().retry_after_s
        assert expected is not None
        assert expected > 3
        held.append(submit([5], owner="mine"))
        refused = refusal(lambda: submit([5], owner="mine"))
        assert isinstance(refused, Saturated)
        assert refused.retry_after_s >= expected


# --- under overload --------------------------------------------------------------------------------------------------


class Arrivals:
    """Open arrivals at `load` times the capacity, each with 8 s. `forced`: that one is not refused for its deadline."""

    def __init__(self, owners: Owner, load: float, seconds: float, *, forced: int = 0) -> None:
        self.taken: dict[int, Generation] = {}
        self.refused: list[int] = []
        rng, number = random.Random(1), 0
        with lane() as simulation:
            known(simulation)
            prospects = simulation.pipeline._serving._admitting._prospects
            until, check = simulation.now + seconds, prospects.hopeless
            while simulation.now < until:
                simulation.advance(rng.expovariate(load * PER_S))
                number += 1
                owner = owners(number, rng)
                prospects.hopeless = check if number != forced else lambda *_: None  # type: ignore[method-assign]
                try:
                    self.taken[number] = simulation.pipeline.submit(
                        [5], max_new_tokens=20, owner=owner, bounds=Bounds(total=8)
                    )
                except Saturated:
                    self.refused.append(number)
            simulation.advance(10)
            self.made = sum(g.finish_reason is not None and g.finish_reason.normal for g in self.taken.values())


@pytest.mark.parametrize("owners", OWNERS)
def test_under_four_times_the_load_hardly_anything_is_taken_only_to_be_late(owners: str) -> None:
    """Of a few owners some more: those that come later can have their turns before. Nothing is computed for them."""
    arrivals = Arrivals(OWNERS[owners], 4, 30)
    hardly = 0.1 if owners in ONE_LINE else 0.3
    assert len(arrivals.taken) - arrivals.made <= hardly * len(arrivals.taken)
    assert arrivals.made >= 0.95 * 30 * PER_S


@pytest.mark.parametrize("owners", OWNERS)
def test_nobody_is_refused_who_would_have_made_it_comfortably(owners: str) -> None:
    """In half of its time; turns of a few owners are less certain."""
    comfortably = 0.55 if owners in ONE_LINE else 0.4
    refused = Arrivals(OWNERS[owners], 3, 20).refused
    for number in refused[:: max(1, len(refused) // 5)]:
        spared = Arrivals(OWNERS[owners], 3, 20, forced=number).taken[number]
        assert not (spared.finish_reason and spared.finish_reason.normal) or spared.partial.total_s > 8 * comfortably


def test_a_load_that_can_be_served_is_served() -> None:
    arrivals = Arrivals(OWNERS["three"], 0.8, 30)
    assert not arrivals.refused
    assert arrivals.made == len(arrivals.taken)
