"""`submit(supersede=True)`: a retry takes the place of what it retries, and nobody else's."""

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest
from core.governed import Governed

import boundedgen as b
from boundedgen import Bounds, FinishReason, Generation, InvalidRequest, Limits, Saturated
from boundedgen._core import _events as ev
from boundedgen._core._names import Names
from boundedgen._core._sequences import Submission
from boundedgen.testing import SimModel, Simulation


def lane(**limits: int) -> Simulation:
    """One at a time, about 2 s each."""
    simulation = Simulation(model=SimModel(step_s=0.1), limits=Limits(running_max=1, **limits))
    simulation.pipeline.wait_ready()
    return simulation


def again(simulation: Simulation, owner: str = "me", label: str = "job", **arguments: Any) -> Generation:
    return simulation.pipeline.submit([5], max_new_tokens=20, owner=owner, label=label, supersede=True, **arguments)


def other(simulation: Simulation, owner: str = "") -> Generation:
    return simulation.pipeline.submit([5], max_new_tokens=20, owner=owner)


def made_way(first: Generation, second: Generation) -> None:
    with pytest.raises(b.GenerationCancelled, match=f"superseded by generation {second.id}$") as caught:
        first.result()
    assert not caught.value.retryable


# --- what becomes of both --------------------------------------------------------------------------------------------


def test_one_that_waits_makes_way_at_once_and_its_place_is_kept() -> None:
    with lane() as simulation:
        inside, first, behind = other(simulation), again(simulation), other(simulation, "me")
        simulation.advance(0.5)
        second = again(simulation)
        made_way(first, second)
        assert first.partial.total_s == pytest.approx(0.5)
        assert second.result().finish_reason is FinishReason.LENGTH
        assert inside.finish_reason
        assert not behind.finish_reason, "it came after the first"


def test_one_that_runs_is_stopped_and_the_next_one_has_its_slot_when_it_is_proved_free() -> None:
    with lane() as simulation:
        first, behind = again(simulation), other(simulation, "me")
        simulation.advance(1.0)
        assert first.phase == "running"
        second = again(simulation)
        made_way(first, second)
        assert first.partial.token_ids
        assert first.wait_reclaimed(5).proof == "perf_metrics"
        assert second.result().total_s < 3.0
        assert not behind.finish_reason


def test_it_waits_for_no_release_where_there_is_room() -> None:
    with Simulation(model=SimModel(step_s=0.1, running_max=2)) as simulation:
        first = again(simulation)
        simulation.advance(1.02)
        assert first.phase == "running"
        second = again(simulation)
        simulation.advance(0)
        assert second.phase == "running"
        assert simulation.pipeline.stats().stopping == 1


def test_its_deadline_is_its_own() -> None:
    with lane() as simulation:
        held = [other(simulation), again(simulation, bounds=Bounds(total=4))]
        simulation.advance(3.0)
        second = again(simulation, bounds=Bounds(total=6))
        assert second.remaining_s == 6.0
        assert second.result().finish_reason is FinishReason.LENGTH
        made_way(held[1], second)


def test_without_one_it_is_an_ordinary_submission() -> None:
    with lane() as simulation:
        first = again(simulation)
        assert first.result().finish_reason is FinishReason.LENGTH
        second = again(simulation)
        assert second.result().finish_reason is FinishReason.LENGTH
        assert first.finish_reason is FinishReason.LENGTH


def test_nobody_makes_way_for_another_owner_or_another_label() -> None:
    with lane() as simulation:
        ours = [again(simulation), again(simulation, "you"), again(simulation, "me", "other"), again(simulation, "")]
        lease = simulation.pipeline.lease("them", ttl=60)
        leased = simulation.pipeline.submit([5], max_new_tokens=20, label="job", lease=lease)
        simulation.advance(0.5)
        assert not any(g.finish_reason for g in (*ours, leased))
        retry = simulation.pipeline.submit([5], max_new_tokens=20, label="job", lease=lease, supersede=True)
        made_way(leased, retry)
        assert not any(g.finish_reason for g in ours)


def test_of_several_of_a_label_the_newest_makes_way() -> None:
    with lane() as simulation:
        submit = simulation.pipeline.submit
        older, newer = (submit([5], max_new_tokens=20, owner="me", label="job") for _ in range(2))
        second = again(simulation)
        made_way(newer, second)
        assert not older.finish_reason


def test_of_two_that_supersede_the_same_one_one_is_superseded_by_the_other() -> None:
    with lane(waiting_max=2) as simulation:
        inside, first = other(simulation), again(simulation)
        simulation.advance(0.1)
        second, third = again(simulation), again(simulation)
        made_way(first, second)
        made_way(second, third)
        assert third.result().finish_reason is FinishReason.LENGTH
        assert inside.finish_reason


# --- at the door -----------------------------------------------------------------------------------------------------


def test_where_the_queue_is_full_it_has_the_place_of_the_one_that_waits() -> None:
    with lane(waiting_max=2) as simulation:
        held = [other(simulation)]
        simulation.advance(0.1)
        held += [again(simulation), other(simulation)]
        for _ in range(10):
            held.append(again(simulation))
            with pytest.raises(Saturated):
                other(simulation)
            if len(held) % 2:
                simulation.advance(0.01)
                assert simulation.pipeline.stats().waiting == 2
        with pytest.raises(Saturated):
            again(simulation, "you")
        assert held[-1].result().finish_reason is FinishReason.LENGTH


def test_where_the_queue_is_full_it_waits_beside_it_for_the_one_that_runs() -> None:
    with lane(waiting_max=2) as simulation:
        held = [again(simulation)]
        simulation.advance(0.1)
        held += [other(simulation), other(simulation)]
        held.append(again(simulation))
        made_way(held[0], held[3])
        assert simulation.pipeline.stats().waiting <= 3
        assert held[3].result().finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("runs", [False, True])
def test_it_has_the_shares_of_its_owner_and_its_lease(runs: bool) -> None:
    with lane(owner_max=2) as simulation:
        lease = simulation.pipeline.lease("me", ttl=600, max_sequences=1)
        held = [] if runs else [other(simulation)]
        simulation.advance(0.1)
        held.append(again(simulation, owner="", lease=lease))
        held.append(again(simulation, label="second"))
        simulation.advance(0.1)
        for refused in ("third", "fourth"):
            with pytest.raises(Saturated):
                again(simulation, label=refused)
        for _ in range(5):
            held.append(again(simulation, owner="", lease=lease))
            simulation.advance(0.01)
        assert held[-1].result().finish_reason is FinishReason.LENGTH
        last = again(simulation, owner="", lease=lease)
        assert last.result().finish_reason is FinishReason.LENGTH


def everything_is_back(simulation: Simulation) -> bool:
    door = simulation.pipeline._serving._admitting._door
    limits = simulation.pipeline._limits
    owners = [len(shares) for shares in door._owners.values()]
    return len(door._places) == limits.waiting_max and len(door._spare) == 64 and set(owners) <= {limits.owner_max}


def test_in_the_end_every_place_is_back_and_nothing_is_remembered() -> None:
    with lane(waiting_max=5, owner_max=3) as simulation:
        kept: list[Generation] = []
        for n in range(200):
            try:
                kept.append(again(simulation, owner=f"o{n % 2}", label=f"l{n % 3}"))
            except Saturated:
                kept.append(again(simulation, owner="o0", label="l0")) if n % 5 == 0 and kept else None
            simulation.advance(0.0 if n % 2 else 0.3)
        simulation.run_until(lambda: all(g.finish_reason for g in kept))
        simulation.advance(1)
        assert everything_is_back(simulation)
        assert not simulation.pipeline._driver.governor.names
        assert {g.finish_reason for g in kept} == {FinishReason.CANCELLED, FinishReason.LENGTH}
        kept.clear()
        gc.collect()
        assert not len(simulation.pipeline._serving._admitting._named)


def test_one_that_is_refused_for_its_prompt_takes_nothing_from_the_first() -> None:
    with lane(waiting_max=1) as simulation:
        held = [other(simulation)]
        simulation.advance(0.1)
        held.append(again(simulation))
        simulation.advance(0.1)
        with pytest.raises(InvalidRequest):
            simulation.pipeline.submit([-1], owner="me", label="job", supersede=True)
        with pytest.raises(b.NeverFits):
            simulation.pipeline.submit([5] * 5000, owner="me", label="job", supersede=True)
        assert held[1].result().finish_reason is FinishReason.LENGTH
        assert everything_is_back(simulation)


def test_where_the_queue_is_full_a_third_try_has_the_place_that_the_second_waits_in_beside_it() -> None:
    with lane(waiting_max=1) as simulation:
        held = [again(simulation)]
        simulation.advance(0.1)
        held.append(other(simulation))
        held += [again(simulation) for _ in range(100)]
        simulation.advance(0)
        assert simulation.pipeline.stats().waiting == 2
        assert held[-1].result().finish_reason is FinishReason.LENGTH
        assert held[1].result().finish_reason is FinishReason.LENGTH
        assert everything_is_back(simulation)


def test_one_that_lacks_a_place_of_its_lease_takes_nothing_from_the_first() -> None:
    with lane(waiting_max=3, owner_max=3) as simulation:
        lease = simulation.pipeline.lease("me", ttl=600, max_sequences=1)
        held = [simulation.pipeline.submit([5], max_new_tokens=20, lease=lease)]
        simulation.advance(0.1)
        held += [again(simulation, label="a"), again(simulation, label="b"), other(simulation, "you")]
        for _ in range(3):
            for label in "ab":
                with pytest.raises(Saturated, match="the lease has all the sequences"):
                    again(simulation, owner="", lease=lease, label=label)
            with pytest.raises(Saturated):
                other(simulation, "you")
            with pytest.raises(Saturated):
                other(simulation, "me")
            simulation.advance(0)
            assert simulation.pipeline.stats().waiting == 3
        for generation in held:
            assert generation.result().finish_reason is FinishReason.LENGTH
        assert everything_is_back(simulation)


def test_one_that_runs_keeps_its_share_if_there_is_no_place_for_what_would_supersede_it() -> None:
    with lane(waiting_max=1, owner_max=1) as simulation:
        first = again(simulation)
        simulation.advance(0.1)
        held = [other(simulation)]
        simulation.pipeline._serving._admitting._door._spare.clear()
        with pytest.raises(Saturated, match="waiting_max"):
            again(simulation)
        held[0].cancel()
        simulation.advance(0)
        with pytest.raises(Saturated, match="owner_max"):
            again(simulation, label="another")
        assert first.result().finish_reason is FinishReason.LENGTH
        assert again(simulation, label="another").result().finish_reason is FinishReason.LENGTH


# --- its form --------------------------------------------------------------------------------------------------------


def test_it_needs_a_label() -> None:
    with lane() as simulation, pytest.raises(InvalidRequest, match=r"supersede .* label"):
        simulation.pipeline.submit([5], supersede=True)


def test_several_prompts_cannot_replace_each_other() -> None:
    with lane() as simulation:
        for prompts in ([[5], [6]], [[5]]):
            with pytest.raises(InvalidRequest, match="supersede is for a single generation"):
                simulation.pipeline.generate_many(prompts, label="job", supersede=True)
            with pytest.raises(InvalidRequest, match="supersede is for a single generation"):
                simulation.run(simulation.pipeline.agenerate_many(prompts, label="job", supersede=True))
        assert simulation.pipeline.generate_many([[5]], supersede=False, max_new_tokens=2)


def test_every_way_to_submit_takes_it() -> None:
    async def ways(simulation: Simulation) -> list[Generation]:
        pipeline, arguments = simulation.pipeline, {"owner": "me", "label": "job", "supersede": True}
        first = await pipeline.asubmit([5], max_new_tokens=20, **arguments)
        second = asyncio.ensure_future(pipeline.agenerate([5], max_new_tokens=20, **arguments))
        await asyncio.sleep(0.5)
        third = await pipeline.asubmit([5], max_new_tokens=20, **arguments)
        with pytest.raises(b.GenerationCancelled):
            await second
        await third
        return [first, third]

    with lane() as simulation:
        first, third = simulation.run(ways(simulation))
        assert (first.finish_reason, third.finish_reason) == (FinishReason.CANCELLED, FinishReason.LENGTH)
        held = again(simulation)
        arguments: Any = {"owner": "me", "label": "job", "supersede": True}
        assert simulation.pipeline.generate([5], max_new_tokens=5, **arguments).completion_tokens == 5
        assert held.finish_reason is FinishReason.CANCELLED


# --- in the core -----------------------------------------------------------------------------------------------------


def named(g: Governed, **fields: Any) -> int:
    return g.submit(**{"owner": "me", "label": "job", "supersede": True, **fields})


@pytest.mark.parametrize("how", ["closing", "lease", "too large"])
def test_one_that_is_not_accepted_supersedes_nobody(how: str) -> None:
    g = Governed()
    first = named(g)
    if how == "closing":
        g.governor.close(5.0, g.now)
    second = named(g, lease="gone" if how == "lease" else None, new=1000 if how == "too large" else 4)
    assert g.reason(second) in ("shutdown", "lease", "rejected")
    assert g.reason(first) is None


def test_one_whose_grammar_is_being_checked_supersedes_at_once_and_has_the_place_once_it_is() -> None:
    g = Governed()
    g.running(), g.running()
    first, behind = named(g), g.submit(owner="me")
    second = named(g, cleared=False)
    assert g.reason(first) == "cancelled"
    g.governor.clear(second, g.now)
    g.governor.cancel(1, g.now)
    g.tick()
    g.step(released=(ev.Release(g.stay_of(1), 1, 0.01, 0),))
    assert g.admitted()[-1] == second
    assert g.reason(behind) is None


def test_a_probe_makes_way_for_nobody() -> None:
    g = Governed()
    probe = g.submit(probe=True, new=1, label="probe")
    named(g, owner="", label="probe")
    assert g.reason(probe) is None


def test_the_class_of_the_first_goes_on_to_age() -> None:
    g = Governed()
    named(g, tick=False)
    since = g.governor.queue._classes[0].since
    g.now += 5.0
    g.governor.submit(g.submission(owner="me", label="job", supersede=True), g.now)
    assert g.governor.queue._classes[0].since == since


def test_an_index_of_100_000_names_leaves_no_memory() -> None:
    gc.collect()
    names = Names()
    them = [Submission(n, 1, 1, owner=f"o{n % 100}", label=f"l{n}", supersede=True) for n in range(100_000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for each in them:
        assert names.newest(each) is None
        names.add(each)
    assert names.newest(them[7]) == 7
    for each in them:
        names.remove(each)
        names.remove(each)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert not names
    assert after - before < 1 << 18, "free lists of the interpreter"
