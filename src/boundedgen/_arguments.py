"""What callers pass, whatever it is: read as plain data, told in a few words, refused by name.

A caller may pass anything, also by mistake: a number of 5000 digits, a megabyte where a name belongs, an object that
raises when it is looked at. None of it may cost more than a moment, come out of a message, or raise something untyped.
"""

from __future__ import annotations

import difflib
import functools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, final

from attrs import fields

from boundedgen._errors import BoundedGenError, InvalidRequest

_SHORT: Final = 60
_BITS: Final = 128  #: a whole number of more is told by its size: Python refuses to print one of 5000 digits
_CONTAINERS: Final = (list, tuple, set, frozenset, dict, bytes, bytearray)
DEPTH_MOST: Final = 500  #: of plain data: Python's own writer of JSON takes about a thousand
_Class = TypeVar("_Class", bound=type)


def short(value: Any) -> str:
    """`value` in a few words, at once: small ones as they are written, others by their type and size."""
    if isinstance(value, str):
        text = plain_str(value)
        return repr(text) if len(text) <= _SHORT else f"a str of {len(text)} characters"
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return str(number) if number.bit_length() <= _BITS else f"a whole number of {number.bit_length()} bits"
    if isinstance(value, float):
        return float.__repr__(float.__float__(value))
    if isinstance(value, numbers.Real):
        return f"{real_number(value):g}"
    kind = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    return f"a value of type {kind_of(value)}" if kind is None else f"a {kind_of(value)} of {kind.__len__(value)}"


def kind_of(value: object) -> str:
    return type(value).__name__[:_SHORT]


def plain_str(value: str) -> str:
    """A str of no other class: what a subclass makes of it does not count."""
    return str.__str__(value)


def whole_number(value: object) -> int | None:
    """An int, also of numpy's kinds; None: it is no whole number (a bool is none)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return None
    return int.__int__(value) if isinstance(value, int) else int(value)


def real_number(value: Any) -> float | None:
    """A float, also from numpy's kinds or a Fraction, infinite where it is too large for one; None: it is no number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float.__float__(value) if isinstance(value, float) else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


@final
class reading:  # noqa: N801
    """What an object raises when it is looked at becomes a `kind` that names the argument. `ours` are left as they are,
    and so are errors of this library. A class, since a generator takes three times as long, ten times a submission.
    """

    __slots__ = ("_kind", "_name", "_ours")

    def __init__(
        self, name: str, kind: type[Exception] = InvalidRequest, *, ours: tuple[type[Exception], ...] = ()
    ) -> None:
        self._name, self._kind, self._ours = name, kind, ours

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, (BoundedGenError, *self._ours)):
            said = f"{self._name} cannot be read: looking at it raises {kind_of(error)}"
            raise self._kind(said) from None


def too_large(most: int, value: object) -> bool:
    """Whether plain data takes more than `most` characters as JSON, or is nested too deeply to be written as such.

    Found out level by level, without writing it: what is too large is not looked at to its end, and a cycle ends too.
    """
    left, level, depth = most, [value], 0
    while level and left >= 0 and depth <= DEPTH_MOST:
        inner: list[object] = []
        for item in level:
            if isinstance(item, str):
                left -= str.__len__(item) + 2
            elif isinstance(item, dict | list | tuple):
                left -= len(item) + 1
                if len(item) > left:
                    return True
                inner.extend(item)
                inner.extend(item.values() if isinstance(item, dict) else ())
            else:
                left -= 1
            if left < 0:
                return True
        level, depth = inner, depth + 1
    return bool(level)


def suggestion(name: object, known: Iterable[str], aliases: Mapping[str, str]) -> str:
    """'; did you mean …?', or nothing."""
    if not isinstance(name, str) or len(plain := plain_str(name)) > _SHORT:
        return ""
    near = [aliases[plain]] if plain in aliases else difflib.get_close_matches(plain, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def names_unknown_keywords(made: _Class) -> _Class:
    """For an attrs class: a keyword that it does not know is a TypeError that says which one may be meant."""
    known = [field.name for field in fields(made)]
    make: Callable[..., None] = made.__init__  # type: ignore[misc]

    @functools.wraps(make)
    def init(self: Any, *values: Any, **keywords: Any) -> None:
        for name in keywords.keys() - known:
            raise TypeError(f"{made.__name__} has no argument {short(name)}{suggestion(name, known, {})}")
        make(self, *values, **keywords)

    made.__init__ = init  # type: ignore[misc]
    return made
