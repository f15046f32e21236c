"""The simulated engine behaves as the real one was measured to, and its faults are what they are called."""

import math
from collections.abc import Sequence

import pytest

from boundedgen._core._events import BootFailed, Exited, PoolFacts, Progress, Ready, Report, StepRaised, WireBroken
from boundedgen.abc import EngineHost, EngineLink, Request
from boundedgen.testing._clock import VirtualClock
from boundedgen.testing._faults import Fault, FaultKind
from boundedgen.testing._sim import SimEngine
from boundedgen.testing._sim_host import LATE_WORDS, SimHost, SimLink, SimTokenizer
from boundedgen.testing._sim_model import SimModel
from boundedgen.testing._sim_scheduler import Scheduler, WorkingStay, next_token

K = FaultKind
KV8 = (PoolFacts(name="kv", blocks=8, tokens_per_block=32),)
QUICK = SimModel(pools=KV8, probe_blocks={}, boot_s=1.0, step_s=0.01, token_s=0.0)


def request(stay: int, prompt: int = 10, new: int = 5, *, deadline: float = math.inf, sequences: int = 1) -> Request:
    config = {"max_new_tokens": new, "num_return_sequences": sequences}
    return Request(stay, tuple(range(prompt)), config, deadline)


def booted(*faults: Fault, model: SimModel = QUICK) -> SimEngine:
    engine = SimEngine(1, 0.0, model, faults)
    engine.run(1.0)
    engine.receive(1.0)
    return engine


def progress(reports: Sequence[Report]) -> list[Progress]:
    return [r for r in reports if isinstance(r, Progress)]


def tokens(reports: Sequence[Report], stay: int) -> list[int]:
    return [t for r in progress(reports) for o in r.all_outputs if o.stay == stay for t in o.token_ids]


def finishes(reports: Sequence[Report]) -> dict[int, str]:
    return {f.stay: f.why for r in progress(reports) for f in r.finished}


def releases(reports: Sequence[Report]) -> dict[int, int]:
    return {x.stay: x.steps for r in progress(reports) for x in r.released}


def working(stay: int, prompt: int, new: int = 1000, sequences: int = 1) -> WorkingStay:
    return WorkingStay(stay, tuple(range(prompt)), max_new_tokens=new, sequences=sequences)


# --- the scheduler against engine-facts ------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompt", "new", "why"), [(200, 57, "length"), (200, 58, "ignored"), (256, 1, "length")])
def test_one_sequence_finishes_exactly_if_prompt_plus_new_minus_one_fits(prompt: int, new: int, why: str) -> None:
    scheduler = Scheduler(KV8, 256)
    scheduler.add(working(1, prompt, new))
    ended = [f for _ in range(new + 10) for f in scheduler.step().finished]
    assert ended == [(1, why)]


def test_a_stopped_stay_keeps_its_blocks_until_the_end_of_the_next_step() -> None:
    scheduler = Scheduler(KV8, 256)
    scheduler.add(working(1, 40))
    scheduler.add(working(2, 40))
    scheduler.step()
    scheduler.stop(1)
    assert scheduler.blocks(1) == {"kv": 2}
    outcome = scheduler.step()
    assert outcome.removed == (1,)
    assert outcome.usage == 4 / 8
    assert scheduler.used(KV8[0]) == 2


def test_a_newcomer_beside_a_stopped_stay_that_holds_the_cache_is_ignored_with_it() -> None:
    scheduler = Scheduler(KV8, 256)
    scheduler.add(working(1, 231))
    scheduler.step()
    scheduler.stop(1)
    scheduler.add(working(2, 101))
    outcome = scheduler.step()
    assert outcome.finished == ((2, "ignored"),)
    assert set(outcome.removed) == {1, 2}


def test_with_one_settling_step_between_the_newcomer_runs() -> None:
    scheduler = Scheduler(KV8, 256)
    scheduler.add(working(1, 231))
    scheduler.step()
    scheduler.stop(1)
    scheduler.step()
    scheduler.add(working(2, 101))
    assert scheduler.step().scheduled == (2,)


def test_a_step_that_can_schedule_nothing_ignores_the_innocent_too() -> None:
    scheduler = Scheduler(KV8, 2048)
    scheduler.add(working(1, 601))
    scheduler.add(working(2, 2))
    steps = [scheduler.step() for _ in range(2)]
    assert steps[0].scheduled == (1,)
    assert dict(steps[1].finished) == {1: "ignored", 2: "ignored"}


def test_a_prompt_is_computed_in_chunks_of_the_batch_and_shows_its_first_token_with_the_last() -> None:
    scheduler = Scheduler(KV8, 64)
    scheduler.add(working(1, 150))
    assert [scheduler.step().scheduled_tokens for _ in range(4)] == [64, 64, 22, 1]


def test_blocks_are_taken_as_tokens_are_computed() -> None:
    scheduler = Scheduler(KV8, 64)
    scheduler.add(working(1, 65))
    used = []
    for _ in range(33):
        scheduler.step()
        used.append(scheduler.used(KV8[0]))
    assert used[0] == 2
    assert used[1:] == [3] * 32


def test_decode_out_of_blocks_preempts_the_latest_and_recomputes_it() -> None:
    scheduler = Scheduler(KV8, 256)
    for stay in (1, 2):
        scheduler.add(working(stay, 128, new=60))
    outcomes = [scheduler.step() for _ in range(200)]
    assert (2,) in [o.preempted for o in outcomes]
    assert [f for o in outcomes for f in o.finished] == [(1, "length"), (2, "length")]


def test_a_linear_attention_pool_of_one_block_a_sequence_makes_newcomers_wait_without_a_token() -> None:
    pools = (PoolFacts("kv", 512, 32), PoolFacts("linear_attention", 2, None))
    scheduler = Scheduler(pools, 256)
    for stay in (1, 2, 3):
        scheduler.add(working(stay, 10))
    outcome = [scheduler.step() for _ in range(100)][-1]
    assert outcome.scheduled == (1, 2)
    assert outcome.usage == 1.0
    scheduler.stop(1)
    scheduler.step()
    assert 3 in scheduler.step().scheduled


def test_if_all_that_run_stop_in_one_step_all_that_wait_are_ignored() -> None:
    pools = (PoolFacts("kv", 512, 32), PoolFacts("linear_attention", 2, None))
    scheduler = Scheduler(pools, 256)
    for stay in range(1, 7):
        scheduler.add(working(stay, 10, new=1 if stay > 2 else 1000))
    scheduler.step()
    scheduler.stop(1)
    scheduler.stop(2)
    assert [i for i, _ in scheduler.step().finished] == [3, 4, 5, 6]


def test_several_sequences_never_hold_more_than_each_of_them_alone_would() -> None:
    scheduler = Scheduler(KV8, 256)
    scheduler.add(working(1, 40, new=20, sequences=3))
    most = 0
    while len(scheduler):
        scheduler.step()
        most = max(most, scheduler.used(KV8[0]))
    assert 4 <= most <= 3 * 2


def test_the_next_token_depends_on_the_tokens_before_it_and_on_nothing_else() -> None:
    one = WorkingStay(1, (5, 6), max_new_tokens=9)
    first = [one.generate() for _ in range(6)]
    assert first[0] == next_token((5, 6), 256)
    again = WorkingStay(2, (5, 6, *first[:3]), max_new_tokens=6)
    assert [again.generate() for _ in range(3)] == first[3:]


def test_an_id_that_is_inside_already_is_refused() -> None:
    scheduler = Scheduler(KV8, 64)
    scheduler.add(working(1, 5))
    with pytest.raises(ValueError, match="stay 1"):
        scheduler.add(working(1, 5))


# --- the child's loop ------------------------------------------------------------------------------------------------


def test_it_says_ready_when_its_boot_is_over_and_not_before() -> None:
    engine = SimEngine(1, 0.0, QUICK)
    assert engine.receive(0.999) == []
    (ready,) = engine.receive(1.0)
    assert isinstance(ready, Ready)
    assert ready.facts.pools == KV8


def test_a_generation_is_reported_token_by_token_then_finished_and_released_without_a_stop() -> None:
    engine = booted()
    engine.admit(request(7, new=5), 2.0)
    reports = engine.receive(3.0)
    assert progress(reports)[0].taken == (7,)
    assert len(tokens(reports, 7)) == 5
    assert finishes(reports) == {7: "length"}
    assert releases(reports) == {7: 0}


def test_it_ends_with_eos_at_the_scripted_length() -> None:
    engine = booted(model=SimModel(pools=KV8, boot_s=1.0, natural_length=lambda prompt: 3))
    engine.admit(request(7, new=50), 2.0)
    reports = engine.receive(9.0)
    assert finishes(reports) == {7: "stop"}
    assert len(tokens(reports, 7)) == 3
    assert tokens(reports, 7)[-1] == 2


def test_a_stop_is_taken_between_steps_and_proved_at_the_end_of_the_next() -> None:
    engine = booted()
    engine.admit(request(7, new=500, prompt=10), 2.0)
    engine.receive(2.005)
    engine.stop(7, 2.005)
    reports = engine.receive(2.5)
    (said,) = [r for r in progress(reports) if r.stopping]
    assert said.released[0].steps == 1
    assert said.released[0].seconds == pytest.approx(0.01)
    assert finishes(reports) == {}


def test_one_step_more_runs_when_the_last_stay_is_gone_and_then_it_rests() -> None:
    engine = booted()
    engine.admit(request(7, new=1), 2.0)
    last = progress(engine.receive(3.0))[-1]
    assert (last.held, last.usage, last.scheduled, last.steps) == ((), 0.0, 0, 2)
    assert engine.next_event() is None


def test_it_stops_a_stay_at_its_deadline_by_itself() -> None:
    engine = booted()
    engine.admit(request(7, new=200, deadline=2.1), 2.0)
    reports = engine.receive(3.0)
    assert [r.stopping for r in progress(reports) if r.stopping] == [(7,)]
    assert releases(reports) == {7: 1}


def test_requests_of_several_sequences_show_nothing_until_they_finish() -> None:
    engine = booted()
    engine.admit(request(7, new=4, sequences=2), 2.0)
    reports = engine.receive(3.0)
    assert tokens(reports, 7) == []
    (finish,) = [f for r in progress(reports) for f in r.finished]
    assert [len(x.token_ids) for x in finish.results] == [4, 4]


def test_the_table_is_reported_every_64_steps() -> None:
    engine = booted()
    engine.admit(request(7, new=200), 2.0)
    told = [r.steps for r in progress(engine.receive(3.5)) if r.held == (7,)]
    assert told == [64, 128]


def test_commands_wait_for_the_end_of_the_step_in_flight() -> None:
    engine = booted(Fault(kind=K.SLOW, seconds=1.0))
    engine.admit(request(7), 2.0)
    engine.run(2.1)
    engine.admit(request(8), 2.1)
    taken = [(r.began, r.taken) for r in progress(engine.receive(4.0)) if r.taken]
    assert taken == [(2.0, (7,)), (pytest.approx(3.01), (8,))]


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_wedged_step_shows_in_the_pulse_and_reports_nothing() -> None:
    engine = booted(Fault(kind=K.WEDGE, at_step=3))
    engine.admit(request(7), 2.0)
    assert progress(engine.receive(500.0))[-1].steps == 2
    assert engine.pulse(500.0).in_step
    engine.kill(500.0)
    assert engine.receive(501.0) == [Exited(1, status=-9, text="")]


def test_a_crash_inside_a_step_takes_the_words_of_that_step_with_it() -> None:
    engine = booted(Fault(kind=K.CRASH, at_step=3))
    engine.admit(request(7), 2.0)
    reports = engine.receive(10.0)
    assert len(tokens(reports, 7)) == 2
    assert reports[-1] == Exited(1, status=-11, text="")


def test_a_crash_waits_for_the_stay_that_causes_it() -> None:
    engine = booted(Fault(kind=K.CRASH, stay=8))
    engine.admit(request(7), 2.0)
    assert finishes(engine.receive(3.0)) == {7: "length"}
    engine.admit(request(8), 3.0)
    assert isinstance(engine.receive(4.0)[-1], Exited)


def test_a_step_that_raises_is_reported_and_nothing_follows_but_the_kill() -> None:
    engine = booted(Fault(kind=K.RAISE, at_step=2))
    engine.admit(request(7), 2.0)
    reports = engine.receive(10.0)
    assert isinstance(reports[-1], StepRaised)
    assert engine.next_event() is None
    engine.kill(11.0)
    assert isinstance(engine.receive(12.0)[-1], Exited)


def test_a_lost_stop_is_acknowledged_and_never_released_while_the_stay_runs_on() -> None:
    engine = booted(Fault(kind=K.LOST_STOP))
    engine.admit(request(7, new=200), 2.0)
    engine.run(2.1)
    engine.stop(7, 2.1)
    reports = progress(engine.receive(2.5))
    assert [r.stopping for r in reports if r.stopping] == [(7,)]
    assert releases(reports) == {}
    assert len(tokens(reports, 7)) < 12
    assert releases(engine.receive(10.0))[7] > 100


def test_a_leaked_stay_is_stopped_and_stays_in_the_table() -> None:
    engine = booted(Fault(kind=K.LEAK))
    engine.admit(request(7, new=2), 2.0)
    reports = engine.receive(4.0)
    assert finishes(reports) == {7: "length"}
    assert releases(reports) == {}
    assert engine.held() == (7,)


def test_a_late_release_comes_the_stated_number_of_steps_later() -> None:
    engine = booted(Fault(kind=K.LATE_FREE, steps=4))
    engine.admit(request(7, new=200), 2.0)
    engine.run(2.1)
    engine.stop(7, 2.1)
    assert releases(engine.receive(3.0)) == {7: 5}


@pytest.mark.parametrize("kind", [K.STILLBORN, K.BOOT_FAILS, K.BOOT_DIES])
def test_a_failing_boot_never_becomes_ready(kind: FaultKind) -> None:
    engine = SimEngine(1, 0.0, QUICK, [Fault(kind=kind)])
    said = [type(r) for r in engine.receive(500.0)]
    assert said == {K.STILLBORN: [], K.BOOT_FAILS: [BootFailed, Exited], K.BOOT_DIES: [Exited]}[kind]


def test_without_progress_steps_return_with_nothing_scheduled_and_nothing_released() -> None:
    engine = booted(Fault(kind=K.NO_PROGRESS, at_step=3))
    engine.admit(request(7, new=200), 2.0)
    engine.run(2.1)
    engine.stop(7, 2.1)
    tail = progress(engine.receive(4.0))[5:]
    assert len(tail) > 50
    assert not any(r.scheduled or r.released for r in tail)


def test_a_deaf_engine_goes_on_stepping_and_takes_no_command() -> None:
    engine = booted(Fault(kind=K.DEAF, at_step=3))
    engine.admit(request(7, new=20), 2.0)
    engine.run(2.1)
    engine.stop(7, 2.1)
    engine.admit(request(8), 2.1)
    reports = engine.receive(9.0)
    assert finishes(reports) == {7: "length"}
    assert [r.taken for r in progress(reports) if r.taken] == [(7,)]


def test_a_lost_command_is_never_acknowledged() -> None:
    engine = booted(Fault(kind=K.LOST_COMMAND))
    engine.admit(request(7), 2.0)
    assert engine.receive(9.0) == []


def test_a_refused_admission_holds_nothing_and_is_told_at_once() -> None:
    engine = booted(Fault(kind=K.REFUSE))
    engine.admit(request(7), 2.0)
    (report,) = progress(engine.receive(2.0))
    assert [(r.stay, r.code) for r in report.refused] == [(7, "invalid")]
    assert engine.held() == ()


def test_a_ghost_stays_in_the_table_until_it_is_stopped_again() -> None:
    engine = booted(Fault(kind=K.GHOST))
    engine.admit(request(7, new=1), 2.0)
    reports = engine.receive(3.0)
    assert releases(reports) == {7: 0}
    assert progress(reports)[-1].held == (7,)
    engine.stop(7, 3.0)
    engine.receive(4.0)
    assert engine.held() == ()


def test_a_forgotten_stay_is_missing_from_the_table_and_never_mentioned_again() -> None:
    engine = booted(Fault(kind=K.FORGOTTEN, stay=7, at_step=3))
    engine.admit(request(7, new=200), 2.0)
    engine.admit(request(8, new=100), 2.0)
    reports = progress(engine.receive(4.0))
    assert len(tokens(reports, 7)) == 2
    assert [r.held for r in reports if r.steps == 64] == [(8,)]
    assert 7 not in finishes(reports) | releases(reports)


def test_garbage_is_reported_as_a_broken_wire() -> None:
    engine = booted(Fault(kind=K.GARBAGE, at_step=2))
    engine.admit(request(7), 2.0)
    assert any(isinstance(r, WireBroken) for r in engine.receive(3.0))


def test_an_unkillable_engine_never_exits() -> None:
    engine = booted(Fault(kind=K.UNKILLABLE))
    engine.kill(2.0)
    assert not any(isinstance(r, Exited) for r in engine.receive(500.0))


def test_an_ignored_stay_is_told_so_and_released() -> None:
    engine = booted(Fault(kind=K.IGNORE, at_step=2))
    engine.admit(request(7, new=200), 2.0)
    reports = engine.receive(3.0)
    assert finishes(reports) == {7: "ignored"}
    assert releases(reports) == {7: 0}


def test_each_fault_that_happened_is_on_record_and_no_other() -> None:
    engine = booted(Fault(kind=K.SLOW, seconds=1.0), Fault(kind=K.CRASH, at_step=999))
    engine.admit(request(7), 2.0)
    engine.run(9.0)
    assert engine.triggered == {K.SLOW}


# --- host and link ---------------------------------------------------------------------------------------------------


def test_host_and_link_keep_the_protocols_of_abc() -> None:
    clock = VirtualClock()
    host: EngineHost = SimHost(clock)
    link: EngineLink = host.spawn(1)
    assert isinstance(host, EngineHost)
    assert (link.incarnation, link.pid, list(link.filenos()), link.fileno_to_write()) == (1, None, [], None)


def test_a_link_serves_a_request_on_the_virtual_clock() -> None:
    clock = VirtualClock()
    link = SimHost(clock, QUICK).spawn(1)
    clock.advance(1.0)
    assert isinstance(link.receive()[0], Ready)
    link.admit(request(7, new=3))
    clock.advance(1.0)
    assert len(tokens(link.receive(), 7)) == 3
    assert link.pulse().steps_ended == 4


def test_late_words_of_a_dead_incarnation_arrive_at_the_next_one() -> None:
    clock = VirtualClock()
    host = SimHost(clock, QUICK, {1: [Fault(kind=K.LATE_WORDS, at_step=10**9)]})
    first = host.spawn(1)
    clock.advance(1.0)
    first.receive()
    first.kill()
    clock.advance(1.0)
    assert isinstance(first.receive()[-1], Exited)
    second: SimLink = host.spawn(2)
    assert [r.incarnation for r in second.receive()] == [1]
    assert second.receive() == []


def test_of_an_incarnation_that_has_said_much_only_its_latest_words_are_kept() -> None:
    clock = VirtualClock()
    link = SimHost(clock, QUICK, {1: [Fault(kind=K.LATE_WORDS, at_step=10**9)]}).spawn(1)
    said: list[Report] = []
    for stay in range(1, 2 * LATE_WORDS):
        clock.advance(1.0)
        link.admit(request(stay, new=1))
        said += link.receive()
    assert link.last_words() == said[-LATE_WORDS:]
    assert len(said) > LATE_WORDS


def test_the_simulated_tokenizer_is_lossless_for_text() -> None:
    tokenizer = SimTokenizer()
    assert tokenizer.decode(tokenizer.encode("naïve 🙂", add_special_tokens=True)) == "naïve 🙂"


def test_the_clock_moves_forward_only() -> None:
    clock = VirtualClock(5.0)
    assert clock.advance(1.5) == 6.5
    assert clock.advance_to(3.0) == 6.5
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)
