"""One thread for what the driver must not run itself: users' strategies, logging handlers, checks that block."""

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger("boundedgen")


class Aside:
    """Runs callables in order in a daemon thread, which starts at the first one. What they raise is logged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._starting = threading.RLock()  # of the one thread; nothing waits while it is held

    def run(self, work: Callable[[], object]) -> bool:
        """Queue `work`; returns at once. False: closed, or no thread can be started; it will not be done."""
        with self._starting:
            if self._closed or not self._started():
                return False
        self._queue.put(work)
        return True

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def close(self) -> None:
        """What is queued still runs; nothing new does. The thread ends by itself."""
        self._closed = True
        self._queue.put(None)

    def join(self, timeout: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                logger.exception("work beside the driver failed")
            del work  # or it, and all that it holds, would live until the next one comes
