"""The engine's end of the two pipes."""

from __future__ import annotations

import os
import select
from typing import final

from boundedgen._engine._frames import LONGEST, Decoder, Outbox, WireError
from boundedgen._engine._wire import Word, decode, encode

_READ = 1 << 16
_READS = 16  #: at once, so that the steps of others go on while long prompts come in


@final
class Line:
    """The engine's end of both pipes. The parent's absence ends the process, at once and without destructors."""

    def __init__(self, commands: int, reports: int, incarnation: int, frame_bytes: int) -> None:
        self._commands, self._reports, self._incarnation = commands, reports, incarnation
        self._decoder = Decoder(LONGEST)  # what the parent takes in at its door is its own matter
        self._outbox = Outbox(frame_bytes)
        self.page = frame_bytes // 2  #: bytes of a report; the rest is for one result, or for a table of what is held
        self._poll = select.poll()
        self._poll.register(commands, select.POLLIN)
        for fd in (commands, reports):
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)

    @property
    def busy(self) -> bool:
        """The last report has not gone out yet."""
        return bool(self._outbox)

    def send(self, word: Word) -> None:
        self._outbox.put(encode(word, self._incarnation))
        self.flush()

    def flush(self) -> None:
        try:
            self._outbox.flush(self._reports)
        except OSError:
            os._exit(0)

    def words(self, *, within: float | None) -> list[Word]:
        """What the parent has sent, or sends within so many seconds, in whole milliseconds. None: sleeps until there is
        something to read or room to write."""
        if self._outbox:
            self._poll.register(self._reports, select.POLLOUT)
        ready = [fd for fd, _ in self._poll.poll(None if within is None else 1000 * within)]
        if self._outbox:
            self._poll.unregister(self._reports)
            self.flush()
        return self._read() if self._commands in ready else []

    def flush_all(self) -> None:
        """Returns when the parent has read everything."""
        room = select.poll()
        room.register(self._reports, select.POLLOUT)
        while self._outbox:
            room.poll()
            self.flush()

    def _read(self) -> list[Word]:
        words: list[Word] = []
        for _ in range(_READS):
            try:
                data = os.read(self._commands, _READ)
            except BlockingIOError:
                break
            if not data:
                os._exit(0)
            words += self._decode(data)
            if len(data) < _READ:
                break
        return words

    def _decode(self, data: bytes) -> list[Word]:
        frames = list(self._decoder.feed(data))
        if any(frame.incarnation != self._incarnation for frame in frames):
            raise WireError("a command of another incarnation")
        return [decode(frame) for frame in frames]
