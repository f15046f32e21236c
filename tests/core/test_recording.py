"""What the governor was told can be told again, bit for bit."""

import contextlib
import random
from collections import deque
from enum import Enum
from types import NoneType
from typing import Any

import pytest
import tenacity
from attrs import fields, has
from core.hand_engine import A, HandEngine, lane, until

import boundedgen as b
from boundedgen import _asking
from boundedgen._core import _recording as recording
from boundedgen._core._events import Effect
from boundedgen._core._governor import Governor
from boundedgen._core._recording import INPUTS, Record, Recorded, portrait, replay

READ_ONLY = {"running", "state", "reason", "census"}


def effects_of(pipeline: b.BoundedPipeline) -> list[Effect]:
    """All that come from now on."""
    came: list[Effect] = []
    driver: Any = pipeline._driver

    carry_out = driver._carry_out

    def carry(effect: Effect, now: float) -> None:
        came.append(effect)
        carry_out(effect, now)

    driver._carry_out = carry
    return came


def recorder(pipeline: b.BoundedPipeline) -> Recorded:
    governor = pipeline._driver.governor
    assert isinstance(governor, Recorded)
    return governor


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is moved by hand, and may pass what a strategy has to answer before its thread has begun."""
    monkeypatch.setattr(_asking, "POLICY_ANSWER", 1e9)


def a_day(pipeline: b.BoundedPipeline, engine: HandEngine, seed: int) -> None:
    """Submissions, words, ends, leases, deadlines and deaths, as they come."""
    rng = random.Random(seed)
    leases = [pipeline.lease("owner", ttl=5.0)]
    for _ in range(120):
        match rng.randrange(9):
            case 0 | 1 | 2:
                lease = rng.choice([None, *(lease for lease in leases if lease.live)])
                bounds = rng.choice([None, b.Bounds(total=rng.uniform(0, 20)), b.Bounds(queued=1.0)])
                # nobody keeps it: it is cancelled sooner or later; or an outage, of skipped time, lasts too long for it
                with contextlib.suppress(b.LeaseExpired, b.EngineUnavailable):
                    pipeline.submit("x" * rng.randrange(1, 9), max_new_tokens=8, bounds=bounds, lease=lease)
            case 3:
                leases.append(pipeline.lease("owner", ttl=rng.uniform(1, 30), renew_on_read=rng.random() < 0.5))
            case 4:
                for lease in leases:
                    if lease.live and rng.random() < 0.5:
                        with contextlib.suppress(b.LeaseExpired):
                            lease.renew()
            case 5:
                engine.clock.skip(rng.uniform(0, 4))
            case 6:
                engine.link.progress()
            case 7:
                rng.choice(leases).revoke()
            case 8:
                if rng.random() < 0.3:
                    engine.die()


FOR_EVER = b.RestartPolicy(wait=tenacity.wait_none(), stop=tenacity.stop_never)


def test_every_method_that_changes_the_governor_is_written_down() -> None:
    public = {name for name in dir(Governor) if not name.startswith("_") and callable(getattr(Governor, name))}
    assert public - READ_ONLY == set(INPUTS)


@pytest.mark.parametrize("seed", range(6))
def test_a_run_is_told_again_and_ends_in_the_same_state_with_the_same_effects(seed: int) -> None:
    with lane(restart=FOR_EVER) as (pipeline, engine):
        a_day(pipeline, engine, seed)
        running = pipeline.submit("x", max_new_tokens=5)
        until(lambda: pipeline.health().ready or running.finish_reason)
        pipeline.close()
        governor = recorder(pipeline)
        record = governor.record()
        again, effects = replay(record)
        assert portrait(again) == portrait(governor)
        assert portrait(replay(record)) == portrait((again, effects)), "and as often as one likes"
        assert len(effects) > 20
        assert {name for name, _ in record.inputs} >= {"start", "submit", "grant", "receive", "tick", "poll", "close"}


def test_the_effects_that_come_out_again_are_those_that_were_carried_out() -> None:
    with lane() as (pipeline, engine):
        came = effects_of(pipeline)
        before = sum(name == "poll" for name, _ in recorder(pipeline).record().inputs)
        for nth in range(3):
            generation = pipeline.submit("x", max_new_tokens=5)
            engine.say(A, nth=nth)  # once it was told to admit it
            generation.cancel()
        pipeline.close()
        record = recorder(pipeline).record()
        polls = [n for n, (name, _) in enumerate(record.inputs) if name == "poll"]
        _, earlier = replay(Record(record.begins, record.inputs[: polls[before - 1] + 1]))
        _, effects = replay(record)
        assert effects[len(earlier) :] == came
        assert len(came) > 8


def test_old_chapters_go_and_what_is_left_replays() -> None:
    with lane(limits=b.Limits(recorded=100, progress=1e6), restart=FOR_EVER) as (pipeline, engine):
        for seed in range(4):
            a_day(pipeline, engine, seed)
        pipeline.close()
        governor = recorder(pipeline)
        record = governor.record()
        assert 100 <= len(record.inputs) <= 800  # of thousands; a chapter ends with a wake, however much that brings
        assert record.inputs[0][0] != "start"
        assert portrait(replay(record)[0]) == portrait(governor)


def test_nothing_is_kept_if_nothing_is_to_be_kept() -> None:
    with lane(limits=b.Limits(recorded=0), restart=FOR_EVER) as (pipeline, engine):
        a_day(pipeline, engine, 1)
        assert recorder(pipeline).record().inputs == ()


def test_while_too_much_waits_the_beginning_is_lost_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LARGE", 3)
    with lane(limits=b.Limits(recorded=50, progress=1e6)) as (pipeline, engine):
        kept = [pipeline.submit("x", max_new_tokens=8) for _ in range(10)]
        until(lambda: _tell(engine, recorder(pipeline)))
        record = recorder(pipeline).record()
        assert 50 <= len(record.inputs) <= 210
        with pytest.raises(ValueError, match="lost"):
            replay(record)
        for generation in kept:
            generation.cancel()


def _tell(engine: HandEngine, governor: Recorded) -> bool:
    engine.link.progress()
    return governor.record().begins is None


def compare(one: Any, other: Any, met: dict[int, Any]) -> None:
    """Of a state and its copy: only what never changes is in both, and what is one thing here is one there."""
    if one is other:
        kind: Any = type(one)
        plain = isinstance(one, NoneType | bool | int | float | str | tuple | Enum)
        assert plain or (kind.__eq__ is not object.__eq__ and kind.__hash__ is not None), one
        return
    assert type(one) is type(other)
    assert met.setdefault(id(one), other) is other
    for mine, its in zip(inside(one), inside(other), strict=True):
        compare(mine, its, met)


def inside(thing: Any) -> list[Any]:
    if isinstance(thing, dict):
        return [*thing, *thing.values()]
    if isinstance(thing, list | tuple | deque):
        return list(thing)
    if isinstance(thing, set):
        return sorted(thing)
    return [getattr(thing, a.name) for a in fields(type(thing))] if has(type(thing)) else list(vars(thing).values())


def one_inside(pipeline: b.BoundedPipeline) -> b.Generation:
    """The next one, if this one goes with an engine of which it was not known yet that it is dead."""
    lease, governor = pipeline.lease("owner", ttl=1000.0), recorder(pipeline)
    while True:
        running = pipeline.submit("x", max_new_tokens=5, bounds=b.Bounds(next_token=30), lease=lease)
        until(lambda: running.finish_reason or running.id in {stay.sequence for stay in list(governor.stays.values())})  # noqa: B023
        if running.finish_reason is None:
            return running


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_of_the_state_has_the_same_shape_and_nothing_in_it_that_changes_is_shared(seed: int) -> None:
    with lane(restart=FOR_EVER) as (pipeline, engine):
        a_day(pipeline, engine, seed)
        running = one_inside(pipeline)
        state, _ = replay(recorder(pipeline).record())  # of which no driver makes another meanwhile
        copy = recording._photograph(state)
        assert portrait(copy) == portrait(state)
        compare(recording._state(state), vars(copy), {})
        assert running.id in copy.sequences
        assert any(stay.occupant is copy.sequences.get(stay.sequence) for stay in copy.stays.values())
