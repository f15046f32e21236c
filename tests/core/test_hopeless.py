"""No doomed work: who cannot make his deadline any more, by what was measured, is answered instead of let in."""

import pytest

from boundedgen import Admission, Bounds, DeadlineExceeded, FinishReason, Generation, Limits
from boundedgen.testing import SimModel, Simulation

MODEL = SimModel(step_s=0.1)
ONE = Limits(running_max=1)
KNOWN = 10  #: sequences that came to their end before


def lane(margin: float | None = 0.25, *, known: int = KNOWN, tokens: int = 20, ends: int | None = None) -> Simulation:
    """One at a time; each takes about 2 s."""
    model = MODEL if ends is None else SimModel(step_s=0.1, natural_length=lambda _: ends)
    simulation = Simulation(model=model, limits=ONE, admission=Admission(margin=margin))
    simulation.pipeline.wait_ready()
    for _ in range(known):
        simulation.pipeline.generate([5], max_new_tokens=tokens)
    return simulation


def one_inside_and(simulation: Simulation, *totals: float, tokens: int = 20) -> list[Generation]:
    """The first is inside; the others wait, each with its own `total`."""
    pipeline = simulation.pipeline
    first = pipeline.submit([5], max_new_tokens=tokens)
    simulation.advance(0.1)
    return [first, *(pipeline.submit([5], max_new_tokens=tokens, bounds=Bounds(total=t)) for t in totals)]


def bound_of(generation: Generation) -> str:
    with pytest.raises(DeadlineExceeded) as caught:
        generation.result()
    assert caught.value.deadline is not None
    return caught.value.deadline.bound


def test_who_cannot_make_it_is_answered_at_his_turn_and_the_next_has_the_time() -> None:
    with lane() as simulation:
        first, doomed, last = one_inside_and(simulation, 3.5, 10.0)
        assert not first.finish_reason
        with pytest.raises(DeadlineExceeded, match=r"about 2\.\S+ s, 2\.\S+ s with Admission.margin, and 1") as caught:
            doomed.result()
        assert "was not let in any more" in str(caught.value), "it has not reached any bound"
        assert 1.9 < doomed.partial.total_s < 2.3, "at its turn, which is before its deadline"
        assert bound_of(doomed) == "queued"
        assert caught.value.http_status_hint == 503
        assert caught.value.retryable
        assert last.result().finish_reason is FinishReason.LENGTH
        assert last.result().total_s < 4.5
        stats = simulation.pipeline.stats()
        assert (stats.hopeless_total, stats.deadlines_total["queued"]) == (1, 1)
        assert stats.service_error is not None


def test_who_can_make_it_is_let_in() -> None:
    with lane() as simulation:
        held = one_inside_and(simulation, 5.0, 600.0)
        assert held[1].result().finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("margin", [None, -1.0])
def test_it_can_be_left_off(margin: float | None) -> None:
    with lane(margin) as simulation:
        held = one_inside_and(simulation, 3.5, 600.0)
        assert bound_of(held[1]) == "total"
        assert len(held[1].partial.token_ids) > 5


def test_nobody_is_turned_away_while_nobody_else_wants_the_time() -> None:
    with lane() as simulation:
        held = one_inside_and(simulation, 3.5)
        assert bound_of(held[1]) == "total"
        assert len(held[1].partial.token_ids) > 5


def test_nobody_is_turned_away_on_no_evidence() -> None:
    with lane(known=0) as simulation:
        held = one_inside_and(simulation, 3.5, 600.0)
        assert bound_of(held[1]) == "total"
        assert simulation.pipeline.stats().service_error is None


def test_answers_that_are_short_by_nature_are_expected_to_be_short() -> None:
    """Callers who ask for 1,000 tokens and are answered in 20 are let in where 20 tokens fit their time."""
    with lane(tokens=1000, ends=20) as simulation:
        held = one_inside_and(simulation, 6.0, 600.0, tokens=1000)
        assert held[1].result().finish_reason is FinishReason.STOP
