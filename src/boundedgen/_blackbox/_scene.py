"""What the driver knows of a lost engine, taken in its thread within microseconds and put into words elsewhere.

No prompt, no output and no id of a lease goes into it: token ids become their number, a lease a short hash.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import fields, frozen, has

from boundedgen._bounds import Limits
from boundedgen._core import _events as ev
from boundedgen._core._governor import Governor
from boundedgen._core._leases import Lease
from boundedgen._core._life import Death
from boundedgen._core._recording import Input
from boundedgen._core._sequences import Sequence, Submission
from boundedgen._core._stays import Stay
from boundedgen._flow import Flow
from boundedgen._lease import hashed
from boundedgen._stats import SchedulerStats

if TYPE_CHECKING:
    from boundedgen._driver import Driver

SCHEMA = 1
WAITING_SHOWN = 200  #: sequences; everything that was inside is shown
INPUTS_SHOWN = 2000
LEASE_INPUTS = ("renew", "revoke", "expire", "seen")  #: their first argument is a lease's id
TEXT_MOST = 300  #: characters of an engine's refusal, which may quote a request's configuration
LOST = ("engine_lost", "quarantined", "shutdown")  #: how those end that were running when the engine was lost
BLAMED = ("crashes", "strikes", "suspect", "fruitless")  #: of a sequence: what the losses of engines say of it
Plain = dict[str, Any]

RawStep = tuple[int, float, float, int, float, int]  # of a Step; five times as fast to make, once a step


class Step(NamedTuple):
    """One report of the engine's: usually of one step, of several if they were merged."""

    steps: int
    began: float
    ended: float
    scheduled: int
    usage: float
    live: int  #: stays that were held when it was heard


@frozen
class Scene:
    """All of one moment, frozen or copied."""

    at: float  #: monotonic
    wall: float
    incarnation: int
    pid: int
    pulse: ev.Pulse
    budget_s: float  #: of the step in flight
    started_at: float  #: of the process; 0: never
    ready_at: float | None
    failures: int
    facts: ev.EngineFacts | None
    stats: SchedulerStats  #: as they were before it was given up
    sequences: tuple[Plain, ...]
    whose: tuple[tuple[Sequence | None, Flow | None], ...]  #: of each row
    waiting_more: int
    steps: tuple[RawStep, ...]
    inputs: tuple[Input, ...]
    exit_status: int | None = None  #: minus the signal; None: it was still there

    def answered(self) -> None:
        """By the driver's thread, at the end of the wake in which the engine was lost: what became of everybody."""
        for row, (sequence, flow) in zip(self.sequences, self.whose, strict=True):
            settled = None if flow is None else flow.settled
            row["answered"] = None if settled is None else settled.reason
            if sequence is not None:
                row |= {name: getattr(sequence, name) for name in BLAMED}


def scene_of(driver: Driver, stats: SchedulerStats, steps: Iterable[RawStep], wall: float, at: float) -> Scene:
    """By the driver's thread, before the governor hears that the process is gone."""
    governor, link = driver.governor, driver.link
    pulse = ev.Pulse() if link is None else link.pulse()
    waiting = (s for s in governor.sequences.values() if s.stay is None)
    shown = list(islice(waiting, WAITING_SHOWN))
    rows = [_inside(governor, stay, driver.flows, at) for stay in governor.stays.values()]
    rows += [_row(s.submission, "waiting", at) | _asked(s) for s in shown]
    occupants = [*(stay.occupant for stay in governor.stays.values()), *shown]
    return Scene(
        at=at,
        wall=wall,
        incarnation=governor.life.incarnation,
        pid=(0 if link is None else link.pid) or 0,
        pulse=pulse,
        budget_s=governor.watch.pace.budget(pulse),
        started_at=governor.life.started_at or 0.0,
        ready_at=governor.life.ready_at,
        failures=governor.life.failures,
        facts=governor.life.facts,
        stats=stats,
        sequences=tuple(rows),
        whose=tuple((s, None if s is None else driver.flows.get(s.id)) for s in occupants),
        waiting_more=sum(1 for _ in waiting),
        steps=tuple(steps),
        inputs=governor.record().inputs[-INPUTS_SHOWN:],
    )


def _inside(governor: Governor, stay: Stay, flows: Mapping[int, Flow], at: float) -> Plain:
    sequence, flow = governor.sequences.get(stay.sequence), flows.get(stay.sequence)
    settled = None if flow is None else flow.settled
    lost = sequence is not None or (settled is not None and settled.reason in LOST)
    return {
        **_row(stay.submission, "running" if lost else "stopping", at),
        **({} if sequence is None else _asked(sequence)),
        "tokens": 0 if flow is None else len(flow.token_ids),
        "stay": stay.id,
        "held_s": round(at - stay.admitted_at, 3),
        "taken": stay.taken,
        "stopping_s": None if lost or stay.stop_at is None else round(at - stay.stop_at, 3),
        "blocks": list(stay.needs),
        "trial": stay.id == governor.trial,
        "probe": stay.probe,
    }


def _row(submission: Submission, phase: str, at: float) -> Plain:
    return {
        "id": submission.id,
        "label": submission.label,
        "owner": submission.owner,
        "lease": submission.lease,  # put into words, and so hashed, later
        "phase": phase,
        "age_s": round(at - submission.submitted_at, 3),
        "prompt_tokens": submission.prompt_tokens,
        "max_new_tokens": submission.max_new_tokens,
        "sequences": submission.sequences,
        "priority": submission.priority,
    }


def _asked(sequence: Sequence) -> Plain:
    wall = sequence.wall_deadline()
    return {
        "deadline": None if wall is None else wall.at,
        "bound": None if wall is None else wall.bound,
        "cleared": sequence.cleared,
    }


# --- in words, by the black box's own thread -------------------------------------------------------------------------


def incident(scene: Scene, death: Death, limits: Limits, configuration: Mapping[str, Any], most: int) -> Plain:
    """incident.json, in at most `most` bytes: of too many sequences the first are kept."""
    rows = [{**row, "lease": hashed(row["lease"])} for row in scene.sequences]
    told = {
        "schema": SCHEMA,
        "at": datetime.fromtimestamp(scene.wall, UTC).isoformat(timespec="milliseconds"),
        "monotonic": scene.at,
        "cause": death.cause.value,
        "detail": death.detail,
        "incarnation": scene.incarnation,
        "pid": scene.pid,
        "server_pid": os.getpid(),
        "ready_s": None if scene.ready_at is None else round(scene.at - scene.ready_at, 3),
        "restarts_total": scene.stats.restarts_total,
        "resumed_total": scene.stats.resumed_total,
        "failures_in_a_row": scene.failures,
        "exit_status": scene.exit_status,
        "step_in_flight": _step_in_flight(scene),
        "versions": {
            "boundedgen": sys.modules["boundedgen"].__version__,
            "python": platform.python_version(),
            "kernel": os.uname().release,
        }
        | ({} if scene.facts is None else dict(scene.facts.versions)),
        "python": sys.version,
        "facts": plain(scene.facts),
        "configuration": plain(configuration) | {"limits": plain(limits)},
        "stats": scene.stats.to_dict(),
        "sequences": rows,
        "sequences_left_out": scene.waiting_more,
    }
    while rows and len(json.dumps(told, ensure_ascii=False, indent=1).encode("utf-8", "replace")) > most:
        gone = len(rows) - len(rows) // 2
        del rows[len(rows) // 2 :]
        told["sequences_left_out"] += gone
    return told


def _step_in_flight(scene: Scene) -> Plain | None:
    pulse = scene.pulse
    if not pulse.in_step:
        return None
    return {
        "step": pulse.steps_begun,
        "age_s": round(scene.at - pulse.begun_at, 3),
        "budget_s": round(scene.budget_s, 3),
        "tokens_at_most": pulse.scheduled,
        "attention": pulse.attention,
    }


def steps_lines(scene: Scene) -> Iterator[str]:
    for step in map(Step._make, scene.steps):
        yield json.dumps(
            {
                "step": step.steps,
                "began": step.began,
                "ended": step.ended,
                "seconds": round(step.ended - step.began, 6),
                "scheduled": step.scheduled,
                "usage": round(step.usage, 4),
                "live": step.live,
            }
        )
    if (flying := _step_in_flight(scene)) is not None:
        yield json.dumps({**flying, "began": scene.pulse.begun_at, "in_flight": True})


def input_lines(inputs: Iterable[Input]) -> Iterator[str]:
    for name, args in inputs:
        yield json.dumps({"input": name, "args": _arguments(name, args)}, ensure_ascii=False)


def _arguments(name: str, args: tuple[Any, ...]) -> list[Any]:
    if name in LEASE_INPUTS:
        return [hashed(args[0]), *map(plain, args[1:])]
    if name == "refuse":  # its words may quote a request's grammar
        return [args[0], f"{len(args[1])} characters", *map(plain, args[2:])]
    return [plain(arg) for arg in args]


def plain(value: Any) -> Any:
    """JSON, without what was asked or answered and without ids of leases."""
    if isinstance(value, ev.Refusal):
        return {"stay": value.stay, "code": value.code, "text": value.text[:TEXT_MOST]}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if (names := _names_of(type(value))) is not None:
        return {name: _field(value, name) for name in names}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return type(value).__name__


def _names_of(kind: type) -> Iterable[str] | None:
    """Of its fields; None: they have none. A named tuple is no row: what is not to be told is known by its name."""
    if has(kind):
        return [field.name for field in fields(kind)]
    return getattr(kind, "_fields", None) if issubclass(kind, tuple) else None


def _field(owner: Any, name: str) -> Any:
    value = getattr(owner, name)
    if name in ("token_ids", "logprobs"):
        return len(value)
    if name == "singles":  # stay, token id, stay, token id, …
        return list(value[::2])
    if name == "lease" or (name == "id" and isinstance(owner, Lease)):
        return hashed(value)
    return plain(value)


def last_that_fit(lines: Iterable[str], most: int) -> str:
    """The last of the lines, as many as fit into `most` bytes."""
    kept: list[str] = []
    for line in reversed(list(lines)):
        most -= len(line.encode("utf-8", "replace")) + 1
        if most < 0:
            break
        kept.append(line)
    return "".join(f"{line}\n" for line in reversed(kept))
