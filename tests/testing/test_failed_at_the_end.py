"""Leaving `with` normally after the lane has failed is no normal end: a server that does so must not exit with 0."""

import contextlib
from collections.abc import Callable

import pytest

import boundedgen as b
from boundedgen.testing import Fault, Simulation

ONCE = b.RestartPolicy(wait=lambda state: 0.0, stop=lambda state: state.attempt_number >= 1)


def hopeless(*faults: Fault) -> Simulation:
    """Its second engine never comes."""
    return Simulation(restart=ONCE, faults=faults or [Fault(kind="crash")])


def lose_it(sim: Simulation) -> None:
    with contextlib.suppress(b.GenerationError):
        sim.pipeline.generate("hello", max_new_tokens=3)
    sim.run_until(lambda: sim.pipeline.health().state is b.HealthState.FAILED)


@pytest.mark.parametrize("closed", [bool, b.BoundedPipeline.close], ids=["failed", "failed, then closed"])
def test_leaving_a_lane_that_has_failed_raises_what_health_says(closed: Callable[[b.BoundedPipeline], object]) -> None:
    sim = hopeless()

    def serve() -> None:
        with sim.pipeline:
            lose_it(sim)
            closed(sim.pipeline)

    with pytest.raises(b.EngineFailed, match="the restart budget is used up; last: died"):
        serve()
    health = sim.pipeline.health()
    assert (health.state, type(health.error)) == (b.HealthState.CLOSED, b.EngineFailed)
    assert health.reason.startswith("the restart budget is used up")


def test_leaving_it_in_a_coroutine_raises_the_same() -> None:
    sim = hopeless()

    async def main() -> None:
        async with sim.pipeline:
            with contextlib.suppress(b.GenerationError):
                await sim.pipeline.agenerate("hello", max_new_tokens=3)
            await sim.aadvance(60)
            assert sim.pipeline.health().state is b.HealthState.FAILED

    with pytest.raises(b.EngineFailed, match="restart budget"):
        sim.run(main())
    assert sim.pipeline.health().state is b.HealthState.CLOSED


def test_an_exception_that_is_under_way_is_not_masked() -> None:
    def serve(sim: Simulation) -> None:
        with sim.pipeline:
            lose_it(sim)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        serve(hopeless())


def test_closing_a_lane_that_has_failed_raises_nothing() -> None:
    with hopeless() as sim:
        lose_it(sim)
        sim.pipeline.close()


def test_a_lane_that_did_not_fail_ends_well_though_its_engine_was_lost_at_the_end() -> None:
    sim = Simulation(faults=[Fault(kind="crash", at_step=2)])
    with sim.pipeline as pipeline:
        generation = pipeline.submit("hello", max_new_tokens=3)
    assert generation.finish_reason is b.FinishReason.ENGINE_LOST
    assert (pipeline.health().state, pipeline.health().error) == (b.HealthState.CLOSED, None)


def test_a_failure_without_a_reason_is_a_failure() -> None:
    sim = Simulation(faults=[Fault(kind="boot_fails", permanent=True, text="")])
    with pytest.raises(b.EngineUnavailable, match="nobody said why"):
        sim.pipeline.wait_ready()
    sim.pipeline.close()
    assert sim.pipeline.health().error is not None
