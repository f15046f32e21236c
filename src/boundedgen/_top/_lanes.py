"""Lanes, asked again and again, each by a thread of its own: one that hangs keeps nobody from seeing the others."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from boundedgen._top._reading import COUNTERS, Seen, clean, table

PATIENCE = 2.0  #: seconds that an answer may take
BYTES_MOST = 64 << 20  #: of an answer; a sequence takes 200
LATELY = 60.0  #: seconds that the endings of "lately" go back
PAGE = "/stats"
CHUNK = 1 << 16
WANTED = "is it the page of pipeline.stats_document()?"
LIKE_A_HOST = re.compile(r"[\w.-]+:\d+(/.*)?")  #: and a port: the beginning of a URL is missing


class NoAnswerError(Exception):
    """In words for a person."""


def checked(address: str) -> SplitResult | None:
    """The parts of a URL; None: it is the path of a socket. ValueError: neither."""
    if not address:
        raise ValueError("the address of a lane is empty")
    if "://" not in address:
        return None
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{address} is no http:// or https:// URL")
    _ = parts.port  # raises what is wrong with it
    return parts


def ask(address: str, patience: float = PATIENCE) -> Mapping[str, Any]:
    """The document that `address` serves, or NoAnswerError within about `patience` seconds."""
    until = time.monotonic() + patience
    connection, target = _connection(address, patience)
    try:
        with contextlib.closing(connection):
            connection.request("GET", target, headers={"Accept": "application/json", "Connection": "close"})
            response = connection.getresponse()
            body = _body(response, until)
    except TimeoutError as error:
        raise NoAnswerError(f"no answer within {patience:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(_why(error, address)) from error
    if response.status != 200:
        hint = f"; {WANTED}" if response.status == 404 else ""
        raise NoAnswerError(f"HTTP {response.status} {clean(response.reason)}{hint}")
    return _document(body)


def _connection(address: str, patience: float) -> tuple[http.client.HTTPConnection, str]:
    parts = checked(address)
    if parts is None:
        return _UnixConnection(address, patience), PAGE
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    target = (parts.path or PAGE) + (f"?{parts.query}" if parts.query else "")
    assert parts.hostname is not None
    return kind(parts.hostname, parts.port, timeout=patience), target


def _body(response: http.client.HTTPResponse, until: float) -> bytes:
    """Whoever sends it drop by drop has no more time than others."""
    body = bytearray()
    while piece := response.read1(CHUNK):
        body += piece
        if len(body) > BYTES_MOST:
            raise NoAnswerError(f"the answer has more than {BYTES_MOST >> 20} MiB")
        if time.monotonic() > until:
            raise TimeoutError
    return bytes(body)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoAnswerError(f"the answer is no JSON; {WANTED}") from error
    if not table(document, "health") or not table(document, "stats"):
        raise NoAnswerError("the answer is not pipeline.stats_document()")
    assert isinstance(document, Mapping)
    return document


def _why(error: BaseException, address: str) -> str:
    if isinstance(error, FileNotFoundError):
        url = f"; for a URL write http://{clean(address)}" if LIKE_A_HOST.fullmatch(address) else ""
        return f"there is no such socket: its process has ended, or serves elsewhere{url}"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there" if "://" in address or _is_socket(address) else "that is no socket"
    if isinstance(error, PermissionError) and "://" not in address:
        return "this user may not open it: run this as the server's user"
    return clean((error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # it has gone meanwhile
        return True


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, patience: float) -> None:
        super().__init__("lane", timeout=patience)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


class Lane:
    """One address, and what it has answered. Asked by one thread; looked at by another."""

    def __init__(self, address: str, *, patience: float = PATIENCE) -> None:
        checked(address)
        self.address = address
        self._patience = patience
        self._since = self._answered_at = time.monotonic()
        self._document: Mapping[str, Any] | None = None
        self._problem = ""
        self._asking_since: float | None = None
        self._past: deque[tuple[float, Mapping[str, Any]]] = deque()

    def ask(self) -> None:
        self._asking_since = time.monotonic()
        try:
            document = ask(self.address, self._patience)
        except NoAnswerError as error:
            self._problem = str(error)
        except Exception as error:  # be it a bug: the other lanes are still shown
            self._problem = f"{type(error).__name__}: {clean(str(error))}"
        else:
            self._take(document, time.monotonic())
        self._asking_since = None

    def seen(self) -> Seen:
        """Now; waits for nothing."""
        now, asking, document = time.monotonic(), self._asking_since, self._document
        overdue = asking is not None and now - asking > self._patience
        problem = self._problem or (f"no answer within {self._patience:g} s" if overdue else "")
        if document is None and not problem:
            problem = "not asked yet"
        then, before = self._past[0] if self._past else (self._answered_at, {})
        return Seen(
            address=self.address,
            document=document,
            answered_ago_s=now - self._answered_at,
            problem=problem,
            silent_s=now - (self._since if document is None else self._answered_at),
            before=before,
            before_s=self._answered_at - then,
        )

    def _take(self, document: Mapping[str, Any], now: float) -> None:
        while self._past and self._past[0][0] < now - LATELY:
            self._past.popleft()
        stats = table(document, "stats")
        self._past.append((now, {name: table(stats, name) for name in COUNTERS}))
        self._document, self._answered_at, self._problem = document, now, ""


class Watch:
    """Asks all lanes every `every` seconds, until it is closed."""

    def __init__(self, lanes: list[Lane], every: float) -> None:
        self._every = every
        self._over = threading.Event()
        for lane in lanes:
            threading.Thread(target=self._run, args=(lane,), name="boundedgen-top", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self, lane: Lane) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            lane.ask()
            self._over.wait(max(0.05, self._every - (time.monotonic() - began)))
