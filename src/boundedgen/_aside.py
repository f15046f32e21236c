"""One thread for what the driver must not run itself: users' strategies, logging handlers, checks that block."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

WAITING_MOST = 4096  #: pieces of work that may wait: behind one that does not return there is no use in more


class Aside:
    """Runs callables in order in a daemon thread, which starts at the first one. What they raise is logged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._starting = threading.RLock()  # of the one thread; nothing waits while it is held

    def run(self, work: Callable[[], object]) -> bool:
        """Queue `work`; returns at once. False: it will not be done: closed, too much waits, or no thread starts."""
        with self._starting:
            if self._closed or self._queue.qsize() >= WAITING_MOST or not self._started():
                return False
        self._queue.put(work)
        return True

    def _started(self) -> bool:
        if self._thread is None:
            mine = queue.SimpleQueue[Callable[[], object] | None]()
            thread = threading.Thread(target=_work, args=(mine,), name=self._name, daemon=True)
            try:
                thread.start()
            except BaseException as error:
                mine.put(None)  # interrupted, it may have begun all the same
                if isinstance(error, RuntimeError):
                    return False
                raise
            self._thread, self._queue = thread, mine
        return True

    def close(self) -> None:
        """What is queued still runs; nothing new does. The thread ends by itself."""
        self._closed = True
        self._queue.put(None)

    def join(self, timeout: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)


def _work(todo: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (work := todo.get()) is not None:
        unharmed(work)
        del work  # or it, and all that it holds, would live until the next one comes


def unharmed(work: Callable[[], object]) -> None:
    """Foreign code may raise anything: SystemExit, or what it made of an interrupt; handlers of logging as well."""
    try:
        work()
    except BaseException:
        with contextlib.suppress(BaseException):
            logger.exception("work beside the driver failed", extra={"event": "work_failed"})
