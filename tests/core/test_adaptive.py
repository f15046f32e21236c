"""Admission "adaptive": more are let in than could all go on to their ends, and who makes room for the others."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from attrs import evolve
from core.governed import Governed, facts

from boundedgen import Admission, Bounds, FinishReason, Generation, Limits, RestartPolicy, SchedulerStats
from boundedgen._core import _events as ev
from boundedgen._core._admission import CALM
from boundedgen._core._events import PoolFacts
from boundedgen._core._forecast import ENOUGH
from boundedgen.testing import Fault, FaultKind, SimModel, Simulation

SHORT, LONG = 5, 9  #: the first token of prompts whose answers end after 3 tokens, or never by themselves


def natural_length(prompt: Sequence[int]) -> int | None:
    return 3 if prompt[0] == SHORT else None


KV = PoolFacts("kv", 13, 4)  #: of which 12 are for us, 48 tokens
MODEL = SimModel(pools=(KV,), running_max=8, natural_length=natural_length, step_s=0.1, token_s=0.0)


def lane(policy: str = "adaptive", *, model: SimModel = MODEL, taught: bool = True, **arguments: Any) -> Simulation:
    """All answers were short so far, if it was taught."""
    simulation = Simulation(model=model, admission=Admission(policy=policy), **arguments)
    simulation.pipeline.wait_ready()
    for _ in range(ENOUGH if taught else 0):
        simulation.pipeline.generate([SHORT], max_new_tokens=30)
    return simulation


def longs(simulation: Simulation, number: int, new: int = 30, **arguments: Any) -> list[Generation]:
    return [simulation.pipeline.submit([LONG, 20 + n], max_new_tokens=new, **arguments) for n in range(number)]


def text(n: int, new: int = 30) -> tuple[int, ...]:
    return tuple(MODEL.text([LONG, 20 + n], new))


def phases(stats: SchedulerStats) -> dict[int, str]:
    return {row.id: row.phase for row in stats.sequences or ()}


def until_paused(simulation: Simulation, times: int = 1) -> SchedulerStats:
    simulation.run_until(lambda: simulation.pipeline.stats().paused_total >= times, within=60)
    return simulation.pipeline.stats(sequences=True)


# --- what is set aside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "taught", "inside"), [("adaptive", True, 4), ("adaptive", False, 1), ("reserve", True, 1)]
)
def test_what_is_expected_is_set_aside_and_the_worst_case_as_long_as_nothing_is_known(
    policy: str, taught: bool, inside: int
) -> None:
    with lane(policy, taught=taught) as simulation:
        held = longs(simulation, 4)
        simulation.advance(0.05)
        stats = simulation.pipeline.stats()
        assert len(held) == stats.waiting + stats.running
        assert stats.running == inside
        assert stats.blocks_reserved == (8 * inside if inside == 1 else 2 * inside)


@pytest.mark.parametrize(
    "config",
    [
        {"num_return_sequences": 2, "do_sample": True, "max_new_tokens": 14},
        {"presence_penalty": 0.5, "do_sample": True},
        {"frequency_penalty": 0.5, "do_sample": True},
        {"bounds": Bounds(next_token=100)},
    ],
)
def test_what_cannot_be_continued_unnoticed_gets_its_worst_case(config: dict[str, Any]) -> None:
    with lane() as simulation:
        held = simulation.pipeline.submit([LONG, 1], **{"max_new_tokens": 30, **config})
        simulation.advance(0.05)
        assert simulation.pipeline.stats().blocks_reserved == 8, held


def test_what_outgrows_its_reservation_gets_a_larger_one() -> None:
    with lane() as simulation:
        held, seen = longs(simulation, 2, new=22), []
        for _ in range(7):
            simulation.advance(0.3)
            (row, other) = simulation.pipeline.stats(sequences=True).sequences or ()
            assert row.blocks["kv"] * 4 >= 2 + min(22, row.tokens + 2) - 1
            seen.append(row.blocks["kv"] + other.blocks["kv"])
        assert len(held) == 2
        assert seen == sorted(seen)
        assert seen[0] < seen[-1] <= 12


# --- who is paused, and what becomes of it -----------------------------------------------------------------------


def test_everybody_gets_the_same_tokens_as_without_pauses_and_the_engine_never_makes_room_itself() -> None:
    with lane() as simulation:
        held = longs(simulation, 8)
        done = [generation.result() for generation in held]
        stats = simulation.pipeline.stats()
        assert [completion.token_ids for completion in done] == [text(n) for n in range(8)]
        assert [completion.resumed for completion in done] == [0] * 8, "that counts engines lost"
        assert stats.paused_total > 0
        assert stats.tokens_total == 8 * 30 + 3 * ENOUGH
        assert (stats.requeued_total, stats.restarts_total, stats.blocks_reserved) == (0, 0, 0)
        assert simulation.engine.preempted == 0


def test_a_stream_goes_on_where_it_was_and_takes_nothing_back() -> None:
    with lane() as simulation:
        held = longs(simulation, 4)
        last = held[-1]
        chunks = [chunk.token_ids for chunk in last]
        assert sum(chunks, ()) == text(3)
        assert simulation.pipeline.stats().paused_total > 0


def test_the_youngest_is_paused_first_and_keeps_its_place_before_all_that_came_later() -> None:
    with lane() as simulation:
        held = longs(simulation, 4)
        simulation.advance(0.05)
        later = longs(simulation, 2, new=4)
        assert phases(until_paused(simulation))[held[3].id] == "waiting"
        simulation.run_until(lambda: later[1].finish_reason, within=60)
        assert held[3].partial.token_ids[4:], "it came in again before those"


@pytest.mark.parametrize(
    ("urgent", "other"),
    [({"priority": 1}, {}), ({"bounds": Bounds(total=50)}, {"bounds": Bounds(total=60)})],
    ids=["of a higher class", "of an earlier deadline"],
)
def test_a_younger_one_that_is_more_urgent_is_not_paused(urgent: dict[str, Any], other: dict[str, Any]) -> None:
    with lane() as simulation:
        old = longs(simulation, 3, **other)
        (young,) = longs(simulation, 1, **urgent)
        shown = phases(until_paused(simulation))
        assert shown[young.id] == "running"
        assert "waiting" in {shown[generation.id] for generation in old}


def test_one_that_is_paused_keeps_its_deadline_and_its_lease() -> None:
    with lane() as simulation:
        lease = simulation.pipeline.lease("owner", ttl=30)
        first = longs(simulation, 3)
        (mine,) = longs(simulation, 1, lease=lease)
        deadline = simulation.now + 600
        before = {row.id: row for row in until_paused(simulation).sequences or ()}
        assert (before[mine.id].phase, before[mine.id].deadline) == ("waiting", deadline)
        assert mine.partial.token_ids, "it has shown something"
        lease.revoke()
        simulation.advance(0)
        assert mine.finish_reason is FinishReason.LEASE
        assert mine.partial.token_ids == text(0)[: len(mine.partial.token_ids)]
        assert all(generation.result().finish_reason is FinishReason.LENGTH for generation in first)


def test_one_that_is_cancelled_while_paused_is_answered_and_leaves_nothing() -> None:
    with lane() as simulation:
        held = longs(simulation, 4)
        until_paused(simulation)
        assert held[3].cancel()
        simulation.advance(0)
        assert held[3].finish_reason is FinishReason.CANCELLED
        assert held[3].wait_reclaimed().steps <= 2
        for generation in held[:3]:
            generation.result()
        assert simulation.pipeline.stats().blocks_reserved == 0


@pytest.mark.parametrize("resume", ["fail", "continue"])
def test_whether_a_crash_continues_it_does_not_matter(resume: Literal["fail", "continue"]) -> None:
    with lane(restart=RestartPolicy(resume=resume)) as simulation:
        held = longs(simulation, 4)
        assert [generation.result().token_ids for generation in held] == [text(n) for n in range(4)]
        assert simulation.pipeline.stats().paused_total > 0


def test_one_that_waits_paused_outlives_an_engine_that_is_lost() -> None:
    with lane(restart=RestartPolicy(resume="fail")) as simulation:
        held = longs(simulation, 4)
        until_paused(simulation)
        simulation.inject(Fault(kind=FaultKind.CRASH, signal=9))
        assert held[3].result().token_ids == text(3)
        assert [generation.finish_reason for generation in held[:3]] == [FinishReason.ENGINE_LOST] * 3


# --- not back and forth ------------------------------------------------------------------------------------------


def test_what_was_paused_does_not_come_straight_back_to_be_paused_again() -> None:
    with lane() as simulation:
        held = longs(simulation, 12)
        pauses: Counter[int] = Counter()
        was: dict[int, str] = {}

        def look() -> None:
            for id_, phase in phases(simulation.pipeline.stats(sequences=True)).items():
                pauses[id_] += (was.get(id_), phase) == ("running", "waiting")
                was[id_] = phase

        unwatch = simulation.watch(look)
        for generation in held:
            generation.result()
        unwatch()
        assert sum(pauses.values()) == simulation.pipeline.stats().paused_total
        assert max(pauses.values()) <= 2
        assert sum(pauses.values()) <= 12, "a pause for each, at the most, though three in four of them do not fit"


def taught_lane() -> Governed:
    g = Governed(ready=False, admission=Admission(policy="adaptive"))
    g.governor.forecast.seen = ENOUGH
    g.governor.forecast.lengths.add(3, ended=True)
    g.ready(facts(running_max=8))
    return g


def test_after_a_pause_nobody_comes_in_until_somebody_has_left_or_it_has_been_calm_for_a_while() -> None:
    g = taught_lane()
    (_, one), (second, two) = g.running(new=20, continuable=True), g.running(new=20, continuable=True)
    g.step(outputs=(ev.Output(two, (7,)),))
    g.step(stopping=(two,), paused=(two,))
    g.step(released=(ev.Release(two, 1, 0.1, 0),))
    g.submit(new=1)
    assert g.governor.census().waiting == 2
    for _ in range(CALM - 2):
        g.step()
        assert g.governor.census().waiting == 2
    g.step()
    assert g.governor.census().waiting == 0
    assert [a.paused for a in g.all(ev.Admit) if a.sequence == second] == [0, 1]
    del one


def test_after_a_pause_others_come_in_as_soon_as_somebody_has_left() -> None:
    g = taught_lane()
    (_, one), (_, two) = g.running(new=20, continuable=True), g.running(new=20, continuable=True)
    g.step(stopping=(two,), paused=(two,))
    g.step(released=(ev.Release(two, 1, 0.1, 0),))
    g.step(outputs=(ev.Output(one, (7,)),), finished=(ev.Finish(one, "stop"),), released=(ev.Release(one, 0, 0.0, 0),))
    assert g.governor.census().waiting == 0


def test_a_newcomer_that_the_engines_process_turned_back_waits_again_in_its_place() -> None:
    g = taught_lane()
    (_, one), (second, two) = g.running(new=20, continuable=True), g.running(new=20)
    g.step(refused=(ev.Refusal(two, ev.NO_ROOM, "full"),))
    assert g.governor.census().waiting == 1
    assert g.reason(second) is None
    assert (g.governor.tally.requeued, g.governor.tally.paused) == (1, 0)
    g.step(outputs=(ev.Output(one, (7,)),), finished=(ev.Finish(one, "stop"),), released=(ev.Release(one, 0, 0.0, 0),))
    assert [a.sequence for a in g.all(ev.Admit)].count(second) == 2


def test_one_that_was_turned_back_before_it_was_ever_inside_has_its_bound_queued() -> None:
    g = taught_lane()
    g.running(new=20, continuable=True)
    turned = g.submit(new=20, owner="me", prompt=3, bounds=Bounds(total=600, queued=5.0))
    assert g.admitted()[-1] == turned
    before = g.governor.tally.prompt_tokens
    g.step(refused=(ev.Refusal(g.stay_of(turned), ev.NO_ROOM, "full"),))
    assert g.governor.tally.prompt_tokens == before
    g.tick(4.9)
    assert g.reason(turned) is None
    g.tick(0.2)
    settled = g.settled(turned)
    assert settled is not None
    assert (settled.reason, settled.bound) == ("deadline", "queued")


def test_one_that_was_paused_and_then_turned_back_has_been_inside() -> None:
    g = taught_lane()
    g.running(new=20, continuable=True)
    paused, stay = g.running(new=20, continuable=True, bounds=Bounds(total=600, queued=5.0))
    g.step(outputs=(ev.Output(stay, (7,)),))
    g.step(stopping=(stay,), paused=(stay,))
    g.step(released=(ev.Release(stay, 1, 0.1, 0),))
    for _ in range(CALM):
        g.step()
    assert g.stay_of(paused) != stay
    g.step(refused=(ev.Refusal(g.stay_of(paused), ev.NO_ROOM, "full"),))
    g.tick(5.5)
    assert g.reason(paused) is None


def test_what_would_be_too_long_a_prompt_to_come_back_is_never_paused() -> None:
    g = Governed(ready=False, admission=Admission(policy="adaptive"))
    g.ready(evolve(facts(running_max=8), max_prompt_tokens=12))
    for new in (8, 9):
        g.running(new=new, prompt=5, continuable=True)
    claims = [a.claim for a in g.all(ev.Admit)]
    assert [c.pausable for c in claims if c is not None] == [True, False]
    assert all(c is not None and c.rank[1] < math.inf for c in claims)


# --- what it is for ----------------------------------------------------------------------------------------------


def busy_seconds(policy: str) -> float:
    """Of 60 calls that ask for 200 tokens and use 3 to 40."""
    model = SimModel(
        pools=(PoolFacts("kv", 65, 4),), running_max=32, step_s=0.1, token_s=0.0,
        natural_length=lambda prompt: 3 + prompt[1] % 38,
    )  # fmt: skip
    with lane(policy, model=model, taught=False, limits=Limits(first_step=10)) as simulation:
        began = simulation.now
        held = [simulation.pipeline.submit([LONG, n], max_new_tokens=200) for n in range(3, 63)]
        for generation in held:
            assert generation.result().finish_reason is FinishReason.STOP
        assert simulation.engine.preempted == 0
        return simulation.now - began


def test_long_limits_and_short_answers_take_a_fraction_of_the_time() -> None:
    assert busy_seconds("adaptive") < 0.4 * busy_seconds("reserve")


@pytest.mark.parametrize("given", [0, -0.1, 1.1, "x", None, True, math.nan])
def test_the_share_that_is_to_be_covered_is_checked(given: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Admission\.covered"):
        Admission(covered=given)
