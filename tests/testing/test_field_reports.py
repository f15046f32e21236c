"""Field reports on the simulated engine, in simulated time; the report's number is in the test's name."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tenacity
from attrs import evolve
from core.hand_engine import HandEngine, lane
from counts import happened

import boundedgen as b
from boundedgen._core import _events as ev
from boundedgen.abc import Request
from boundedgen.testing import Fault, SimEngine, SimModel, Simulation

LIMITS = b.Limits(
    boot=10, first_step=0, new_shape=0, step=2, step_per_token=0, step_per_attention=0, progress=5, ack=3, reclaim=2
)


def settled(generation: b.Generation) -> b.FinishReason | None:
    """Its end, whatever it is."""
    with contextlib.suppress(b.BoundedGenError):
        generation.result()
    return generation.finish_reason


# --- what the engine holds, and what it does not ---------------------------------------------------------------------


def test_field_report_5_what_is_freed_far_too_late_costs_the_engine_its_life_and_its_late_word_changes_nothing() -> (
    None
):
    with Simulation(limits=LIMITS) as sim:
        held, other = (sim.pipeline.submit("hello", max_new_tokens=500) for _ in range(2))
        sim.advance(0.1)
        (stay,) = (row.id for row in sim.pipeline._driver.governor.stays.values() if row.sequence == held.id)
        sim.inject(Fault(kind="late_free", steps=1000), on=held)
        began = sim.now
        held.cancel()
        assert settled(held) is b.FinishReason.CANCELLED
        assert sim.now == began, "who cancels waits for nobody"
        assert held.wait_reclaimed().proof == "died"
        assert sim.now - began < (LIMITS.reclaim_steps + 2) * 0.022 + 0.1
        assert settled(other) is b.FinishReason.ENGINE_LOST
        sim.run_until(lambda: sim.pipeline.health().ready)
        third = sim.pipeline.submit("hello", max_new_tokens=50)
        sim.advance(0.1)
        late = ev.Progress(1, 1100, sim.now, sim.now, 1, 0.5, (stay,), released=(ev.Release(stay, 1001, 20.0, 0),))
        sim.engine._say(sim.now, late)
        assert third.result().completion_tokens == 50
        stats = sim.pipeline.stats()
        assert (happened(stats.kills_total), stats.restarts_total) == ({"reclaim": 1}, 1)
        assert (stats.ghosts_total, stats.forgotten_total) == (0, 0)


def test_field_report_5_what_is_freed_late_and_within_the_bound_costs_nothing() -> None:
    with Simulation(limits=LIMITS) as sim:
        held = sim.pipeline.submit("hello", max_new_tokens=500)
        sim.advance(0.1)
        sim.inject(Fault(kind="late_free", steps=LIMITS.reclaim_steps - 1), on=held)
        held.cancel()
        reclaimed = held.wait_reclaimed()
        assert (reclaimed.proof, reclaimed.steps) == ("perf_metrics", LIMITS.reclaim_steps)
        assert happened(sim.pipeline.stats().kills_total) == {}


def test_field_report_17_what_one_of_both_tables_does_not_know_is_ended_or_stopped_and_counted() -> None:
    """The tables are compared every 64 steps; a step takes 23 ms here."""
    with Simulation(limits=LIMITS) as sim:
        forgotten, ghost, other = (sim.pipeline.submit("hello", max_new_tokens=n) for n in (500, 20, 300))
        sim.advance(0)
        sim.inject(Fault(kind="forgotten"), on=forgotten)
        sim.inject(Fault(kind="ghost"), on=ghost)
        began = sim.now
        with pytest.raises(b.EngineLost, match="no longer knows it"):
            forgotten.result()
        assert sim.now - began < 65 * 0.03
        assert settled(ghost) is b.FinishReason.LENGTH
        sim.run_until(lambda: len(sim.engine.held()) == 1, within=2 * 65 * 0.03)
        assert other.result().completion_tokens == 300
        stats = sim.pipeline.stats()
        assert (stats.ghosts_total, stats.forgotten_total, stats.restarts_total) == (1, 1, 0)
        assert (stats.blocks_reserved, stats.running, stats.stopping) == (0, 0, 0)


@pytest.mark.parametrize("why", ["stop", "length"])
def test_field_report_62_an_answer_without_a_single_token_is_the_engines_error_and_no_answer(why: str) -> None:
    """Whatever the engine says: the token that ends an answer is among its tokens, and so are stop strings."""
    with lane(HandEngine()) as (pipeline, engine):
        generation = pipeline.submit("x", max_new_tokens=8)
        engine.finish(why)
        with pytest.raises(b.EngineLost, match="without a token") as caught:
            generation.result(20)
        assert caught.value.retryable
        assert happened(pipeline.stats().finished_total) == {"engine_lost": 1}


@pytest.mark.parametrize(("policy", "computed_twice"), [("reserve", False), ("engine", True)])
def test_field_report_61_above_the_mark_the_engine_computes_much_of_it_twice(policy: str, computed_twice: bool) -> None:
    with crowd(policy) as (sim, generations):
        assert {settled(generation) for generation in generations} == {b.FinishReason.LENGTH}
        assert (sim.engine.preempted > 0) is computed_twice


def test_field_report_61_where_tokens_cost_time_all_are_done_sooner_below_the_mark() -> None:
    took = {}
    for policy in ("reserve", "engine"):
        with crowd(policy) as (sim, generations):
            began = sim.now
            for generation in generations:
                generation.result()
            took[policy] = sim.now - began
    print(f"\n{took}")
    assert took["reserve"] <= took["engine"]


@contextlib.contextmanager
def crowd(policy: str) -> Iterator[tuple[Simulation, list[b.Generation]]]:
    """30 of 60 + 100 tokens, in 10 blocks."""
    model = SimModel(pools=(ev.PoolFacts("kv", 11, 32),), running_max=30, step_s=0.002, token_s=0.001)
    with Simulation(model=model, limits=LIMITS, admission=b.Admission(policy=policy, margin=None)) as sim:
        yield sim, [sim.pipeline.submit([5 + n] * 60, max_new_tokens=100) for n in range(30)]


# --- stats -----------------------------------------------------------------------------------------------------------


def conserved(pipeline: b.BoundedPipeline) -> None:
    stats = pipeline.stats()
    assert stats.submitted_total == sum(stats.finished_total.values()) + stats.waiting + stats.running
    assert min(stats.waiting, stats.running, stats.stopping, stats.blocks_reserved or 0, stats.blocks_free or 0) >= 0


Act = Callable[[Simulation], object]  #: returns what must not be dropped, for dropping a handle cancels


def submitted(tokens: int = 500, **settings: Any) -> Act:
    return lambda sim: sim.pipeline.submit("hello", max_new_tokens=tokens, **settings)


def cancelled(sim: Simulation) -> object:
    generation = submitted()(sim)
    assert isinstance(generation, b.Generation)
    generation.cancel()
    return generation


def left_unread(sim: Simulation) -> object:
    stream = iter(sim.pipeline.submit("hello", max_new_tokens=500))
    next(stream)
    return stream


def closed(sim: Simulation) -> object:
    generation = submitted()(sim)
    sim.advance(0.1)
    sim.close()
    return generation


Faults = dict[int, list[Fault]]
CRASH = Fault(kind="crash", at_step=2)
ENDS: dict[b.FinishReason, tuple[Act, Faults]] = {
    b.FinishReason.STOP: (submitted(50), {}),
    b.FinishReason.LENGTH: (submitted(5), {}),
    b.FinishReason.REJECTED: (submitted(), {1: [Fault(kind="refuse")]}),
    b.FinishReason.CANCELLED: (cancelled, {}),
    b.FinishReason.DEADLINE: (submitted(bounds=b.Bounds(total=0.1)), {}),
    b.FinishReason.LEASE: (lambda sim: submitted(lease=sim.pipeline.lease("me", ttl=0.1))(sim), {}),
    b.FinishReason.ENGINE_LOST: (submitted(do_sample=True, presence_penalty=1.0), {1: [CRASH]}),
    b.FinishReason.QUARANTINED: (submitted(), {1: [CRASH], 2: [CRASH]}),
    b.FinishReason.CACHE_EXHAUSTED: (submitted(), {1: [Fault(kind="ignore")]}),
    b.FinishReason.SLOW_READER: (left_unread, {}),
    b.FinishReason.SHUTDOWN: (closed, {}),
}


@pytest.fixture
def sink_that_raises() -> Iterator[list[str]]:
    """What a server makes of the log, which is all that a lane tells by itself."""
    told: list[str] = []

    class Sink(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            raise ZeroDivisionError("a sink of metrics")

    logger, sink = logging.getLogger("boundedgen"), Sink()
    level = logger.level
    logger.addHandler(sink)
    logger.setLevel(logging.DEBUG)
    try:
        yield told
    finally:
        logger.removeHandler(sink)
        logger.setLevel(level)


@pytest.mark.parametrize("reason", ENDS)
def test_field_report_78_at_every_event_the_counts_add_up_whatever_the_end_and_whatever_a_sink_does(
    reason: b.FinishReason, sink_that_raises: list[str]
) -> None:
    act, faults = ENDS[reason]
    model = SimModel(natural_length=lambda _: 20 if reason is b.FinishReason.STOP else None)
    restart = b.RestartPolicy(wait=tenacity.wait_none(), resume="continue")
    limits = evolve(LIMITS, unread=2, lease_grace=0)
    with Simulation(model=model, limits=limits, faults=faults, restart=restart) as sim:
        sim.watch(lambda: conserved(sim.pipeline))
        ended = act(sim)
        sim.advance(5)
        stats = sim.pipeline.stats()
        assert happened(stats.finished_total) == {reason.value: 1}
        assert (stats.submitted_total, stats.running, stats.waiting, stats.stopping) == (1, 0, 0, 0)
        if reason is not b.FinishReason.SHUTDOWN:
            assert sim.pipeline.generate([7], max_new_tokens=5).completion_tokens == 5
        del ended
    assert sink_that_raises


# --- an engine that hangs, and clients that come again at once -------------------------------------------------------


class Crowd:
    """50 clients with a patience of 1 s, who come again at once, whatever they were told, for as long as it takes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.served: list[float] = []
        self.refused_in: list[float] = []  # real seconds

    async def come(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(50):
                clients.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        while True:
            if await self._attempt(number):
                return
            await asyncio.sleep(0.02)  # a new connection

    async def _attempt(self, number: int) -> bool:
        began = time.perf_counter()
        try:
            generation = self._sim.pipeline.submit([5 + number], max_new_tokens=3, bounds=b.Bounds(total=1.0))
        except (b.Saturated, b.EngineUnavailable):
            self.refused_in.append(time.perf_counter() - began)
            return False
        with contextlib.suppress(b.DeadlineExceeded, b.EngineLost):
            await generation
            self.served.append(self._sim.now)
        return generation.finish_reason is b.FinishReason.LENGTH


def test_field_report_79_retries_at_a_hung_engine_fill_no_queue_and_cost_it_nothing_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four engines in a row hang, for more than 20 s in all."""
    too_old: list[float] = []
    admit = SimEngine.admit

    def admitting(self: SimEngine, request: Request, at: float) -> None:
        if request.deadline <= at:
            too_old.append(at - request.deadline)
        admit(self, request, at)

    monkeypatch.setattr(SimEngine, "admit", admitting)
    faults = {n: [Fault(kind="wedge", at_step=2)] for n in (1, 2, 3, 4)}
    limits = evolve(LIMITS, waiting_max=8, running_max=4)
    with Simulation(model=SimModel(step_s=0.1, token_s=0), limits=limits, faults=faults) as sim:
        crowd, began, most = Crowd(sim), sim.now, [0]
        ready_at: list[float] = []

        def look() -> None:
            stats = sim.pipeline.stats()
            most[0] = max(most[0], stats.waiting)
            if len(ready_at) < stats.incarnation and sim.pipeline.health().ready:
                ready_at.append(sim.now)

        sim.watch(look)
        sim.run(crowd.come())
        assert len(crowd.served) == 50
        assert ready_at[-1] - began > 20
        assert crowd.served[0] - ready_at[-1] < 2
    assert len(ready_at) == 5
    assert most[0] == 8
    assert not too_old
    assert len(crowd.refused_in) > 1000
    assert sorted(crowd.refused_in)[len(crowd.refused_in) // 2] < 0.01
