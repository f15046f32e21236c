"""`serve_stats`: the lane's stats over HTTP on a Unix socket, whatever the engine does. It reads, and changes nothing.

One daemon thread, which takes no lock and asks the pipeline what any other caller may ask.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, final

from attrs import define, field

from boundedgen._bell import Bell
from boundedgen._errors import PipelineClosed
from boundedgen._stats_listener import Listener, path_of

logger = logging.getLogger(__name__)

AT_ONCE = 8  #: connections
REQUEST_MOST = 8192  #: bytes, of which a browser sends a thousand
PATIENCE = 5.0  #: seconds from a connection to the end of its answer
CLOSING = 1.0  #: seconds that `close` waits for the thread, which ends all the same
SHARE = 10  #: an answer is given again for so many times as long as making it took: a tenth of a processor at most
WITHOUT_DESCRIPTORS = 0.1  #: seconds until it is tried again
HEAD_ENDS = b"\r\n\r\n"
PAGES = ("/", "/stats")
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Too Large"}

#: A fresh document; None: the pipeline is gone.
Source = Callable[[], Mapping[str, Any] | None]


@final
class StatsSocket:
    """What `pipeline.serve_stats` returns. It serves until it is closed, or its pipeline is; `with` closes it.

    Dropping it closes nothing.
    """

    def __init__(self, path: object, source: Source) -> None:
        self._page = _Page(source)
        self._clients: dict[socket.socket, _Client] = {}
        self._closing = False
        with contextlib.ExitStack() as undo:
            self._selector = undo.enter_context(selectors.DefaultSelector())
            self._bell = Bell()
            undo.callback(self._bell.close)
            self._listener = undo.enter_context(contextlib.closing(Listener(path_of(path))))
            self._thread = threading.Thread(target=self._run, name="boundedgen-stats", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # there are too many
                raise
            except BaseException:  # interrupted, it may have begun all the same
                self._hang_up()
                undo.pop_all()
                raise
            undo.pop_all()

    @property
    def path(self) -> str:
        """Where it is, absolute."""
        return self._listener.path

    def close(self) -> None:
        """Nobody is served any more, and the file is gone. Idempotent, from any thread."""
        self._hang_up()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING)
        self._listener.remove()

    def _hang_up(self) -> None:
        """Have it closed; waits for nothing."""
        self._closing = True
        self._bell.ring()

    def __enter__(self) -> StatsSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.ExitStack() as last:
            last.callback(self._end)
            self._selector.register(self._listener.socket, selectors.EVENT_READ, self._accept)
            self._selector.register(self._bell.fd, selectors.EVENT_READ, self._bell.heed)
            while not self._closing:
                for key, _ in self._selector.select(self._pause()):
                    key.data()
                for client in [c for c in self._clients.values() if c.until <= time.monotonic()]:
                    self._drop(client)

    def _end(self) -> None:
        self._selector.close()
        self._listener.close()
        self._bell.close()

    def _pause(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(client.until for client in self._clients.values()) - time.monotonic())

    def _accept(self) -> None:
        try:
            connection = self._listener.accept()
        except OSError:  # this process has no descriptor left: not to spin on it
            time.sleep(WITHOUT_DESCRIPTORS)
            return
        if connection is None:
            return
        if len(self._clients) >= AT_ONCE:  # who holds on longest has had its time
            self._drop(next(iter(self._clients.values())))
        client = _Client(connection, time.monotonic() + PATIENCE)
        self._clients[connection] = client
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: _Client) -> None:
        try:
            more = client.socket.recv(REQUEST_MOST)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        client.asked += more
        whole = HEAD_ENDS in client.asked or len(client.asked) > REQUEST_MOST
        if not more:
            self._drop(client)
        elif whole:
            client.answer = memoryview(self._page.answer(bytes(client.asked)))
            self._selector.modify(client.socket, selectors.EVENT_WRITE, lambda: self._write(client))
            self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            client.answer = client.answer[client.socket.send(client.answer) :]
        except BlockingIOError:
            return
        except OSError:
            client.answer = memoryview(b"")
        if not client.answer:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        """It may have been dropped meanwhile, for one that came after it."""
        if self._clients.pop(client.socket, None) is not None:
            self._selector.unregister(client.socket)
            self._listener.drop(client.socket)


@define(eq=False)
class _Client:
    socket: socket.socket
    until: float
    asked: bytearray = field(factory=bytearray)
    answer: memoryview = field(factory=lambda: memoryview(b""))


class _Page:
    """What is answered."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._told = b""
        self._told_until = 0.0

    def answer(self, asked: bytes) -> bytes:
        head, whole, _ = asked.partition(HEAD_ENDS)
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if not whole:
            return _response(431, _problem(f"a request has at most {REQUEST_MOST} bytes"))
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(400, _problem("this is HTTP/1.1"))
        if words[0] != "GET":
            return _response(405, _problem("this socket is read only: GET"), "Allow: GET")
        if words[1].partition("?")[0] not in PAGES:
            return _response(404, _problem("the page is /stats"))
        return self._stats()

    def _stats(self) -> bytes:
        """One made by hundreds of sequences takes long: whoever asks often is told the same again."""
        began = time.monotonic()
        if began >= self._told_until:
            self._told = _made(self._source)
            ended = time.monotonic()
            self._told_until = ended + SHARE * (ended - began)
        return self._told


def _made(source: Source) -> bytes:
    try:
        document = source()
        if document is None:
            return _response(503, _problem("the pipeline is gone"))
        return _response(200, json.dumps(document, allow_nan=False))
    except Exception as error:
        logger.exception("stats could not be served", extra={"event": "stats_failed"})
        return _response(500, _problem(f"a bug: {type(error).__name__}; please report it with the log"))


def _problem(text: str) -> str:
    return json.dumps({"error": text})


def _response(status: int, body: str, *headers: str) -> bytes:
    content = body.encode() + b"\n"
    lines = (
        f"HTTP/1.1 {status} {REASONS.get(status, 'Unavailable')}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Cache-Control: no-store",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(lines).encode() + HEAD_ENDS + content


class StatsSockets:
    """All of one pipeline. Neither they nor their threads keep it alive, and they end with it."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[StatsSocket] = weakref.WeakSet()  # a thread keeps its own
        self.closed = False

    def open(self, path: object, source: Source) -> StatsSocket:
        self._refuse_if_closed()
        opened = StatsSocket(path, source)
        self._open.add(opened)
        try:
            self._refuse_if_closed()  # meanwhile
        except PipelineClosed:
            opened.close()
            raise
        return opened

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise PipelineClosed("this pipeline is closed, and its stats are not served any more")

    def close(self) -> None:
        self.closed = True
        for opened in list(self._open):
            opened.close()

    def hang_up(self) -> None:
        """Waits for nothing: by whoever collects garbage."""
        self.closed = True
        for opened in list(self._open):
            opened._hang_up()
