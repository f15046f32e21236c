"""How long things took, as histograms: what is counted, when, and once."""

import itertools
import math

import pytest
from attrs import evolve
from core.governed import Governed, facts
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._admission import Admission
from boundedgen._bounds import Bounds
from boundedgen._core import _events as ev
from boundedgen._core._sequences import Resume
from boundedgen._core._times import EDGES, FIRST_TOKEN, KINDS, NEXT_TOKEN, QUEUED, STEP, TOTAL, WIDTH, Times


def told(g: Governed, kind: int) -> tuple[int, float]:
    """How often, and seconds in all."""
    times = g.governor.tally.times
    return sum(times.rows[kind]), pytest.approx(times.sums[kind])  # type: ignore[return-value]


def outputs(*stays: int, tokens: int = 1) -> tuple[ev.Output, ...]:
    return tuple(ev.Output(stay, (7,) * tokens) for stay in stays)


# --- the list --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(-1.0, 2000.0) | st.sampled_from(EDGES), st.integers(1, 9))))
def test_each_is_counted_in_its_bucket_and_its_sum(added: list[tuple[int, float, int]]) -> None:
    times = Times()
    for kind, seconds, often in added:
        times.add(kind, seconds, often)
    for kind in KINDS:
        mine = [(max(0.0, seconds), often) for its, seconds, often in added if its == kind]
        counts, total = times.rows[kind], times.sums[kind]
        assert len(counts) == WIDTH
        assert total == pytest.approx(math.fsum(seconds * often for seconds, often in mine))
        for n, edge in enumerate((*EDGES, math.inf)):
            assert sum(counts[: n + 1]) == sum(often for seconds, often in mine if seconds <= edge), edge


def test_a_photograph_stays_as_it_is() -> None:
    times = Times()
    times.add(TOTAL, 1.0)
    rows, sums = times.photograph()
    times.add(TOTAL, 1.0)
    times.add(STEP, 1.0)
    assert (sum(map(sum, rows)), sum(sums)) == (1, 1.0)
    assert sum(map(sum, times.rows)) == 3


def test_the_edges_go_from_a_millisecond_to_ten_minutes_and_are_never_far_apart() -> None:
    assert (EDGES[0], EDGES[-1]) == (0.001, 600.0)
    assert list(EDGES) == sorted(set(EDGES))
    assert max(b / a for a, b in itertools.pairwise(EDGES)) <= 2.5


# --- queued ----------------------------------------------------------------------------------------------------------


def test_the_time_in_the_queue_is_known_when_the_engine_has_taken_it() -> None:
    g = Governed(ready=False)
    sequence = g.submit(prompt=3)
    g.now += 4.0
    g.ready()
    g.now += 7.0
    assert told(g, QUEUED) == (0, 0.0)
    g.step(taken=(g.stay_of(sequence),))
    g.step(taken=(g.stay_of(sequence),))
    assert told(g, QUEUED) == (1, 4.0)
    assert g.governor.tally.prompt_tokens == 3


def test_who_is_turned_back_goes_on_waiting_and_nothing_is_taken_back() -> None:
    g = Governed(ready=False, admission=Admission(policy="adaptive"))
    g.ready(facts(running_max=4))
    g.running()
    turned = g.submit(prompt=3)
    before = g.governor.tally.prompt_tokens
    g.now += 1.0
    g.step(refused=(ev.Refusal(g.stay_of(turned), ev.NO_ROOM, "full"),))
    assert (told(g, QUEUED), g.governor.tally.prompt_tokens) == ((1, 0.0), before)
    for _ in range(40):
        g.step()
        g.now += 0.1
    assert g.admitted().count(turned) == 2
    g.step(taken=(g.stay_of(turned),))
    assert told(g, QUEUED)[0] == 2
    assert g.governor.tally.times.sums[QUEUED] > 4.0
    assert g.governor.tally.prompt_tokens == before + 3


def test_who_was_admitted_to_an_engine_that_died_before_it_could_say_so_was_admitted_and_only_once() -> None:
    g = Governed()
    g.submit(resume=Resume.ALWAYS, continuable=True)
    g.now += 2.0
    g.die(-11)
    assert told(g, QUEUED) == (1, 0.0)
    g.restarted()
    g.step(taken=(g.stay_of(1),))
    assert told(g, QUEUED) == (1, 0.0)


def test_who_is_refused_by_the_engine_was_never_inside() -> None:
    g = Governed()
    sequence = g.submit()
    g.step(refused=(ev.Refusal(g.stay_of(sequence), "invalid", "no"),))
    assert g.reason(sequence) == "rejected"
    assert (told(g, QUEUED), told(g, TOTAL)[0]) == ((0, 0.0), 1)


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_the_first_token_counts_from_submit_and_each_other_from_the_one_before() -> None:
    g = Governed()
    (_, one), (_, two) = g.running(), g.running()
    g.now += 1.0
    g.step(outputs=outputs(one))
    g.now += 0.25
    g.step(outputs=outputs(one, two))
    g.now += 0.5
    g.step(outputs=outputs(one, two))
    assert told(g, FIRST_TOKEN) == (2, 2.25)
    assert told(g, NEXT_TOKEN) == (3, 0.25 + 0.5 + 0.5)


def test_tokens_that_came_at_once_are_nothing_apart() -> None:
    g = Governed()
    _, one = g.running()
    g.now += 1.0
    g.step(outputs=outputs(one, tokens=3))
    assert (told(g, FIRST_TOKEN), told(g, NEXT_TOKEN)) == ((1, 1.0), (2, 0.0))
    g.now += 0.5
    g.step(singles=(one, 7, one, 7))
    assert told(g, NEXT_TOKEN) == (4, 0.5)


def test_those_that_never_had_a_token_and_late_ones_are_not_counted() -> None:
    g = Governed()
    sequence, stay = g.running()
    g.governor.cancel(sequence, g.now)
    g.step(outputs=outputs(stay))
    assert g.governor.tally.late_tokens == 1
    assert (told(g, FIRST_TOKEN), told(g, NEXT_TOKEN)) == ((0, 0.0), (0, 0.0))


def test_the_loss_of_an_engine_is_a_long_time_between_two_tokens() -> None:
    g = Governed()
    sequence, stay = g.running(resume=Resume.ALWAYS, continuable=True)
    g.step(outputs=outputs(stay))
    g.now += 1.0
    g.die()
    g.now += 5.0
    g.restarted()
    g.step(taken=(g.stay_of(sequence),))
    g.now += 2.0
    g.step(outputs=outputs(g.stay_of(sequence)))
    assert (told(g, FIRST_TOKEN), told(g, NEXT_TOKEN)) == ((1, 0.0), (1, 8.0))


def test_several_sequences_show_all_at_once_at_the_end() -> None:
    g = Governed()
    _, stay = g.running(sequences=2)
    g.now += 3.0
    both = (ev.SequenceResult((1, 2), (), 0.0), ev.SequenceResult((1, 3), (), 0.0))
    g.step(finished=(ev.Finish(stay, "length", both),))
    assert (told(g, FIRST_TOKEN), told(g, NEXT_TOKEN), told(g, TOTAL)) == ((1, 3.0), (0, 0.0), (1, 3.0))


# --- ends, steps -----------------------------------------------------------------------------------------------------


def test_every_end_counts_from_submit_also_of_those_that_were_never_inside() -> None:
    g = Governed(ready=False)
    waiting, expired = g.submit(), g.submit(bounds=Bounds(total=2.0))
    g.tick(2.0)
    assert g.reason(expired) == "deadline"
    g.now += 1.0
    g.governor.cancel(waiting, g.now)
    g.tick()
    assert told(g, TOTAL) == (2, 5.0)


def test_a_submission_that_is_heard_of_by_an_older_clock_took_no_time() -> None:
    g = Governed()
    late = evolve(g.submission(), submitted_at=g.now + 0.001)
    g.governor.submit(late, g.now)
    g.governor.cancel(late.id, g.now)
    assert told(g, TOTAL) == (1, 0.0)


def test_a_probe_is_among_no_times_but_those_of_steps() -> None:
    g = Governed()
    probe = g.submit(probe=True, new=1)
    g.step(taken=(g.stay_of(probe),))
    g.step(outputs=outputs(g.stay_of(probe)), finished=(ev.Finish(g.stay_of(probe), "length"),))
    assert g.reason(probe) == "length"
    assert [told(g, kind)[0] for kind in (QUEUED, FIRST_TOKEN, NEXT_TOKEN, TOTAL)] == [0, 0, 0, 0]
    assert told(g, STEP)[0] == g.governor.tally.steps == 2


def test_steps_whose_reports_were_merged_count_with_their_mean_and_a_report_without_one_does_not() -> None:
    g = Governed()
    g.running()
    g.step()
    g.governor.receive(ev.Progress(1, 5, g.now, g.now + 3.0, 3, 0.0, None), g.now)
    g.governor.receive(ev.Progress(1, 5, 0.0, g.now + 3.0, 0, 0.0, None), g.now)
    assert told(g, STEP) == (5, 3.0)
    assert g.governor.tally.steps == 5
