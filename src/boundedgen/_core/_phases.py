"""The phases of everything that has any, and the only moves between them.

Theory of operation
-------------------
Two questions are kept apart. *Has the caller been answered?* belongs to a **sequence** (WAITING, RUNNING, SETTLED):
it is answered at its earliest deadline, whatever the engine does. *Does the engine still hold it?* belongs to a
**stay** (ADMITTED, STOPPING, GONE), one admission of a sequence to one incarnation of the engine. Its slot and its
blocks stay reserved until release is proved. A stay that is held too long costs the engine its life, not the callers.

The **engine** is STARTING until it says Ready, UP until it is killed or dies, DYING until its process is reaped, then
DOWN until the restart policy lets the next incarnation start. FAILED and CLOSED are final. A sequence can be settled
in every phase of the engine; a stay becomes GONE by proof while the engine is UP, or with the process at the end of
DYING. Therefore no two incarnations ever exist at once, and nothing is admitted that relies on memory which the
engine has not given back.

All moves go through `move`, against the tables below; docs/design.md draws its diagrams from the same tables.
"""

import enum
from collections.abc import Mapping
from typing import Any


class _Phase(enum.Enum):
    __hash__ = object.__hash__  # there is one of each; Enum's own hashes the name, anew each time


class SequencePhase(_Phase):
    WAITING = "waiting"
    RUNNING = "running"
    SETTLED = "settled"


class StayPhase(_Phase):
    ADMITTED = "admitted"
    STOPPING = "stopping"
    GONE = "gone"


class EnginePhase(_Phase):
    STARTING = "starting"
    UP = "up"
    DYING = "dying"
    DOWN = "down"
    FAILED = "failed"
    CLOSED = "closed"


_S, _T, _E = SequencePhase, StayPhase, EnginePhase

#: From a phase to the phases that may follow it, with the reason.
MOVES: Mapping[Any, Mapping[Any, str]] = {
    _S.WAITING: {_S.RUNNING: "admitted", _S.SETTLED: "cancelled, expired, refused or shut down while waiting"},
    _S.RUNNING: {
        _S.SETTLED: "finished, or ended by a bound, its owner or the engine",
        _S.WAITING: "requeued, continued or paused",
    },
    _S.SETTLED: {},
    _T.ADMITTED: {_T.STOPPING: "stopped or finished", _T.GONE: "refused, or its engine died"},
    _T.STOPPING: {_T.GONE: "release proved, or its engine died"},
    _T.GONE: {},
    _E.STARTING: {_E.UP: "ready", _E.DYING: "boot failed or overdue, or closed"},
    _E.UP: {_E.DYING: "killed, or died"},
    _E.DYING: {_E.DOWN: "reaped", _E.FAILED: "cannot be reaped, or cannot heal", _E.CLOSED: "reaped after close"},
    _E.DOWN: {_E.STARTING: "restarted", _E.FAILED: "restart budget used up", _E.CLOSED: "closed"},
    _E.FAILED: {_E.CLOSED: "closed"},
    _E.CLOSED: {},
}


def move(thing: Any, to: Any) -> None:
    """Set `thing.phase`; a move that the table does not have is a bug of ours."""
    assert to in MOVES[thing.phase], f"{thing.phase} -> {to}"
    thing.phase = to
