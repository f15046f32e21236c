"""The tables of moves are all the moves there are."""

import enum
from typing import Any

import pytest
from attrs import define

from boundedgen._core._phases import MOVES, EnginePhase, SequencePhase, StayPhase, move

PHASES: list[type[enum.Enum]] = [SequencePhase, StayPhase, EnginePhase]
PAIRS = [(a, b) for phases in PHASES for a in phases for b in phases]


@define
class Thing:
    phase: Any


@pytest.mark.parametrize(("start", "end"), [(a, b) for a, b in PAIRS if b in MOVES[a]])
def test_every_move_of_the_table_is_made(start: Any, end: Any) -> None:
    thing = Thing(start)
    move(thing, end)
    assert thing.phase is end


@pytest.mark.parametrize(("start", "end"), [(a, b) for a, b in PAIRS if b not in MOVES[a]])
def test_every_other_move_is_refused_and_changes_nothing(start: Any, end: Any) -> None:
    thing = Thing(start)
    with pytest.raises(AssertionError):
        move(thing, end)
    assert thing.phase is start


def test_no_move_leads_from_one_machine_to_another() -> None:
    assert all(type(end) is type(start) for start, ends in MOVES.items() for end in ends)


def test_every_phase_has_its_row_and_every_move_its_reason() -> None:
    assert set(MOVES) == {phase for phases in PHASES for phase in phases}
    assert all(reason for ends in MOVES.values() for reason in ends.values())


@pytest.mark.parametrize("final", [SequencePhase.SETTLED, StayPhase.GONE, EnginePhase.CLOSED])
def test_what_is_final_has_no_way_out(final: Any) -> None:
    assert not MOVES[final]


@pytest.mark.parametrize("phases", PHASES)
def test_every_phase_can_be_reached(phases: type[enum.Enum]) -> None:
    start = EnginePhase.DOWN if phases is EnginePhase else next(iter(phases))
    reached, front = {start}, [start]
    while front:
        fresh = [phase for phase in MOVES[front.pop()] if phase not in reached]
        reached.update(fresh)
        front += fresh
    assert reached == set(phases)
