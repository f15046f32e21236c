"""The governor's inputs, kept: the latest of them, from a moment whose state is known, replay bit for bit."""

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, final

from attrs import evolve, fields, frozen, has

from boundedgen._core import _events as ev
from boundedgen._core._copying import copy_of
from boundedgen._core._governor import Governor

#: Every method that changes the governor. None of them calls another.
INPUTS = (
    *("start", "submit", "clear", "refuse", "cancel", "tighten", "grant", "renew", "revoke", "expire", "seen"),
    *(
        "restart",
        "exchange",
        "keep",
        "close",
        "give_up",
        "pulse",
        "under_way",
        "receive",
        "tick",
        "leases_due",
        "next_wakeup",
        "poll",
    ),
)
LARGE = 32  #: sequences and leases; the state of more is not copied, for that would hold up the driver
MOST = 2  #: times as many inputs as are to be kept, while the state is large; then the beginning is lost
_OWN = ("_keep", "_pages", "_census")  # no state of the governor's
Input = tuple[str, tuple[Any, ...]]


@final
@frozen
class Record:
    """Inputs in order, each a method's name and its arguments, and the state before the first of them, if known."""

    begins: Governor | None  #: None: the beginning is lost; it can be read, but not replayed
    inputs: tuple[Input, ...]


@frozen
class _Pages:
    """The last chapter, and the one that is being written: how that one began, and its inputs so far."""

    before: Record | None
    begins: Governor | None
    inputs: list[Input]


@final
class Recorded(Governor):
    """A governor that writes down what it is told. `keep`: inputs, at least; 0: none.

    A new chapter begins every `keep` inputs with the state of that moment; the latest two are kept.
    """

    def __init__(self, *args: Any, keep: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keep = keep
        self._pages = _Pages(None, _photograph(self), [])

    def record(self) -> Record:
        """As of now; from any thread."""
        pages = self._pages
        now = tuple(pages.inputs)
        if pages.before is None:
            return Record(pages.begins, now)
        return Record(pages.before.begins, pages.before.inputs + now)

    def turn_the_page(self) -> None:
        """If it is full. By the last input of a wake: all effects are out."""
        if len(self._pages.inputs) < self._keep:
            return
        begins, inputs = self._pages.begins, self._pages.inputs
        if len(self.sequences) + len(self.leases) <= LARGE:
            self._pages = _Pages(Record(begins, tuple(inputs)), _photograph(self), [])
        elif len(inputs) >= MOST * self._keep:
            self._pages = _Pages(None, None, inputs[-self._keep :])


def _recorded(name: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(Governor, name)

    @wraps(method)
    def told(self: Recorded, *args: Any) -> Any:
        if self._keep:  # in one function: there are eight inputs a step
            self._pages.inputs.append((name, args))
        return method(self, *args)

    @wraps(method)
    def granted(self: Recorded, *args: Any) -> Any:
        if self._keep:
            self._pages.inputs.append((name, _of_its_own(name, args)))
        return method(self, *args)

    @wraps(method)
    def told_last(self: Recorded) -> Any:
        if self._keep:
            self.turn_the_page()
        return told(self)

    if name == "grant":
        return granted
    return told_last if name == "next_wakeup" else told


for _name in INPUTS:
    setattr(Recorded, _name, _recorded(_name))


def _of_its_own(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A lease's row changes with what happens to it."""
    return (evolve(args[0], sequences=set()), *args[1:]) if name == "grant" else args


def _photograph(governor: Governor) -> Governor:
    """As it is now, and as it stays."""
    plain = Governor.__new__(Governor)
    plain.__dict__.update(copy_of(_state(governor)))
    return plain


def _state(governor: object) -> dict[str, Any]:
    return {name: value for name, value in vars(governor).items() if name not in _OWN}


def replay(record: Record) -> tuple[Governor, list[ev.Effect]]:
    """The governor after all inputs, and all effects that came out of it. ValueError: the beginning is lost."""
    if record.begins is None:
        raise ValueError("the beginning of this record is lost: too much was inside for too long")
    governor = _photograph(record.begins)
    effects: list[ev.Effect] = []
    for name, args in record.inputs:
        outcome = getattr(governor, name)(*_of_its_own(name, args))
        if name == "poll":
            effects += outcome
    return governor, effects


def portrait(state: Any) -> Any:
    """All of a governor's state as plain data that can be compared, in order."""
    if isinstance(state, dict):
        return [(portrait(key), portrait(value)) for key, value in state.items()]
    if isinstance(state, set | frozenset):
        return sorted(map(repr, state))
    if isinstance(state, list | tuple | deque):
        return [portrait(item) for item in state]
    if not type(state).__module__.startswith("boundedgen.") or isinstance(state, Enum):
        return state
    if has(type(state)):
        return (type(state).__name__, [portrait(getattr(state, field.name)) for field in fields(type(state))])
    return ("Governor" if isinstance(state, Governor) else type(state).__name__, portrait(_state(state)))
