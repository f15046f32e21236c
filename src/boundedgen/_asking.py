"""The user's restart strategies are foreign code: each question gets a thread of its own, and the default ones
answer if they do not."""

import logging
from collections.abc import Callable

from boundedgen._aside import Aside
from boundedgen._core._events import DecideRestart
from boundedgen._restart import RestartPolicy

logger = logging.getLogger(__name__)

POLICY_ANSWER = 2.0  #: seconds that a user's restart strategy may take; then the default one decides


Answer = Callable[[float | None], None]  #: seconds until the next start; None: give up


class Asking:
    """Used by the driver's thread, but for the answers, which may come from another. `aside` makes the threads;
    `model` is for the log.

    It keeps no `answer`, which knows the driver: a cycle would keep a closed lane until the collector comes by.
    """

    def __init__(self, restart: RestartPolicy, aside: Callable[[str], Aside], model: str) -> None:
        self._restart, self._aside, self._model = restart, aside, model
        self.asked: DecideRestart | None = None  # without an answer yet
        self.due: float | None = None  # the instant at which the default ones decide

    def ask(self, question: DecideRestart, now: float, answer: Answer) -> None:
        self.due, self.asked = now + POLICY_ANSWER, question
        since = now - question.since

        def decide() -> None:
            raised: BaseException | None = None
            try:
                delay = self._restart.delay(question.failures, since)
            except BaseException as error:  # also SystemExit: this thread is nobody's but ours
                delay, raised = RestartPolicy().delay(question.failures, since), error
            if self.asked is question:  # an answer that comes too late is none to a later question
                self.due = self.asked = None
                answer(delay)
            if raised is not None:
                text, extra = "RestartPolicy's strategy raised; the default one decides", {"event": "strategy_failed"}
                logger.error(text, exc_info=raised, extra={**extra, "model": self._model})

        alone = self._aside("boundedgen-restart")  # it may never come back, and then holds up nothing else
        alone.run(decide)
        alone.close()

    def tick(self, failures: int, now: float, answer: Answer) -> None:
        """Decide, if nobody has by now."""
        if self.due is not None and now >= self.due:
            self.due = self.asked = None
            answer(RestartPolicy().delay(failures, 0.0))
