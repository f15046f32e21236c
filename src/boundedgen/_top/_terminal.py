"""The terminal: frames out, keys in, and everything as it was at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from boundedgen._output import show
from boundedgen._top._lanes import PATIENCE, Lane, Watch
from boundedgen._top._reading import Seen, exit_status
from boundedgen._top._view import Look, frame, page

LOOK = 0.1  #: seconds between two looks at keys and at the size of the window
REDRAW = 0.5  #: seconds; between two answers ages of silence grow
ONE_LANE, SEVERAL = " q quits", " q quits   1-9, arrows or tab: another lane"
NEXT, PREVIOUS, LEAVE = ("\t", "n", "j", "\x1b[B", "\x1b[C"), ("p", "k", "\x1b[A", "\x1b[D"), ("q", "Q", "\x04")
ASCII = str.maketrans({"█": "#", "░": ".", "–": "-", "…": "~"})
FIRST_ANSWER = 0.3  #: seconds that the first frame waits for answers


def once(addresses: list[str]) -> int:
    """One frame, and the exit status."""
    lanes = [Lane(address) for address in addresses]
    threads = [threading.Thread(target=lane.ask, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 2 * PATIENCE  # what drips says of itself that it does not answer
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    console = _console()
    seen = [lane.seen() for lane in lanes]
    _print(console, seen)
    return exit_status(seen)


def live(addresses: list[str], every: float) -> int:
    """Until q or Ctrl-C; the exit status is that of the last frame."""
    lanes = [Lane(address) for address in addresses]
    console, watch = _console(), Watch(lanes, every)
    try:
        with contextlib.suppress(KeyboardInterrupt), _told_to_end():
            time.sleep(min(FIRST_ANSWER, every))
            if console.is_terminal and not console.is_dumb_terminal:
                _show(console, lanes)
            else:
                while _print(console, [lane.seen() for lane in lanes], "\n"):
                    time.sleep(every)
    finally:
        watch.close()
    return exit_status([lane.seen() for lane in lanes])


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _print(console: Console, seen: list[Seen], end: str = "") -> bool:
    """False: nobody reads it."""
    with console.capture() as printed:
        for line in _encodable(page(seen, Look(width=console.width, clock=_clock())), console):
            console.print(line, no_wrap=True, crop=False)
    return show(printed.get() + end)


def _encodable(lines: list[Text], console: Console) -> list[Text]:
    """For a terminal that has ASCII only, or Latin-1."""
    if console.encoding.startswith("utf"):
        return lines
    for line in lines:
        line.plain = line.plain.translate(ASCII).encode(console.encoding, "replace").decode(console.encoding)
    return lines


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _show(console: Console, lanes: list[Lane]) -> None:
    selected, drawn_at, size = 0, 0.0, console.size
    screen = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with screen as shown, _keys() as pressed:
        while True:
            now = time.monotonic()
            if now - drawn_at >= REDRAW or console.size != size:
                drawn_at, size = now, console.size
                shown.update(_drawn(console, lanes, selected), refresh=True)
            key = pressed()
            if key in LEAVE:
                return
            if (other := _selected(key, selected, len(lanes))) != selected:
                selected, drawn_at = other, 0.0


def _drawn(console: Console, lanes: list[Lane], selected: int) -> Group:
    width, height = console.size
    keys = SEVERAL if len(lanes) > 1 else ONE_LANE
    look = Look(width=width, height=height, selected=selected, clock=_clock(), keys=keys)
    return Group(*(_ended(line) for line in _encodable(frame([lane.seen() for lane in lanes], look), console)))


def _ended(line: Text) -> Text:
    line.end = "\n"
    return line


def _selected(key: str, selected: int, lanes: int) -> int:
    if key in NEXT:
        return (selected + 1) % lanes
    if key in PREVIOUS:
        return (selected - 1) % lanes
    if len(key) == 1 and "1" <= key <= "9" and int(key) <= lanes:
        return int(key) - 1
    return selected


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """The terminal gives each key at once, and shows none. Where there is none, no key is ever pressed."""
    if not sys.stdin.isatty():
        yield _Keys(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield _Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _Keys:
    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __call__(self) -> str:
        """What was pressed, within `LOOK` seconds; empty: nothing."""
        if self._fd is None:
            time.sleep(LOOK)
            return ""
        ready, _, _ = select.select([self._fd], [], [], LOOK)
        if not ready:
            return ""
        pressed = os.read(self._fd, 64).decode("ascii", "replace")
        return pressed or "q"  # the terminal is gone


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does, so that the terminal is given back; Ctrl-Z would not give it back.

    Once: the next one would come while it is given back.
    """
    told = False

    def interrupt(number: int, at: FrameType | None) -> None:
        nonlocal told
        if not told:
            told = True
            raise KeyboardInterrupt

    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in ends}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
