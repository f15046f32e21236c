"""What came from a lane, read as data: a figure is a finite number or None, and no text can move a cursor.

A lane may be of another version, and what stands in its owners and labels is its clients'.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

TEXT_MOST = 300  #: characters of a text that are looked at
NUMBER_MOST = 1e15  #: what is larger is no figure of a lane
COUNTERS = ("finished_total", "kills_total", "rejected_total")

#: Right to left: one of them turns round what stands beside it.
_TURNING = frozenset(("R", "AL", "AN", "RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"))


def table(of: object, name: str) -> Mapping[str, Any]:
    """Empty: there is none."""
    found = of.get(name) if isinstance(of, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def rows(of: object, name: str) -> list[Mapping[str, Any]]:
    found = of.get(name) if isinstance(of, Mapping) else None
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def number(of: object, name: str) -> float | None:
    found = of.get(name) if isinstance(of, Mapping) else None
    if isinstance(found, bool) or not isinstance(found, int | float) or not -NUMBER_MOST < found < NUMBER_MOST:
        return None
    return float(found) if math.isfinite(found) else None


def count(of: object, name: str) -> int:
    """0: none, or not told."""
    found = number(of, name)
    return 0 if found is None else max(0, int(found))


def counts(of: object, name: str) -> dict[str, int]:
    """Those that are not 0, in the order that they came in."""
    found = table(of, name)
    return {clean(key): count(found, key) for key in found if count(found, key)}


def true(of: object, name: str) -> bool:
    return isinstance(of, Mapping) and of.get(name) is True


def text(of: object, name: str) -> str:
    found = of.get(name) if isinstance(of, Mapping) else None
    return clean(found) if isinstance(found, str) else ""


def clean(given: str) -> str:
    """`given` in one line that is as wide as it looks: what is no visible character of its own is written as an escape.

    So are letters that are written from right to left, and marks that join the letter before them.
    """
    composed = unicodedata.normalize("NFC", given[:TEXT_MOST])
    return "".join(c if _stands_alone(c) else c.encode("unicode_escape").decode("ascii") for c in composed)


def _stands_alone(character: str) -> bool:
    return (
        character.isprintable()
        and unicodedata.category(character) not in ("Mn", "Me", "Mc", "Co")
        and unicodedata.bidirectional(character) not in _TURNING
        and not "\u1160" <= character <= "\u11ff"  # vowels of Hangul, which join the one before, too
    )


@frozen
class Seen:
    """One lane, as of a moment: its last answer, and since when there has been none."""

    address: str
    document: Mapping[str, Any] | None = None  #: the last one; None: never
    answered_ago_s: float = 0.0  #: of that one
    problem: str = ""  #: why it does not answer; empty: it does
    silent_s: float = 0.0  #: for how long it has not
    before: Mapping[str, Any] = field(factory=dict)  #: an earlier answer's counters, by their names
    before_s: float = 0.0  #: seconds from that to the last answer; 0: there is none

    @property
    def health(self) -> Mapping[str, Any]:
        return table(self.document, "health")

    @property
    def stats(self) -> Mapping[str, Any]:
        return table(self.document, "stats")

    @property
    def name(self) -> str:
        return text(self.document, "name") or clean(self.address)

    def lately(self, counter: str) -> dict[str, int]:
        """By how much each has grown since `before`; empty: not at all, or the lane began anew."""
        now, then = counts(self.stats, counter), counts(self.before, counter)
        grown = {name: figure - then.get(name, 0) for name, figure in now.items()}
        return {} if not self.before_s else {name: figure for name, figure in grown.items() if figure > 0}


def exit_status(lanes: list[Seen]) -> int:
    """0: all are ready; 1: one is not; 2: one does not answer."""
    if any(lane.problem or lane.document is None for lane in lanes):
        return 2
    return 0 if all(true(lane.health, "ready") for lane in lanes) else 1
