"""The parent's commands on their way into a pipe that may be full."""

from __future__ import annotations

from collections import deque
from typing import final

from boundedgen._engine._frames import Outbox
from boundedgen._engine._pixels import Bulk
from boundedgen._engine._wire import Halt, Word, encode
from boundedgen.abc import Request

_Key = tuple[str, int]


@final
class Commands:
    """In their order, except that a stop does not wait behind requests that are not encoded yet, and that requests
    with images wait behind all others.

    Behind its own request a stop does wait: an engine takes no notice of a stop of what it has not met.
    """

    def __init__(self, fd: int, incarnation: int, limit: int) -> None:
        self._fd, self._incarnation = fd, incarnation
        self._outbox = Outbox(limit)
        self._words: deque[Word] = deque()  # for which there was no room in it yet
        self._stops: deque[Word] = deque()
        self._bulk = Bulk()
        self._encoded: deque[_Key] = deque()  # whatever is in the outbox, and what left it since the last look
        self._seen = 0  # bytes that the pipe had taken at the last look
        self._stuck = False

    def __bool__(self) -> bool:
        return bool(self._outbox)

    def put(self, word: Word) -> None:
        """For the next `flush`. What the outbox has no room for waits as it is."""
        if isinstance(word, Request) and word.images:
            self._bulk.put(word)
            return
        if isinstance(word, Halt) and word.stay in self._bulk:
            word = self._bulk.call_off(word.stay)
        ahead = isinstance(word, Halt) and not any(isinstance(w, Request) and w.stay == word.stay for w in self._words)
        (self._stops if ahead else self._words).append(word)

    def flush(self) -> None:
        """Write what the pipe takes now. Raises OSError when nobody will ever read it."""
        while self._fill():
            if not self._outbox.flush(self._fd):
                self._stuck = True
                return
        if not self._stuck:
            self._encoded.clear()

    def _fill(self) -> bool:
        """True: something is in the outbox."""
        while (words := self._stops or self._words) and self._outbox.room:
            word = words.popleft()
            self._outbox.put(encode(word, self._incarnation))
            self._encoded.append(_key(word))
        if not self._outbox and (bulky := self._bulk.next()) is not None:
            self._outbox.put(encode(bulky, self._incarnation))
            self._encoded.append(_key(bulky))
        return bool(self._outbox)

    def heard(self, stay: int) -> None:
        """The engine has taken or refused it."""
        self._bulk.heard(stay)

    def under_way(self) -> list[_Key]:
        """Those that had to wait for room, if the pipe has taken some bytes since the last call: the last ones, too.
        And those whose images are not being sent yet."""
        waiting = [("admit", stay) for stay in self._bulk.waiting()]
        if not self._stuck or self._outbox.written == self._seen:
            return waiting
        keys = [*waiting, *self._encoded, *map(_key, self._stops), *map(_key, self._words)]
        keys += [("admit", stay) for stay in self._bulk.begun()]
        while len(self._encoded) > len(self._outbox):
            self._encoded.popleft()
        self._seen, self._stuck = self._outbox.written, bool(self._outbox)
        return keys


def _key(word: Word) -> _Key:
    match word:
        case Request():
            return "admit", word.stay
        case Halt():
            return "stop", word.stay
        case _:
            return "", 0  # nothing is held against the first one
