"""A simulation in threads' code: calls that wait let time pass, each to the very instant, and nobody hangs."""

import contextlib
import time

import pytest
import tenacity

import boundedgen as b
from boundedgen.testing import Fault, FaultKind, SimModel, Simulation, SimulationStalled

LIMITS = b.Limits(
    boot=10, first_step=0, new_shape=0, step=2, step_per_token=0, step_per_attention=0, progress=5, ack=3, reclaim=2
)


def test_a_generation_takes_as_long_as_its_steps() -> None:
    model = SimModel(boot_s=4, step_s=0.02, token_s=0.001)
    with Simulation(model=model) as sim:
        began = sim.now
        answer = sim.pipeline.generate("hello", max_new_tokens=10)
        assert (answer.completion_tokens, answer.finish_reason) == (10, b.FinishReason.LENGTH)
        assert answer.total_s == pytest.approx(10 * 0.02 + (6 + 9) * 0.001)
        assert sim.now - began == pytest.approx(answer.total_s)


def test_nothing_happens_while_nobody_waits() -> None:
    with Simulation() as sim:
        began = sim.now
        g = sim.pipeline.submit("hello", max_new_tokens=10)
        time.sleep(0.01)
        assert (g.phase, sim.now, sim.pipeline.stats().submitted_total) == ("waiting", began, 0)
        sim.advance(0)
        assert (g.phase, sim.now, sim.pipeline.stats().submitted_total) == ("running", began, 1)
        sim.advance(3600)
        assert (g.phase, sim.now) == ("settled", began + 3600)


def test_chunks_are_read_each_at_its_time() -> None:
    with Simulation(model=SimModel(step_s=1, token_s=0)) as sim:
        began = sim.now
        g = sim.pipeline.submit("hello", max_new_tokens=4)
        times = [(round(sim.now - began, 6), len(chunk.token_ids)) for chunk in g]
        assert times == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("by", [-0.001, 0, 0.001])
def test_a_deadline_is_met_to_the_instant(by: float) -> None:
    with Simulation(model=SimModel(step_s=1, token_s=0), limits=b.Limits(step=5)) as sim:
        began = sim.now
        g = sim.pipeline.submit("hello", max_new_tokens=3, bounds=b.Bounds(total=3 + by))
        if by < 0:
            with pytest.raises(b.DeadlineExceeded):
                g.result()
            assert sim.now - began == pytest.approx(3 + by)
        else:
            assert g.result().total_s == pytest.approx(3)


def test_timeouts_of_waits_are_simulated_too() -> None:
    with Simulation(model=SimModel(step_s=1, token_s=0)) as sim:
        began, g = sim.now, sim.pipeline.submit("hello", max_new_tokens=100)
        with pytest.raises(TimeoutError):
            g.result(7.5)
        assert sim.now == began + 7.5
        g.cancel()
        assert g.wait_reclaimed().steps == 1
        assert sim.now == began + 9, "at the end of the step after the one that it was cancelled in"


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_wedged_step_is_answered_after_its_budget_and_the_lane_comes_back() -> None:
    with Simulation(limits=LIMITS) as sim:
        g = sim.pipeline.submit("hello", max_new_tokens=50)
        sim.run_until(lambda: g.partial.token_ids)
        sim.inject(Fault(kind=FaultKind.WEDGE))
        began = sim.now
        with pytest.raises(b.EngineLost) as caught:
            g.result()
        assert caught.value.partial is not None
        assert caught.value.partial.token_ids
        assert sim.now - began == pytest.approx(2, abs=0.1)
        assert sim.pipeline.health().state is b.HealthState.RECOVERING
        assert sim.pipeline.generate("hello", max_new_tokens=3).completion_tokens == 3
        stats = sim.pipeline.stats()
        assert (stats.incarnation, stats.kills_total["step"]) == (2, 1)


def test_a_caller_s_own_deadline_comes_first_while_the_engine_hangs() -> None:
    with Simulation(limits=LIMITS, faults=[Fault(kind="wedge", at_step=3)]) as sim:
        began, g = sim.now, sim.pipeline.submit("hello", max_new_tokens=50, bounds=b.Bounds(total=1))
        with pytest.raises(b.DeadlineExceeded):
            g.result()
        assert sim.now == began + 1
        assert sim.pipeline.health().state is b.HealthState.READY, "its budget is not used up"
        assert sim.pipeline.stats().stopping == 1
        assert sim.pipeline.stats().step_current_s == pytest.approx(1, abs=0.1)
        assert g.wait_reclaimed().proof == "died"


ENDS: dict[FaultKind, tuple[type[b.BoundedGenError] | None, str]] = {
    FaultKind.CRASH: (b.EngineLost, "died"),
    FaultKind.RAISE: (b.EngineLost, "step_raised"),
    FaultKind.GARBAGE: (b.EngineLost, "wire"),
    FaultKind.NO_PROGRESS: (b.EngineLost, "progress"),
    FaultKind.REFUSE: (b.InvalidRequest, ""),
    FaultKind.SLOW: (None, ""),
}


@pytest.mark.parametrize("kind", ENDS)
def test_each_fault_has_its_answer(kind: FaultKind) -> None:
    error, cause = ENDS[kind]
    with Simulation(limits=LIMITS, faults=[Fault(kind=kind, seconds=1.5)]) as sim:
        g = sim.pipeline.submit("hello", max_new_tokens=10)
        if error is None:
            assert g.result().total_s > 1.5
        else:
            with pytest.raises(error):
                g.result()
        sim.run_until(lambda: sim.pipeline.health().ready)
        killed = {name for name, count in sim.pipeline.stats().kills_total.items() if count}
        assert killed == ({cause} if cause else set())
        assert sim.pipeline.probe().verdict is b.ProbeVerdict.OK


def test_out_of_cache_twice_is_cache_exhausted() -> None:
    faults = [Fault(kind="ignore"), Fault(kind="ignore", at_step=2)]
    with Simulation(limits=LIMITS, faults=faults) as sim, pytest.raises(b.CacheExhausted):
        sim.pipeline.generate("hello", max_new_tokens=10)


@pytest.mark.parametrize("kind", ["leak", "lost_stop"])
def test_what_is_not_released_costs_the_engine_its_life_and_other_callers_nothing(kind: str) -> None:
    with Simulation(limits=LIMITS) as sim:
        g = sim.pipeline.submit("hello", max_new_tokens=500)
        sim.advance(0.1)
        sim.inject(Fault(kind=kind), on=g)
        assert g.cancel()
        with pytest.raises(b.GenerationCancelled):
            g.result()
        assert g.wait_reclaimed().proof == "died"
        assert sim.pipeline.stats().kills_total["reclaim"] == 1
        assert sim.pipeline.generate("hello", max_new_tokens=3).completion_tokens == 3


def test_a_stillborn_engine_is_replaced_and_late_words_change_nothing() -> None:
    faults = {1: [Fault(kind="stillborn")], 2: [Fault(kind="late_words"), Fault(kind="crash", at_step=4)]}
    sim = Simulation(limits=LIMITS, faults=faults)
    with contextlib.closing(sim):
        sim.run_until(lambda: sim.pipeline.health().ready)
        assert (sim.pipeline.stats().incarnation, sim.pipeline.stats().kills_total["boot"]) == (2, 1)
        with pytest.raises(b.EngineLost):
            sim.pipeline.generate("hello", max_new_tokens=10)
        assert sim.pipeline.generate("hello", max_new_tokens=10).completion_tokens == 10
        assert [engine.incarnation for engine in sim.engines] == [1, 2, 3]


def test_a_boot_that_cannot_heal_is_told_when_the_simulation_is_entered() -> None:
    sim = Simulation(faults=[Fault(kind="boot_fails", permanent=True)])
    with pytest.raises(b.ModelLoadFailed), sim:
        pass
    assert sim.pipeline.health().state is b.HealthState.CLOSED


def test_the_restart_budget_ends_in_failed_and_everybody_is_answered() -> None:
    restart = b.RestartPolicy(wait=tenacity.wait_fixed(1), stop=tenacity.stop_after_attempt(2))
    faults = {n: [Fault(kind="crash")] for n in range(1, 9)}
    with Simulation(limits=LIMITS, faults=faults, restart=restart, model=SimModel(running_max=1)) as sim:
        first, second, third = (sim.pipeline.submit("hello", max_new_tokens=10) for _ in range(3))
        for g in (first, second):
            with pytest.raises(b.EngineLost):
                g.result()
        with pytest.raises(b.GenerationEngineFailed):
            third.result()
        with pytest.raises(b.EngineFailed):
            sim.pipeline.submit("hello")


def test_mending_ends_the_faults_that_have_not_happened() -> None:
    with Simulation(limits=LIMITS, faults={1: [Fault(kind="crash")], 2: [Fault(kind="crash")]}) as sim:
        sim.mend()
        assert sim.pipeline.generate("hello", max_new_tokens=3).completion_tokens == 3
        assert len(sim.engines) == 1


def test_a_fault_on_one_generation_leaves_the_others_alone() -> None:
    with Simulation(limits=LIMITS) as sim:
        first, second = (sim.pipeline.submit("hello", max_new_tokens=10) for _ in range(2))
        sim.advance(0)
        sim.inject(Fault(kind="ignore"), on=second)
        sim.inject(Fault(kind="ignore", at_step=6), on=second)
        assert first.result().completion_tokens == 10
        done = sim.pipeline.submit("hello", max_new_tokens=1)
        done.result()
        done.wait_reclaimed()
        with pytest.raises(ValueError, match="not inside"):
            sim.inject(Fault(kind="leak"), on=done)


def test_faults_of_a_boot_wait_for_the_next_engine() -> None:
    with Simulation(limits=LIMITS) as sim:
        sim.inject(Fault(kind="boot_dies"))
        sim.inject(Fault(kind="crash"))
        with pytest.raises(b.EngineLost):
            sim.pipeline.generate("hello", max_new_tokens=3)
        sim.pipeline.wait_ready()
        assert [engine.incarnation for engine in sim.engines] == [1, 2, 3]


# --- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "live"), [(4.999, True), (5, False), (5.001, False)])
def test_a_lease_ends_to_the_instant(after: float, live: bool) -> None:
    with Simulation() as sim:
        lease = sim.pipeline.lease("me", ttl=5)
        sim.advance(after)
        assert lease.live is live
        if live:
            lease.renew()
            sim.advance(4.999)
            assert lease.live
        else:
            with pytest.raises(b.LeaseExpired):
                lease.renew()


# --- waiting in vain -------------------------------------------------------------------------------------------------


def test_waiting_for_what_will_never_happen_is_an_error_that_says_so() -> None:
    picture = r"will ever happen; engine 1 is outside of steps.*reads 1004 s"
    with Simulation() as sim, pytest.raises(SimulationStalled, match=picture):
        sim.run_until(lambda: False)


def test_a_proof_that_never_comes_is_an_error_that_says_so() -> None:
    faults = [Fault(kind="wedge"), Fault(kind="unkillable")]
    with Simulation(limits=LIMITS, faults=faults) as sim:
        g = sim.pipeline.submit("hello", max_new_tokens=3)
        with pytest.raises(SimulationStalled, match="engine 1 is inside step 1"):
            g.wait_reclaimed()
        assert sim.pipeline.health().state is b.HealthState.FAILED


def test_what_has_to_happen_within_some_time_and_does_not_is_a_timeout() -> None:
    with Simulation() as sim:
        began = sim.now
        with pytest.raises(TimeoutError, match="within 5"):
            sim.run_until(lambda: sim.pipeline.stats().submitted_total == 1, within=5)
        assert sim.now == began + 5


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_time_goes_forward_by_finite_spans(seconds: float) -> None:
    with Simulation() as sim, pytest.raises(ValueError, match="seconds"):
        sim.advance(seconds)


def test_a_driver_that_breaks_ends_everything_and_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation() as sim:
        g = sim.pipeline.submit("hello", max_new_tokens=30)
        sim.advance(0.1)

        def broken(now: float) -> None:
            raise ZeroDivisionError("a bug of ours")

        monkeypatch.setattr(sim.pipeline._driver.governor, "tick", broken)
        with pytest.raises(b.GenerationInternalError):
            g.result()
        sim.advance(1000)
        assert not sim.pipeline.health().live


# --- the whole -------------------------------------------------------------------------------------------------------


def lively() -> list[tuple[float, str, int]]:
    """A run with everything in it, as the list of what was seen."""
    seen = []
    faults = {1: [Fault(kind="wedge", at_step=30)], 2: [Fault(kind="leak", at_step=9)]}
    with Simulation(limits=LIMITS, faults=faults) as sim:
        for n in range(40):
            gs = [sim.pipeline.submit(f"{n}", max_new_tokens=1 + (n * k) % 17) for k in (5, 7, 11)]
            gs[n % 3].cancel()
            for g in gs:
                try:
                    reason = g.result().finish_reason
                except b.BoundedGenError as error:
                    reason = error.finish_reason
                seen.append((sim.now, str(reason), len(g.partial.token_ids)))
    return seen


def test_the_same_run_gives_the_same_result() -> None:
    first = lively()
    assert first == lively()
    assert {"engine_lost", "cancelled", "length"} <= {reason for _, reason, _ in first}


def test_thirty_minutes_with_a_thousand_generations_take_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    real, cpu = time.perf_counter(), time.process_time()
    with Simulation() as sim:
        began, ends = sim.now, []
        for burst in range(100):
            gs = [sim.pipeline.submit("a question", max_new_tokens=4 + n) for n in range(10)]
            ends += [g.result().finish_reason for g in gs]
            sim.advance(began + 18 * (burst + 1) - sim.now)
        assert sim.now - began == pytest.approx(1800)
        assert ends == [b.FinishReason.LENGTH] * 1000
        assert sim.pipeline.stats().tokens_total == 8_500
    real, cpu = time.perf_counter() - real, time.process_time() - cpu
    with capsys.disabled():
        print(f"\n30 simulated minutes, 1000 generations: {real:.2f} s ({cpu:.2f} s of a processor)")
    assert cpu < 2
