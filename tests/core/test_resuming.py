"""What becomes of those inside when their engine is lost, and they may be taken up again."""

from typing import Any

import pytest
from attrs import evolve
from core.governed import Governed, facts

from boundedgen._bounds import Bounds
from boundedgen._core import _events as ev
from boundedgen._core._sequences import Resume

SEGFAULT, KILLED = -11, -9


def lane() -> Governed:
    g = Governed(ready=False)
    g.ready(facts(running_max=4))
    return g


def back(g: Governed) -> None:
    g.restarted(found=facts(running_max=4))


def inside(g: Governed, shown: int = 0, resume: Resume = Resume.ALWAYS, **fields: Any) -> int:
    """One that the engine has taken, and `shown` tokens of it."""
    sequence, stay = g.running(new=8, resume=resume, **fields)
    for _ in range(shown):
        g.step(outputs=(ev.Output(stay, (7,)),))
    return sequence


def admissions(g: Governed, sequence: int) -> list[ev.Admit]:
    return [e for e in g.all(ev.Admit) if e.sequence == sequence]


@pytest.mark.parametrize(
    ("resume", "shown", "goes_on"),
    [
        (Resume.ALWAYS, 3, True),
        (Resume.ALWAYS, 0, True),
        (Resume.UNSEEN, 0, True),
        (Resume.UNSEEN, 1, False),
        (Resume.NEVER, 0, False),
        (Resume.ALWAYS, 8, False),
    ],
)
def test_who_is_taken_up_again_depends_on_what_was_shown(resume: Resume, shown: int, goes_on: bool) -> None:
    g = lane()
    sequence = inside(g, shown, resume)
    g.die(KILLED)
    assert g.reason(sequence) == (None if goes_on else "engine_lost")
    back(g)
    assert [a.resumed for a in admissions(g, sequence)] == ([0, 1] if goes_on else [0])
    assert g.governor.tally.resumed == goes_on
    census = g.governor.census()
    assert (census.waiting, census.running) == (0, int(goes_on))


def test_the_next_stay_has_an_id_and_a_reservation_of_its_own() -> None:
    g = lane()
    sequence = inside(g, 2)
    old = g.stay_of(sequence)
    g.die(KILLED)
    assert [(p.stay, p.proof) for p in g.all(ev.Prove)] == [(old, "died")]
    back(g)
    assert g.stay_of(sequence) > old
    assert g.governor.ledger.held == 1
    g.step(taken=(g.stay_of(sequence),), outputs=(ev.Output(old, (9,)), ev.Output(g.stay_of(sequence), (8,))))
    assert [e.token_ids for e in g.all(ev.Emit)] == [(7,), (7,), (8,)]


def test_a_cancel_a_lease_and_a_deadline_end_it_while_it_waits_for_the_next_engine() -> None:
    g = lane()
    cancelled = inside(g, 1)
    leased = inside(g, 1, lease=g.lease())
    late = inside(g, 1, bounds=Bounds(total=3))
    g.die(KILLED)
    g.governor.cancel(cancelled, g.now)
    g.governor.revoke("lease", g.now)
    g.tick(3.5)
    assert [g.reason(s) for s in (cancelled, leased, late)] == ["cancelled", "lease", "deadline"]
    back(g)
    assert g.governor.stays == {}


def test_during_a_drain_nothing_is_taken_up_again() -> None:
    g = lane()
    sequence = inside(g, 1)
    g.governor.close(60.0, g.now)
    g.die(KILLED)
    assert g.reason(sequence) == "engine_lost"
    assert g.state() == "closed"


def test_those_taken_up_again_come_before_those_who_wait() -> None:
    g = lane()
    first = [inside(g, 1) for _ in range(4)]
    waits = g.submit(new=8)
    g.die(KILLED)
    back(g)
    assert g.admitted()[4:] == first
    assert g.governor.sequences[waits].stay is None


def test_a_kill_from_outside_strikes_nobody_however_often() -> None:
    g = lane()
    sequence = inside(g)
    for _ in range(5):
        g.step(outputs=(ev.Output(admissions(g, sequence)[-1].stay, (7,)),))
        g.die(KILLED)
        back(g)
    assert (g.reason(sequence), g.governor.sequences[sequence].strikes) == (None, 0)


def test_three_engines_lost_in_a_row_before_it_shows_a_token_are_enough_whoever_killed_them() -> None:
    """A prompt that takes all memory is killed "from outside"; without an end it would use up everybody's restarts."""
    g = lane()
    sequence, other = inside(g), inside(g, 1)
    for lost in range(3):
        assert g.reason(sequence) is None, lost
        g.step(outputs=(ev.Output(admissions(g, other)[-1].stay, (7,)),))
        g.die(KILLED)
        back(g)
    assert g.reason(sequence) == "engine_lost"
    settled = g.settled(sequence)
    assert settled is not None
    assert "before it showed a token" in settled.detail
    assert g.reason(other) is None


def test_who_was_new_when_the_engine_took_nothing_more_is_a_suspect() -> None:
    g = lane()
    inside(g, 2)
    new = g.submit(new=4, resume=Resume.ALWAYS)
    g.hear(ev.WireBroken(1, "an unreadable frame"))
    assert g.governor.sequences[new].suspect


def test_who_was_alone_in_two_engines_that_failed_is_quarantined() -> None:
    g = lane()
    culprit = inside(g, 1)
    g.die(SEGFAULT)
    back(g)
    assert g.reason(culprit) is None
    g.die(SEGFAULT)
    assert g.reason(culprit) == "quarantined"
    assert g.governor.tally.quarantined == 1


def test_newcomers_of_the_fatal_step_are_tried_one_at_a_time_before_anybody_else() -> None:
    g = lane()
    old = inside(g, 2)
    new = [g.submit(new=4, resume=Resume.ALWAYS) for _ in range(2)]
    other = g.submit(new=4, resume=Resume.ALWAYS, priority=1)
    g.governor.cancel(other, g.now)
    g.die(SEGFAULT)
    later = g.submit(new=1)
    back(g)
    assert g.admitted()[-1:] == [new[0]]
    g.step(taken=(g.stay_of(new[0]),))
    assert g.admitted()[-1:] == [new[0]]
    g.step(outputs=(ev.Output(g.stay_of(new[0]), (7,)),))
    assert g.admitted()[-1:] == [new[1]]
    g.step(taken=(g.stay_of(new[1]),), outputs=(ev.Output(g.stay_of(new[1]), (7,)),))
    assert g.admitted()[-2:] == [old, later]


def test_the_culprit_among_newcomers_is_found_and_the_others_finish() -> None:
    g = lane()
    new = [g.submit(new=4, resume=Resume.ALWAYS) for _ in range(3)]
    deaths = 0
    for _ in range(12):
        while (stay := g.governor.trial) is not None and g.governor.stays[stay].sequence != new[1]:
            g.step(taken=(stay,), outputs=(ev.Output(stay, (7,)),))
        if g.reason(new[1]) is not None:
            break
        g.die(SEGFAULT)
        deaths += 1
        back(g)
    assert g.reason(new[1]) == "quarantined"
    assert [g.reason(new[0]), g.reason(new[2])] == [None, None]
    assert deaths <= 3


def test_no_fourth_engine_is_risked_for_one_that_was_inside_of_three() -> None:
    g = lane()
    both = [inside(g, 1) for _ in range(2)]
    for _ in range(3):
        assert [g.reason(s) for s in both] == [None, None]
        for s in both:
            stay = g.stay_of(s)
            g.step(taken=(stay,), outputs=(ev.Output(stay, (7,)),))
        g.die(SEGFAULT)
        if g.reason(both[0]) is None:
            back(g)
    assert [g.reason(s) for s in both] == ["engine_lost", "engine_lost"]


def test_one_that_does_not_fit_the_engine_that_came_back_is_lost_and_not_refused() -> None:
    g = lane()
    sequence = inside(g, 1, prompt=20)
    g.die(KILLED)
    g.restarted(found=facts(ev.PoolFacts("kv", 3, 4)))
    assert g.reason(sequence) == "engine_lost"


def test_a_prompt_with_its_tokens_that_no_step_can_take_is_not_continued() -> None:
    g = Governed(ready=False)
    g.ready(evolve(facts(), max_prompt_tokens=6))
    sequence = inside(g, 2, prompt=5)
    g.die(KILLED)
    assert g.reason(sequence) == "engine_lost"


def test_a_trial_that_is_cancelled_keeps_the_others_out_until_it_is_gone() -> None:
    g = lane()
    inside(g, 1)
    suspect = g.submit(new=4, resume=Resume.ALWAYS)
    g.die(SEGFAULT)
    back(g)
    stay = g.stay_of(suspect)
    g.step(taken=(stay,))
    g.governor.cancel(suspect, g.now)
    g.tick()
    assert g.admitted()[-1] == suspect
    g.step(stopping=(stay,), released=(ev.Release(stay, 1, 0.1, 0),))
    assert g.admitted()[-1] != suspect


def test_one_that_was_not_alone_gets_no_second_strike() -> None:
    g = lane()
    first, second = (g.submit(new=4, resume=Resume.ALWAYS) for _ in range(2))
    g.die(SEGFAULT)
    back(g)
    g.step(taken=(g.stay_of(first),), outputs=(ev.Output(g.stay_of(first), (7,)),))
    assert g.admitted()[-1] == second
    g.die(SEGFAULT)
    assert [g.reason(s) for s in (first, second)] == [None, None]
    assert g.governor.sequences[second].strikes == 1
    back(g)
    assert g.admitted()[-1] == second
    assert g.governor.ledger.held == 1
