"""Health and stats of a lane as one piece of plain data, under keys that stay as they are: what `top` reads."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol

from boundedgen._arguments import kind_of, plain_str, short
from boundedgen._stats import Health, SchedulerStats
from boundedgen._stats_socket import Source

NAME_MOST = 200  #: characters


class Lane(Protocol):
    def health(self) -> Health: ...
    def stats(self, *, sequences: bool = ...) -> SchedulerStats: ...
    def stats_document(self, name: str = ...) -> dict[str, Any]: ...


def document_of(lane: Lane, name: str, now: float) -> dict[str, Any]:
    """`now` is the instant that the deadlines of its sequences are to be compared with."""
    return {
        "name": checked(name),
        "version": sys.modules["boundedgen"].__version__,
        "now": now,
        "health": lane.health().to_dict(),
        "stats": lane.stats(sequences=True).to_dict(),
    }


def source_of(lane: Lane, name: str) -> Source:
    """Its document, from then on, without keeping it alive."""
    named, held = checked(name), weakref.ref(lane)

    def source() -> dict[str, Any] | None:
        found = held()
        return None if found is None else found.stats_document(named)

    return source


def checked(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {kind_of(name)}")
    plain = plain_str(name)
    if len(plain) > NAME_MOST:
        raise ValueError(f"name is {short(plain)}; at most {NAME_MOST} characters are shown")
    return plain
