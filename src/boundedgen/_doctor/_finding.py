"""What the doctor finds: data, made by small checks, shown elsewhere."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, final

from attrs import evolve, frozen

_Case = TypeVar("_Case")


@final
class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"  #: as it should be
    NOTE = "note"  #: worth knowing; nothing has to be done
    WARNING = "warning"  #: it works, and will do so badly, or not for ever
    PROBLEM = "problem"  #: it does not work


@final
@frozen
class Finding:
    """What was seen, and what to do about it: sentences, or nothing to do."""

    level: Level
    seen: str
    do: str = ""
    check: str = ""  #: the name of the check that found it


def ok(seen: str) -> Finding:
    return Finding(Level.OK, seen)


def note(seen: str, do: str = "") -> Finding:
    return Finding(Level.NOTE, seen, do)


def warning(seen: str, do: str) -> Finding:
    return Finding(Level.WARNING, seen, do)


def problem(seen: str, do: str) -> Finding:
    return Finding(Level.PROBLEM, seen, do)


@final
@frozen
class Check(Generic[_Case]):
    """One thing that is looked at. `look` finds nothing where that does not matter."""

    name: str
    look: Callable[[_Case], Iterable[Finding]]

    @property
    def about(self) -> str:
        """All is well when this is so: the docstring of `look`."""
        return " ".join((self.look.__doc__ or "").split())


def found(checks: Iterable[Check[_Case]], case: _Case) -> Iterator[Finding]:
    """What all `checks` find, in order. A check that raises is a finding, and not the end of the others."""
    for check in checks:
        try:
            for finding in check.look(case):
                yield evolve(finding, check=check.name)
        except Exception as error:
            words = f"this check failed itself: {type(error).__name__}: {error}"
            yield Finding(Level.PROBLEM, words, "Please report it, with this text.", check.name)


def amount(size: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 1000 else f"{size:,.0f} GB"


def span(seconds: float) -> str:
    """Seconds, for people."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def figure(number: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
