"""A copy of a state: what changes is new in it, what never does is shared. `copy.deepcopy` takes ten times as long."""

import copy
from collections import Counter, OrderedDict, deque
from enum import Enum
from types import NoneType
from typing import Any

from attrs import fields, has

_CONSTANT: set[type] = {NoneType, bool, int, float, str, bytes}  # and those of which that was found out
_CHANGING: set[type] = set()  # likewise
_NAMES: dict[type, tuple[str, ...]] = {}  # of the fields, of those that have a place for each


def copy_of(state: dict[str, Any]) -> dict[str, Any]:
    """Things that are held in several places are one thing in the copy too."""
    made: dict[str, Any] = _Copies().of(state)
    return made


class _Copies:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}  # by the identity of what it is a copy of

    def of(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in _CONSTANT:
            return thing
        if kind is tuple:
            return tuple(self._each(thing))
        if kind not in _CHANGING:
            (_CONSTANT if _never_changes(kind) else _CHANGING).add(kind)
            return self.of(thing)
        known = id(thing)
        if known not in self._made:
            self._make(kind, thing, known)
        return self._made[known]

    def _each(self, things: Any) -> list[Any]:
        return [one if type(one) in _CONSTANT else self.of(one) for one in things]

    def _make(self, kind: Any, thing: Any, known: int) -> None:
        """A container is known before what is in it is copied: that may refer to it."""
        if kind is list:
            self._made[known] = made = []
            made.extend(self._each(thing))
        elif kind in (dict, OrderedDict, Counter):
            self._made[known] = made = kind()
            for key, value in thing.items():
                made[key] = value if type(value) in _CONSTANT else self.of(value)
        elif kind is deque:
            self._made[known] = deque(self._each(thing), thing.maxlen)
        elif kind is set:
            self._made[known] = set(thing)
        elif kind.__module__.startswith("boundedgen."):
            self._made[known] = made = kind.__new__(kind)
            self._fill(kind, thing, made)
        else:
            self._made[known] = copy.deepcopy(thing)

    def _fill(self, kind: type, thing: Any, made: Any) -> None:
        if kind not in _NAMES:
            _NAMES[kind] = tuple([field.name for field in fields(kind)]) if has(kind) else ()
        for name in _NAMES[kind] or vars(thing):
            value = getattr(thing, name)
            setattr(made, name, value if type(value) in _CONSTANT else self.of(value))


def _never_changes(kind: Any) -> bool:
    """It compares by value and can be a key, as all frozen ones are, or has a name for each of its places."""
    by_value = kind.__eq__ is not object.__eq__ and kind.__hash__ is not None
    return issubclass(kind, Enum | tuple) or (has(kind) and by_value)
