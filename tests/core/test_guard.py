"""The guard of the cache, over the simulated scheduler, with nobody before it who would hold anything back."""

import math
from collections.abc import Sequence

import pytest
from attrs import define, evolve, field, frozen
from core.test_engine_loop import FACTS, LATER, Child
from hypothesis import example, given, settings
from hypothesis import strategies as st

from boundedgen._core._admission import Capacity
from boundedgen._core._events import NO_ROOM, Claim, PoolFacts, Progress
from boundedgen._engine._guard import Guard
from boundedgen._engine._wire import Halt
from boundedgen.abc import Request
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_model import SimModel

KV = PoolFacts("kv", 13, 4)
LINEAR = PoolFacts("linear_attention", 3, None)
CACHED = PoolFacts("linear_attention", 6, 8)


def claim(urgency: float = 0.0, *, pausable: bool = True) -> Claim:
    return Claim(pausable, (urgency, 0.0, 0.0))


def asked(stay: int, prompt: int, new: int, of: Claim | None, *, sequences: int = 1) -> Request:
    config = {"max_new_tokens": new, "num_return_sequences": sequences}
    return Request(stay, tuple(stay * 100 + n for n in range(prompt)), config, math.inf, claim=of)


# --- whatever comes in -------------------------------------------------------------------------------------------


@frozen
class Job:
    at: int  #: step
    prompt: int
    new: int
    urgency: int
    pausable: bool = True
    sequences: int = 1


@define(eq=False)
class Careless:
    """Sends all that there is at once, and what comes back again and again, until everybody has ended."""

    model: SimModel
    jobs: Sequence[Job]
    shown: dict[int, list[int]] = field(factory=dict)  #: by job
    job_of: dict[int, int] = field(factory=dict)  #: by stay
    ended: dict[int, str] = field(factory=dict)
    back: set[int] = field(factory=set)  #: jobs that are to be sent
    pauses: int = 0

    def run(self) -> None:
        engine, rooms = SimEngine(1, 0.0, self.model), {p.name: p.blocks - 1 for p in self.model.pools}
        for step in range(1000):
            self.back |= {n for n, job in enumerate(self.jobs) if job.at == step}
            for n in sorted(self.back):
                self.send(engine, n, float(step))
            for report in engine.receive(step + 0.5):
                if isinstance(report, Progress):
                    self.hear(report)
            assert not engine.preempted, "the engine had to make room itself"
            for pool in self.model.pools:
                assert engine.scheduler.used(pool) <= rooms[pool.name], "the probe's block was taken"
            if len(self.ended) == len(self.jobs):
                return
        raise AssertionError("it does not come to an end")

    def send(self, engine: SimEngine, n: int, at: float) -> None:
        job, stay, shown = self.jobs[n], len(self.job_of) + 1, self.shown.setdefault(n, [])
        first = asked(n, job.prompt, job.new - len(shown), claim(job.urgency, pausable=job.pausable))
        config = {**first.config, "num_return_sequences": job.sequences}
        again = evolve(first, stay=stay, prompt=(*first.prompt, *shown), config=config, shown=len(shown))
        self.job_of[stay] = n
        self.back.discard(n)
        engine.admit(again, at)

    def hear(self, report: Progress) -> None:
        for output in report.all_outputs:
            self.shown[self.job_of[output.stay]] += output.token_ids
        for finish in report.finished:
            assert finish.why == "length", "nobody is ignored"
            self.ended[self.job_of[finish.stay]] = finish.why
        for refusal in report.refused:
            assert refusal.code == NO_ROOM
            self.back.add(self.job_of[refusal.stay])
        paused = {self.job_of[stay] for stay in report.paused}
        assert all(self.jobs[n].pausable for n in paused)
        self.back |= paused
        self.pauses += len(paused)


jobs = st.lists(
    st.builds(Job, at=st.integers(0, 20), prompt=st.integers(1, 12), new=st.integers(1, 34), urgency=st.integers(0, 3))
    | st.builds(
        Job,
        at=st.integers(0, 20),
        prompt=st.integers(1, 6),
        new=st.integers(1, 10),
        urgency=st.integers(0, 3),
        pausable=st.just(False),
        sequences=st.integers(1, 2),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    jobs=jobs,
    pools=st.sampled_from([(KV,), (KV, LINEAR), (KV, CACHED)]),
    batch=st.sampled_from([6, 64]),
    proof=st.sampled_from(["perf_metrics", "request_count"]),
    split_fuse=st.booleans(),
)
@example([Job(0, 4, 34, 1), Job(0, 4, 34, 2), Job(0, 4, 34, 3)], (KV,), 64, "request_count", True)
def test_whatever_comes_in_the_engine_never_needs_its_own_preemption_and_everybody_gets_his_own_text(
    jobs: list[Job], pools: tuple[PoolFacts, ...], batch: int, proof: str, split_fuse: bool
) -> None:
    model = SimModel(
        pools=pools,
        probe_blocks={pool.name: 1 for pool in pools},
        running_max=16,
        max_num_batched_tokens=batch if split_fuse else 64,
        split_fuse=split_fuse,
        proof=proof,
        boot_s=0.0,
        step_s=1.0,
        token_s=0.0,
    )
    capacity = Capacity.of(model.facts(), None)
    jobs = [job for job in jobs if not capacity.lacking(capacity.needs(job.prompt, job.new, job.sequences))]
    careless = Careless(model, jobs)
    careless.run()
    for n, job in enumerate(jobs):
        if job.sequences == 1:
            assert careless.shown[n] == model.text(asked(n, job.prompt, 1, None).prompt, job.new)


# --- who ---------------------------------------------------------------------------------------------------------


def guarding(blocks: int, *requests: Request, proof: str = "perf_metrics") -> Guard:
    guard = Guard(evolve(FACTS, pools=(PoolFacts("kv", blocks, 4),), proof=proof))
    for one in requests:
        guard.enter(one)
    return guard


def test_the_least_urgent_are_paused_and_no_more_of_them_than_needed() -> None:
    guard = guarding(4, *(asked(n, 7, 30, claim(urgency)) for n, urgency in ((1, 2.0), (2, 0.0), (3, 1.0))))
    assert guard.to_pause() == [2]


def test_what_is_least_urgent_but_cannot_be_continued_stays() -> None:
    guard = guarding(6, asked(1, 7, 9, claim(0.0, pausable=False)), asked(2, 7, 30, claim(1.0)))
    assert guard.to_pause() == []
    guard.shown(2, 1)
    assert guard.to_pause() == [2]


def test_nobody_is_paused_while_all_fit_two_steps_from_now() -> None:
    guard = guarding(4, asked(1, 5, 30, claim(0.0)), asked(2, 5, 30, claim(1.0)))
    for _ in range(3):
        assert guard.to_pause() == []
        guard.shown(1, 1)
        guard.shown(2, 1)
    assert guard.to_pause() == [1], "after the next two steps each would have computed 9 tokens"


def test_nobody_else_is_paused_for_one_that_is_leaving() -> None:
    for proof in ("perf_metrics", "request_count"):
        guard = guarding(4, asked(1, 7, 30, claim(0.0)), asked(2, 7, 30, claim(1.0)), proof=proof)
        assert guard.to_pause() == []
        guard.shown(1, 1)
        guard.shown(2, 1)
        assert guard.to_pause() == [1]
        guard.leaves(1)
        assert guard.to_pause() == []
        assert not guard.room_for(asked(3, 1, 1, claim())), "it holds its blocks until the end of the next step"
        guard.stepped()
        assert guard.to_pause() == ([] if proof == "request_count" else [2]), "one that should have left, and did not"


def test_tokens_that_stop_strings_hide_are_counted_by_steps() -> None:
    hidden = asked(1, 7, 30, claim())
    guard = guarding(2, evolve(hidden, config={**hidden.config, "stop_strings": ["x"]}), asked(2, 1, 1, None))
    assert guard.to_pause() == []
    guard.stepped()
    assert guard.to_pause() == [1]


def test_blocks_that_are_set_aside_are_not_the_guards_business() -> None:
    guard = guarding(2, *(asked(n, 60, 90, None) for n in range(5)))
    assert guard.to_pause() == []
    assert guard.room_for(asked(9, 60, 90, None))


# --- in the child ------------------------------------------------------------------------------------------------


@pytest.fixture
def child() -> Child:
    """Two long ones, and room for 3 blocks of 4 tokens."""
    return Child(facts=evolve(FACTS, pools=(PoolFacts("kv", 3, 4),)))


def long(stay: int) -> Request:
    return Request(stay, [1], {"max_new_tokens": 12}, LATER, claim=claim(float(stay)))


def test_what_was_generated_before_a_pause_is_read_before_it(child: Child) -> None:
    reports = child.round(long(1), long(2), times=12)
    told = next(report for report in reports if report.paused)
    assert told.paused == (1,)
    assert 1 in told.stopping
    assert child.engine.stays[1].stopped
    ready = [
        token for report in reports for output in report.all_outputs if output.stay == 1 for token in output.token_ids
    ]
    assert ready == list(range(1, told.steps)), "of every step before"


def test_one_that_was_paused_can_be_halted_and_nothing_more_happens(child: Child) -> None:
    child.round(long(1), long(2), times=5)
    assert child.round(Halt(1))[0].stopping == ()


def test_a_newcomer_for_whom_there_is_no_room_is_turned_back_and_never_enters(child: Child) -> None:
    child.round(long(1), long(2), times=3)
    (report,) = child.round(long(3))
    assert [(r.stay, r.code) for r in report.refused] == [(3, NO_ROOM)]
    assert child.engine.added == [1, 2]
