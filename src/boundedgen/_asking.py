"""The user's restart strategies are foreign code: they are asked aside, and the default ones answer if they do not."""

from collections.abc import Callable

from boundedgen._aside import logger
from boundedgen._core._events import DecideRestart
from boundedgen._restart import RestartPolicy

POLICY_ANSWER = 2.0  #: seconds that a user's restart strategy may take; then the default one decides


class Asking:
    """Used by the driver's thread, but for the answers: `answer(seconds or None)` may come from another.

    `run` has something done elsewhere.
    """

    def __init__(
        self,
        restart: RestartPolicy,
        run: Callable[[Callable[[], None]], object],
        answer: Callable[[float | None], None],
    ) -> None:
        self._restart, self._run, self._answer = restart, run, answer
        self.asked: DecideRestart | None = None  # without an answer yet
        self.due: float | None = None  # the instant at which the default ones decide

    def ask(self, question: DecideRestart, now: float) -> None:
        self.due, self.asked = now + POLICY_ANSWER, question
        since = now - question.since

        def decide() -> None:
            try:
                delay = self._restart.delay(question.failures, since)
            except Exception:
                logger.exception("RestartPolicy's strategy raised; the default one decides")
                delay = RestartPolicy().delay(question.failures, since)
            if self.asked is question:  # an answer that comes too late is none to a later question
                self.due = self.asked = None
                self._answer(delay)

        self._run(decide)

    def tick(self, failures: int, now: float) -> None:
        """Decide, if nobody has by now."""
        if self.due is not None and now >= self.due:
            self.due = self.asked = None
            self._answer(RestartPolicy().delay(failures, 0.0))
