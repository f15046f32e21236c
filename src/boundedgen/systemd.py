"""For a service of systemd: readiness, status and watchdog, told by datagram. docs/systemd.md has the unit file.

Nothing else imports this; it needs nothing but a socket, and does nothing where `NOTIFY_SOCKET` is not set.
"""

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import final

from boundedgen._arguments import kind_of, short
from boundedgen._pipeline import BoundedPipeline
from boundedgen._stats import Health, HealthState

__all__ = ["Notifier"]

logger = logging.getLogger(__name__)
SYSTEMD = {"event": "systemd_untold"}  #: of every line here

LOOK = 1.0  #: seconds between two looks while nothing wakes us: STALLED is an observation, and wakes nobody
PATIENCE = 2.0  #: seconds that a datagram may wait for room, and that `close` waits for the thread
STATUS_MOST = 500  #: characters; systemd drops a message of more than 4096 bytes


@final
class Notifier:
    """Tells systemd of a pipeline, from `start` to `close`, or inside of `with`; does nothing without `NOTIFY_SOCKET`.

    It sends `READY=1` when the pipeline is first ready, `STATUS=…` at every change of its state, with the reason,
    `STOPPING=1` when it closes, or this does, and, if the unit has a `WatchdogSec`, `WATCHDOG=1` twice as often as that
    asks for, but only while `health().live`. So a pipeline that has FAILED, or whose driver hangs, is restarted.

    `with Notifier(pipeline), pipeline:` is the order that has the start and the drain told, too. One daemon thread,
    which ends with `close` or with the pipeline, and does not keep that alive. What cannot be sent is logged once and
    sent again later; it harms nothing else.
    """

    def __init__(self, pipeline: BoundedPipeline) -> None:
        if not isinstance(pipeline, BoundedPipeline):
            raise TypeError(f"pipeline must be a BoundedPipeline, not {kind_of(pipeline)}")
        self._pipeline = weakref.ref(pipeline)
        self._wakers = pipeline._driver.wakers
        self._line = _line(os.environ)
        self._every = _watchdog(os.environ)
        self._feed_at = 0.0
        self._ready = self._stopping = self._closing = False  # the first two: told
        self._seen: object = None
        self._told: object = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on it is told. Does nothing the second time, or without `NOTIFY_SOCKET`."""
        if self._thread is None and self._line is not None and not self._closing:
            self._thread = threading.Thread(
                target=self._run, args=(self._line,), name="boundedgen-systemd", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Send `STOPPING=1`, if that was not told yet, and nothing after it. Idempotent; back within a few seconds."""
        self._closing = True
        self._wakers.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * PATIENCE)

    def __enter__(self) -> "Notifier":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self, line: "_Line") -> None:
        while self._look(line):
            self._wakers.wait(self._news, self._pause())

    def _health(self) -> Health | None:
        """None: nobody holds the pipeline any more."""
        pipeline = self._pipeline()
        return None if pipeline is None else pipeline.health()

    def _news(self) -> bool:
        return self._closing or _key(self._health()) != self._seen

    def _look(self, line: "_Line") -> bool:
        """Tell what is new. False: it was the last."""
        closing, health = self._closing, self._health()
        self._seen = _key(health)
        if health is not None:
            self._tell(line, health)
        closing = closing or health is None
        if closing or (health is not None and health.state in (HealthState.DRAINING, HealthState.CLOSED)):
            self._stopping = self._stopping or line.send("STOPPING=1")
        return not closing and health is not None and health.state is not HealthState.CLOSED

    def _tell(self, line: "_Line", health: Health) -> None:
        news = ["READY=1"] if health.ready and not self._ready else []
        if self._seen != self._told:
            news.append(f"STATUS={_status(health)}")
        if news and line.send("\n".join(news)):
            self._told, self._ready = self._seen, self._ready or health.ready
        self._feed(line, health, time.monotonic())

    def _feed(self, line: "_Line", health: Health, now: float) -> None:
        if self._every is not None and now >= self._feed_at:
            fed = health.live and line.send("WATCHDOG=1")
            self._feed_at = now + (self._every if fed else min(self._every, LOOK))

    def _pause(self) -> float:
        """Seconds; what was not sent is tried again then, too."""
        return LOOK if self._every is None else min(LOOK, max(0.0, self._feed_at - time.monotonic()))


def _key(health: Health | None) -> object:
    """What a new status is for. A reason says what is so, not for how long: it stays while that stays."""
    return None if health is None else (health.state, health.reason)


def _status(health: Health) -> str:
    """In one line."""
    why = health.reason if health.error is None else str(health.error)
    return " ".join((f"{health.state}: {why}" if why else health.state).split())[:STATUS_MOST]


class _Line:
    """Datagrams to `NOTIFY_SOCKET`, a path or the name of an abstract socket, which begins with '@'."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._complained = False

    def send(self, text: str) -> bool:
        """False: it could not be sent."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                line.settimeout(PATIENCE)
                line.sendto(text.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._complained:
                logger.warning("systemd cannot be told of the lane: %s", error, extra=SYSTEMD)
            self._complained = True
            return False
        return True


def _line(environment: Mapping[str, str]) -> _Line | None:
    address = environment.get("NOTIFY_SOCKET", "")
    if address and address[0] not in "/@":
        text = "NOTIFY_SOCKET is %s, which is no local socket; systemd is told nothing"
        logger.warning(text, short(address), extra=SYSTEMD)
    return _Line(address) if address[:1] in ("/", "@") else None


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Half of what systemd grants, in seconds; None: this process is not watched."""
    granted, whom = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(os.getpid()))
    if not granted or whom != str(os.getpid()):
        return None
    if not granted.isdecimal() or len(granted) > 18 or int(granted) == 0:
        text = "WATCHDOG_USEC is %s, which is no time; the watchdog is told nothing"
        logger.warning(text, short(granted), extra=SYSTEMD)
        return None
    return int(granted) / 1e6 / 2
