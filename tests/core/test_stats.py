"""What stats and health say of a pipeline: ages, what an orderly close counts as, what it costs to ask, plain data."""

import copy
import json
import logging
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import attrs
import pytest
from core.governed import Governed
from core.hand_engine import A, HandEngine, lane, until
from counts import happened

import boundedgen as b
from boundedgen import Health, HealthState, Limits
from boundedgen._core import _events as ev
from boundedgen.testing import Fault, Simulation

SECRET = "the-secret-of-the-lighthouse"


# --- ages ------------------------------------------------------------------------------------------------------------


def test_the_oldest_of_each_phase_is_known_by_when_it_came_or_was_stopped() -> None:
    g = Governed()
    g.running()
    g.now += 1
    _, stopped = g.running()
    g.now += 1
    g.submit(), g.submit(priority=1)
    g.now += 1
    g.governor.cancel(2, g.now)
    g.tick(1)
    census = g.governor.census()
    assert (census.waiting, census.running, census.stopping) == (2, 1, 1)
    assert (census.running_since, census.waiting_since, census.stopping_since) == (100, 102, 103)
    g.step(released=(ev.Release(stopped, 1, 0.1, 0),))
    g.step()
    census = g.governor.census()
    assert (census.waiting, census.running, census.stopping, census.stopping_since) == (1, 2, 0, None)
    assert census.waiting_since == 102, "the one of higher priority was admitted"


def test_one_that_is_put_back_waits_again_since_it_came() -> None:
    g = Governed()
    _, stay = g.running()
    g.now += 5
    g.submit(prompt=29)
    g.step(finished=(ev.Finish(stay, "ignored"),))
    census = g.governor.census()
    assert (census.waiting, census.waiting_since, census.running_since) == (2, 100, None)


def test_a_probe_is_in_no_count_and_no_age_of_sequences() -> None:
    g = Governed(ready=False)
    g.submit(probe=True, new=1)
    assert (g.governor.census().waiting, g.governor.census().waiting_since) == (0, None)
    g.ready()
    assert (g.governor.census().running, g.governor.census().running_since) == (0, None)


def test_ages_are_those_of_the_moment_of_the_call() -> None:
    with lane(HandEngine(running_max=1)) as (pipeline, engine):
        generations = [pipeline.submit("x", max_new_tokens=4) for _ in range(2)]
        until(lambda: pipeline.stats().waiting == 1 and pipeline.stats().running == 1)
        engine.clock._ahead += 30  # nobody wakes the driver
        stats = pipeline.stats()
        assert stats.oldest_waiting_s is not None
        assert stats.oldest_running_s is not None
        assert 30 <= stats.oldest_waiting_s <= stats.oldest_running_s < 40
        assert stats.oldest_stopping_s is None
        assert stats.snapshot_age_s >= 30
        del generations


def median(ask: Callable[[], object]) -> float:
    times = []
    for _ in range(41):
        began = time.perf_counter()
        ask()
        times.append(time.perf_counter() - began)
    return sorted(times)[20]


def test_to_ask_costs_the_same_however_many_wait() -> None:
    with lane(HandEngine(running_max=1), limits=Limits(waiting_max=3000, progress=1e6, ack=1e6)) as (pipeline, _):
        few = median(pipeline.stats)
        generations = [pipeline.submit([1], max_new_tokens=4) for _ in range(3000)]
        until(lambda: pipeline.stats().waiting == 2999)
        many = median(pipeline.stats)
        assert many < 10 * few, "3000 sequences looked at one by one take a hundred times as long"
        for generation in generations[:-1]:
            generation.cancel()
        until(lambda: pipeline.stats().running + pipeline.stats().waiting == 1)
        assert median(pipeline.stats) < 10 * few


# --- steps ----------------------------------------------------------------------------------------------------------


def test_a_report_without_a_step_is_not_taken_for_one(tmp_path: Path) -> None:
    """One is refused while the engine rests, say: then the report begins nowhere, and ends where the last step did."""
    with lane(black_box=tmp_path) as (pipeline, engine):
        served = pipeline.submit("x", max_new_tokens=4)
        engine.say(A)
        engine.finish()
        served.result(20)
        before, refused = pipeline.stats(), pipeline.submit("x", max_new_tokens=4)
        refusal = ev.Refusal(engine.stay(1), "invalid", "by hand")
        until(lambda: pipeline.stats().steps_total == before.steps_total + 1)
        ended = engine.now()
        engine.link.tell(ev.Progress(1, engine.link._steps, 0.0, ended, 0, 0.7, None, refused=(refusal,)))
        with pytest.raises(b.InvalidRequest):
            refused.result(20)
        stats = pipeline.stats()
        assert stats.last_step_s == 0.0
        assert stats.cache_usage == 0.1, "as of the last step"
        engine.die()
        until(lambda: bool(list(tmp_path.glob("2*-died"))))
    lines = (next(tmp_path.glob("2*-died")) / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, stats.steps_total + 1))


# --- an orderly close ------------------------------------------------------------------------------------------------


def test_an_orderly_close_is_no_kill() -> None:
    with lane() as (pipeline, _):
        assert pipeline.stats().closes_total == 0
        pipeline.close()
        stats = pipeline.stats()
    assert happened(stats.kills_total) == {}
    assert stats.closes_total == 1


def test_a_fault_is_one_and_stays_one_after_the_close() -> None:
    with lane() as (pipeline, engine):
        engine.die()
        until(lambda: pipeline.stats().restarts_total == 1)
        pipeline.close()
        stats = pipeline.stats()
    assert happened(stats.kills_total) == {"died": 1}
    assert stats.closes_total == 1


def test_kills_are_told_by_every_cause_that_is_a_fault() -> None:
    with lane() as (pipeline, _):
        assert set(pipeline.stats().kills_total) == {cause.value for cause in ev.Cause} - {"close", "recycle"}


# --- a value like any other ------------------------------------------------------------------------------------------


@pytest.fixture
def answers() -> Iterator[list[b.SchedulerStats]]:
    """With and without anything inside, and before there was anything."""
    engine = HandEngine(running_max=1)
    engine.boots = False
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock)
    try:
        found = [pipeline.stats()]
    finally:
        pipeline.close()
    with lane(HandEngine(running_max=1)) as (pipeline, _):
        found.append(pipeline.stats())
        generations = [pipeline.submit("x", max_new_tokens=4) for _ in range(2)]
        until(lambda: pipeline.stats().waiting == 1)
        generations[1].cancel()
        until(lambda: pipeline.stats().finished_total["cancelled"] == 1)
        yield [*found, pipeline.stats(), pipeline.stats(sequences=True)]


def and_within(answers: list[b.SchedulerStats]) -> list[Any]:
    return [one for answer in answers for one in (answer, answer.reclaim, answer.times, answer.times.queued)]


def fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(fits(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(fits(one, get_args(kind)[0]) for one in value)
    if get_origin(kind) is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
        return all(fits(one, part) for pair in pairs for one, part in zip(pair, get_args(kind), strict=True))
    return value is None if kind is NoneType else type(value) is kind


def test_stats_are_what_their_constructor_would_have_made(answers: list[b.SchedulerStats]) -> None:
    for made in and_within(answers):
        fields = attrs.fields(type(made))
        assert not isinstance(made, b.SchedulerStats) or sorted(vars(made)) == sorted(field.name for field in fields)
        assert [f.name for f in fields if not fits(getattr(made, f.name), f.type)] == []
        constructed: Any = type(made)(**{field.name: getattr(made, field.name) for field in fields})
        assert constructed == made
        assert repr(constructed) == repr(made)
        assert attrs.asdict(constructed) == attrs.asdict(made)


def test_stats_can_be_compared_copied_and_pickled_and_not_be_changed_or_hashed(answers: list[b.SchedulerStats]) -> None:
    for made in and_within(answers):
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == attrs.evolve(made) == made
        name = attrs.fields(type(made))[0].name
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(made, name, 1)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(made, name)
        with pytest.raises(TypeError, match="unhashable"):
            hash(made)
    assert attrs.evolve(answers[1], waiting=7) != answers[1]


def test_no_answer_has_anything_in_common_with_another_that_could_be_changed() -> None:
    with lane() as (pipeline, _):
        first = pipeline.stats()
        for counts in vars(first).values():
            if isinstance(counts, dict):
                counts.clear()
        again = pipeline.stats()
    assert len(again.finished_total) == len(b.FinishReason)
    assert all((again.rejected_total, again.deadlines_total, again.leases_total, again.kills_total))


def test_what_all_answers_share_cannot_be_changed() -> None:
    with lane() as (pipeline, _):
        buckets: Any = pipeline.stats().times.queued.buckets_s
    with pytest.raises(TypeError):
        buckets[0.1] = 7
    with pytest.raises(AttributeError):
        buckets.clear()
    with pytest.raises(AttributeError):
        buckets.own = 7


def test_what_is_told_of_a_snapshot_is_found_out_once_and_not_kept_for_another() -> None:
    with lane(HandEngine(running_max=1)) as (pipeline, _):
        pipeline.stats()
        snapshot = pipeline._driver.snapshot
        shown = snapshot.shown
        pipeline.stats()
        assert shown is snapshot.shown is not None
        assert attrs.evolve(snapshot, leases=3).shown is None


# --- plain data ------------------------------------------------------------------------------------------------------


def as_json(data: dict[str, Any]) -> Any:
    """Strict: no NaN, no infinity, and nothing that comes back otherwise."""
    back = json.loads(json.dumps(data, allow_nan=False))
    assert back == data
    return back


def test_stats_are_plain_data() -> None:
    with lane(HandEngine(running_max=1)) as (pipeline, _):
        lease = pipeline.lease("me", ttl=30)
        generations = [pipeline.submit(SECRET, max_new_tokens=4, lease=lease, label="mine") for _ in range(2)]
        until(lambda: (pipeline.stats().running, pipeline.stats().waiting) == (1, 1))
        data = as_json(pipeline.stats(sequences=True).to_dict())
        assert [row["phase"] for row in data["sequences"]] == ["running", "waiting"]
        assert data["sequences"][0]["blocks"].keys() == {"kv"}
        assert data["pools"][0]["blocks_free"] == data["blocks_free"] < data["blocks_total"]
        for told in (data["reclaim"], *data["times"].values()):
            assert [*told["buckets_s"]][::23] == ["0.001", "inf"]
            assert told["buckets_s"]["inf"] == told["count_total"]
        assert data["times"].keys() == {"queued", "first_token", "next_token", "total", "step"}
        assert data["times"]["queued"]["count_total"] == 1
        assert data["finished_total"]["stop"] == 0
        assert as_json(pipeline.stats().to_dict())["sequences"] is None
        assert set(data) == {field.name for field in b.SchedulerStats.__attrs_attrs__}
        del generations


def test_stats_are_plain_data_before_the_engine_was_ever_ready() -> None:
    engine = HandEngine()
    engine.boots = False
    pipeline = b.BoundedPipeline(None, engine=engine, clock=engine.clock)
    try:
        data = as_json(pipeline.stats(sequences=True).to_dict())
        assert (data["blocks_total"], data["pools"], data["sequences"]) == (None, [], [])
        assert as_json(pipeline.health().to_dict())["state"] == "starting"
    finally:
        pipeline.close()


def test_health_is_plain_data() -> None:
    with lane() as (pipeline, _):
        data = as_json(pipeline.health().to_dict())
    assert (data["state"], data["ready"], data["live"], data["error"], data["findings"]) == (
        "ready",
        True,
        True,
        None,
        [],
    )


def test_the_error_of_a_failed_lane_is_plain_data() -> None:
    failed = Health(
        state=HealthState.FAILED, reason="boot", since_s=1.0, incarnation=1, retry_after_s=None,
        error=b.DeviceUnavailable("no driver"),
    )  # fmt: skip
    data = as_json(failed.to_dict())
    assert (data["ready"], data["live"]) == (False, False)
    assert data["error"] == {
        "type": "DeviceUnavailable", "message": "no driver", "http_status_hint": 503,
        "grpc_status_hint": "UNAVAILABLE", "retryable": False,
    }  # fmt: skip


# --- what must not get into a log ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [(117, 118, 119)])
def test_no_repr_shows_what_was_asked_or_answered(ids: tuple[int, ...]) -> None:
    chunk = b.Chunk(text=SECRET, token_ids=ids, logprobs=(-0.125,))
    other = b.Alternative(text=SECRET, token_ids=ids, score=None)
    whole = b.Completion(
        text=SECRET, token_ids=ids, finish_reason=None, prompt_tokens=1, completion_tokens=3, queued_s=None,
        first_token_s=None, total_s=math.pi, alternatives=(other,),
    )  # fmt: skip
    error = b.EngineLost("generation 1 ended ENGINE_LOST", generation_id=1, partial=whole)
    for thing in (chunk, other, whole, error, [whole], str(error)):
        assert SECRET not in repr(thing)
        assert "117" not in repr(thing)
    assert "3.14" in repr(whole), "what is no secret is shown"


def test_neither_reprs_nor_logs_nor_stats_of_a_lane_tell_what_was_asked_or_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with lane() as (pipeline, engine):
        generation = pipeline.submit(SECRET, max_new_tokens=8)
        stream = iter(generation)
        engine.say(*(A + ord(letter) - ord("a") for letter in "lamp"))
        chunk = next(stream)
        assert chunk.text == "lamp"
        shown = [pipeline, generation, chunk, generation.partial, pipeline.stats(sequences=True), pipeline.health()]
        said = list(map(repr, shown))
        engine.die()
        with pytest.raises(b.EngineLost) as lost:
            generation.result(20)
        until(lambda: pipeline.stats().restarts_total == 1)
        said += [repr(lost.value), str(lost.value), json.dumps(pipeline.stats(sequences=True).to_dict())]
    assert caplog.records, "there is something to look at"
    for text in (*said, caplog.text):
        assert SECRET not in text
        assert "lamp" not in text


def test_what_an_engine_used_is_gone_with_it() -> None:
    """Not shown for that of the next one until that makes its first step."""
    with Simulation(faults=[Fault(kind="crash", at_step=4)]) as sim:
        generation = sim.pipeline.submit("hello", max_new_tokens=50)
        sim.run_until(lambda: sim.pipeline.stats().last_step_s is not None)
        assert sim.pipeline.stats().cache_usage
        sim.run_until(lambda: generation.finish_reason is not None)
        for _ in range(2):  # while there is no engine, and beside the next one
            stats = sim.pipeline.stats()
            assert (stats.blocks_used, stats.cache_usage, stats.last_step_s) == (None, None, None)
            sim.pipeline.wait_ready()
        assert sim.pipeline.stats().incarnation == 2
        sim.pipeline.generate("hello", max_new_tokens=2)
        assert sim.pipeline.stats().last_step_s is not None
