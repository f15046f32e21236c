"""What an engine says, as data that can be compared: a record a report, of plain values only."""

from __future__ import annotations

import itertools
from typing import Any

from boundedgen._core._events import Progress, Pulse, Report, StepRaised

Record = dict[str, Any]
Trace = list[Record]

#: What no record has, and why.
NOT_COMPARED = {
    "incarnation": "it is 1 in both",
    "cache_bytes": "the simulated engine has no memory, and says None",
    "rss_bytes": "memory is the process's, and neither of them tells it there",
    "accepted": "the simulated engine does not draft",
    "proposed": "the simulated engine does not draft",
    "counted": "images are not simulated; only of a model that sees are tokens counted again",
    "outputs.token_ids": "the simulated model is a checksum of the text so far; how many there are is compared",
    "outputs.logprobs": "all of them are -0.5 there; how many there are is compared",
    "finished.score": "it is the rank there",
    "refused.text": "the words are the engine's own; which stay, and the code, are compared",
}


def record(report: Report, load: tuple[int, int] | None) -> Record:
    """`load`: what the stamps said of the step while it ran. None: there was no step."""
    if isinstance(report, StepRaised):
        return {"raised": report.steps}
    assert isinstance(report, Progress), report
    return {
        "steps": report.steps,
        "time": [report.began, report.ended],
        "load": None if load is None else list(load),
        "scheduled": report.scheduled,
        "usage": round(report.usage, 4),
        "tokens": report.tokens,
        "attention": report.attention,
        "held": None if report.held is None else list(report.held),
        "taken": list(report.taken),
        "stopping": list(report.stopping),
        "paused": list(report.paused),
        "refused": [[refusal.stay, refusal.code] for refusal in report.refused],
        "outputs": [[output.stay, len(output.token_ids), len(output.logprobs)] for output in report.all_outputs],
        "finished": [
            [end.stay, end.why, [[len(one.token_ids), len(one.logprobs)] for one in end.results]]
            for end in report.finished
        ],
        "released": [[one.stay, one.steps, one.late_tokens] for one in report.released],
        "seconds": [one.seconds for one in report.released],
    }


class Loads:
    """What the stamps said in each step, by its number."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, int]] = {}

    def see(self, pulse: Pulse) -> None:
        if pulse.in_step:
            self._of[pulse.steps_begun] = (pulse.scheduled, pulse.attention)

    def of(self, report: Report) -> tuple[int, int] | None:
        """None for a report without a step of its own."""
        return self._of.pop(report.steps, None) if isinstance(report, Progress) else None


def differences(real: Trace, simulated: Trace, *, leave_out: frozenset[str] = frozenset()) -> list[str]:
    """In words, the first few; empty: the traces are equal. `leave_out`: keys of records."""
    found = []
    for n, (one, other) in enumerate(itertools.zip_longest(real, simulated)):
        if one is None or other is None or one.keys() != other.keys():
            found.append(f"report {n}: real {one}, simulated {other}")
        else:
            keys = [key for key in one if key not in leave_out and one[key] != other[key]]
            found += [f"report {n} (step {one.get('steps')}): {k} {one[k]}, simulated {other[k]}" for k in keys]
    return found[:12]


def ends(trace: Trace) -> dict[int, list[Any]]:
    """Of each stay, without regard to when: tokens shown, why it finished, how it was released."""
    told: dict[int, list[Any]] = {}
    for said in trace:
        for stay, tokens, _ in said["outputs"]:
            told.setdefault(stay, [0, "", []])[0] += tokens
        for stay, why, _ in said["finished"]:
            told.setdefault(stay, [0, "", []])[1] = why
        for stay, *how in said["released"]:
            told.setdefault(stay, [0, "", []])[2] = how
    return told
