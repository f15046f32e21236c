"""What the strategies draw is sound: no limit that they draw is broken by a model that they draw without a fault."""

from hypothesis import given, settings
from hypothesis import strategies as st

import boundedgen as b
from boundedgen.testing import Fault, FaultKind, SimModel, Simulation, strategies

CAUSES = {"step", "boot", "reclaim", "progress", "ack", "step_raised", "died", "wire"}


@given(strategies.models(), strategies.limits(), st.lists(strategies.bounds(), max_size=6))
@settings(max_examples=60)
def test_without_a_fault_no_engine_is_killed_and_everything_is_released(
    model: SimModel, limits: b.Limits, bounds: list[b.Bounds]
) -> None:
    with Simulation(model=model, limits=limits) as sim:
        for n, each in enumerate(bounds):
            try:
                sim.pipeline.submit([3 + n] * (1 + 5 * n), max_new_tokens=1 + 3 * n, bounds=each)
            except (b.NeverFits, b.Saturated):
                continue
        sim.advance(60)
        stats = sim.pipeline.stats()
        assert not [cause for cause in CAUSES if stats.kills_total[cause]]
        assert (stats.waiting, stats.running, stats.stopping, stats.blocks_reserved) == (0, 0, 0, 0)


@given(st.data())
def test_delays_are_drawn_under_at_and_over_each_limit(data: st.DataObject) -> None:
    limits = b.Limits(step=7)
    delay = data.draw(strategies.delays(limits, b.Bounds(total=13)))
    assert delay >= 0
    assert data.draw(strategies.around(7, by=0.5)) in (6.5, 7, 7.5)


def test_a_delay_at_a_bound_is_among_them() -> None:
    from hypothesis import find

    for at in (12.999, 13.0, 13.001, 6.999, 7.0, 7.001):
        assert find(strategies.delays(b.Limits(step=7), b.Bounds(total=13)), at.__eq__) == at


@given(strategies.faults([FaultKind.WEDGE, FaultKind.SLOW]))
def test_faults_are_of_the_given_kinds(fault: Fault) -> None:
    assert fault.kind in (FaultKind.WEDGE, FaultKind.SLOW)
    assert 1 <= fault.at_step <= 8


@given(strategies.bounds(total_max=3))
def test_bounds_have_a_total_that_ends_in_time(bounds: b.Bounds) -> None:
    assert bounds.total is not None
    assert bounds.total <= 3
