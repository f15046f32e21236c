"""A script: which commands reach an engine at which instant. An instant is the begin of a round of the child's loop.

Rounds last one second of a clock that only the scripts move: a step takes a second, and so does a round without one.
Thus all that a report says of time can be compared. Everything here crosses into the laboratory process as JSON.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, field, frozen

from boundedgen._core._events import Claim

FIRST_TEXT = 3  #: ids below are special
VOCABULARY = 259


@frozen
class Admit:
    """A request of one stay. Its prompt is drawn from `text`: equal texts of one length are equal prompts."""

    stay: int
    prompt: int  #: tokens
    new: int
    config: Mapping[str, Any] = field(factory=dict)
    deadline: float = math.inf  #: an instant
    stop_at: int | None = None  #: a token that is new to the text, at this place of the output or later, ends it
    text: int | None = None  #: None: its stay's number
    urgency: float | None = None  #: it may be paused, the least urgent first; None: its blocks are set aside

    @property
    def words(self) -> int:
        return self.stay if self.text is None else self.text

    def reworded(self, number: int) -> Admit:
        return evolve(self, text=number * 1_000_000 + self.words)

    def ids(self) -> list[int]:
        drawn = random.Random(self.words)
        return [drawn.randrange(FIRST_TEXT, VOCABULARY) for _ in range(self.prompt)]

    @property
    def claim(self) -> Claim | None:
        return None if self.urgency is None else Claim(True, (self.urgency, 0.0, 0.0))

    def fields(self) -> dict[str, Any]:
        """GenerationConfig fields, as the product sends them."""
        return {"max_new_tokens": self.new, "ignore_eos": self.stop_at is None, "rng_seed": 1, **self.config}


@frozen
class Stop:
    stay: int

    def reworded(self, number: int) -> Stop:
        return self


Command = Admit | Stop
Timed = tuple[int, Command]


@frozen
class Script:
    commands: tuple[Timed, ...]

    @property
    def last(self) -> int:
        return max((at for at, _ in self.commands), default=0)

    def at(self, instant: int) -> list[Command]:
        return [command for at, command in self.commands if at == instant]

    def reworded(self, number: int) -> Script:
        """The same with other prompts, that no other number gives."""
        return Script(tuple((at, command.reworded(number)) for at, command in self.commands))

    def admissions(self) -> list[Admit]:
        return [command for _, command in self.commands if isinstance(command, Admit)]


def script(*commands: Timed) -> Script:
    """Commands with their instants, in the order in which they are sent."""
    return Script(tuple(sorted(commands, key=lambda timed: timed[0])))


@frozen
class Settings:
    """An engine. `tokens` is what its KV pool holds, in whole blocks of whichever size the device has."""

    model: str = "plain"
    tokens: int = 512
    scheduler: Mapping[str, Any] = field(factory=lambda: {"max_num_batched_tokens": 64})
    counted: bool = False  #: release is proved by counts, as on older releases, whatever this one offers


# --- as JSON ---------------------------------------------------------------------------------------------------------


def dump(made: Script) -> list[Any]:
    return [[at, asdict(command)] for at, command in made.commands]


def load(data: Sequence[Any]) -> Script:
    return Script(tuple((at, _command(fields)) for at, fields in data))


def _command(fields: Mapping[str, Any]) -> Command:
    return Admit(**fields) if "prompt" in fields else Stop(**fields)
