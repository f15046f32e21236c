"""`retrying`: how a client tries again, on tenacity: when it is told to, within its own deadline, and seldom enough."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, TypeVar, final

import tenacity
from attrs import frozen
from tenacity import AsyncRetrying, AttemptManager, RetryCallState, wait_random_exponential

from boundedgen._arguments import kind_of, reading, real_number, short, whole_number
from boundedgen._bounds import Seconds, seconds
from boundedgen._errors import BoundedGenError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Sleep = Callable[[float], object]
ATTEMPTS = 3  #: where neither `attempts` nor `total` is given
RESERVE_MOST = 10**9  #: retries


@final
class RetryBudget:
    """How many retries a client may make, over all its calls: so that they cannot turn an overload into an outage.

    Each first attempt adds `ratio` to it (0 to 1), each retry takes 1, and it never holds more than `reserve`, with
    which it begins: in any time, at most `ratio` times the first attempts, and `reserve` more. Thread-safe. One for
    each lane that is called.
    """

    def __init__(self, *, ratio: float = 0.1, reserve: int = 10) -> None:
        with reading("RetryBudget.ratio", TypeError):
            plain = real_number(ratio)
        with reading("RetryBudget.reserve", TypeError):
            most = whole_number(reserve)
        if plain is None or most is None:
            name, value = ("ratio", ratio) if plain is None else ("reserve", reserve)
            raise TypeError(f"RetryBudget.{name} must be a number, not {short(value)}")
        if not 0.0 <= plain <= 1.0 or not 0 <= most <= RESERVE_MOST:
            given = f"RetryBudget(ratio={short(ratio)}, reserve={short(reserve)})"
            raise ValueError(f"{given}: give 0 to 1, and 0 to {RESERVE_MOST}")
        self._ratio, self._most, self._left = plain, float(most), float(most)
        self._counting = threading.RLock()  # a signal's handler may call, too

    @property
    def left(self) -> float:
        """Retries that it holds now."""
        return self._left

    def _first(self) -> None:
        with self._counting:
            self._left = min(self._most, self._left + self._ratio) if self._most else 0.0

    def _retry(self) -> bool:
        """Take one. False: there is none left."""
        with self._counting:
            if self._left < 1.0 - 1e-9:  # ten tenths are one
                return False
            self._left -= 1.0
            return True

    def __repr__(self) -> str:
        return f"<RetryBudget {self._left:.1f} of {self._most:g}>"


SHARED = RetryBudget()  #: of all calls that bring none of their own


@frozen
class Policy:
    """When to try again; tenacity's `before`, `wait` and `stop`. It keeps nothing: the state is that of a call."""

    total: float | None
    attempts: int | None
    budget: RetryBudget
    backoff: Callable[[RetryCallState], float]
    sleep: Sleep | None
    clock: Callable[[], float]

    def before(self, state: RetryCallState) -> None:
        if state.attempt_number == 1:
            state.start_time = self.clock()
            self.budget._first()

    def wait(self, state: RetryCallState) -> float:
        """At least what the error says, and something random on top."""
        state.outcome_timestamp = self.clock()
        error = None if state.outcome is None else state.outcome.exception()
        return (getattr(error, "retry_after_s", None) or 0.0) + max(0.0, float(self.backoff(state)))

    def __call__(self, state: RetryCallState) -> bool:
        """Whether to stop. The budget is asked last: what it gives is used."""
        if self.attempts is not None and state.attempt_number >= self.attempts:
            return True
        if (left := self.left_s(state)) is not None and state.upcoming_sleep >= left:
            return True
        if self.budget._retry():
            return False
        if state.outcome is not None and (error := state.outcome.exception()) is not None:
            error.add_note(f"not tried again: the RetryBudget is used up ({self.budget})")
        return True

    def left_s(self, state: RetryCallState) -> float | None:
        return None if self.total is None else max(0.0, state.start_time + self.total - self.clock())

    async def asleep(self, seconds_: float) -> None:
        assert self.sleep is not None
        slept = self.sleep(seconds_)
        if inspect.isawaitable(slept):
            await slept


@final
class Attempt(AttemptManager):
    """One try, in `with`: what it raises is looked at, and raised if it is not tried again."""

    @property
    def number(self) -> int:
        """From 1."""
        return self.retry_state.attempt_number

    @property
    def remaining_s(self) -> float | None:
        """Seconds that are left of `total`; None: there is no such bound."""
        policy: object = self.retry_state.retry_object.stop
        return policy.left_s(self.retry_state) if isinstance(policy, Policy) else None


@final
class Retrying(tenacity.Retrying):
    """tenacity's, for coroutines too."""

    def __iter__(self) -> Generator[Attempt, None, None]:
        for attempt in super().__iter__():
            yield Attempt(attempt.retry_state)

    async def __aiter__(self) -> AsyncIterator[Attempt]:
        async for attempt in self._for_coroutines():
            yield Attempt(attempt.retry_state)

    def __call__(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if _is_coroutine_function(fn):
            awaited: Any = fn
            return self._for_coroutines()(awaited, *args, **kwargs)  # type: ignore[return-value]
        return super().__call__(fn, *args, **kwargs)

    def wraps(self, f: F) -> Any:
        """Decorate a function or a coroutine function."""
        return self._for_coroutines().wraps(f) if _is_coroutine_function(f) else super().wraps(f)

    def _for_coroutines(self) -> AsyncRetrying:
        names = ("stop", "wait", "retry", "before", "after", "before_sleep", "reraise")
        same: dict[str, Any] = {name: getattr(self, name) for name in names}
        if isinstance(self.stop, Policy) and self.stop.sleep is not None:
            same["sleep"] = self.stop.asleep
        return AsyncRetrying(**same)


def retrying(
    *,
    total: Seconds = None,
    attempts: int | None = None,
    budget: RetryBudget | None = None,
    wait: Callable[[RetryCallState], float] | None = None,
    before_sleep: Callable[[RetryCallState], None] | None = None,
    sleep: Callable[[float], Awaitable[None] | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Retrying:
    """A `tenacity.Retrying` that tries again what can succeed later, when it may, and not more often than is good.

        for attempt in boundedgen.retrying(total=30):
            with attempt:
                answer = pipeline.generate("…", bounds=Bounds(total=attempt.remaining_s))

    Also `async for`, `retrying(…)(function, *arguments)`, which awaits what a coroutine function gives, and
    `@retrying(…).wraps`. Only errors of this library with `retryable` are tried again; every other one, and the last
    one, is raised as it is. `attempt.number` counts from 1; `attempt.remaining_s` is what is left of `total`.

    - `total`: seconds or a timedelta from the first attempt: no wait begins that would end later. It does not end an
      attempt that is under way: give it `bounds`. None: no such bound.
    - `attempts`: at most so many, the first one included; None: no such bound, or 3 if there is no `total` either.
    - `budget`: a RetryBudget that calls share. None: one that all calls share that bring none. An error that is not
      tried again since it is used up has a note (PEP 678) that says so.
    - `wait`: a tenacity strategy; its seconds come on top of the error's `retry_after_s`, so that clients do not come
      back in step. None: `wait_random_exponential(multiplier=0.2, max=10)`.
    - `before_sleep`: called with tenacity's state before each wait, for a log.
    - `sleep`, `clock`: for tests: waits for so many seconds (or returns an awaitable that does), and monotonic seconds.
    """
    with reading("attempts", TypeError):
        most = None if attempts is None else whole_number(attempts)
    if attempts is not None and most is None:
        raise TypeError(f"attempts must be a whole number or None, not {short(attempts)}")
    if most is not None and most < 1:
        raise ValueError(f"attempts is {short(attempts)}; give 1 or more, or None")
    if budget is not None and not isinstance(budget, RetryBudget):
        raise TypeError(f"budget must be a RetryBudget, not {kind_of(budget)}")
    for name, function in (("wait", wait), ("before_sleep", before_sleep), ("sleep", sleep), ("clock", clock)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {kind_of(function)}")
    within = seconds("total", total)
    policy = Policy(
        total=within,
        attempts=ATTEMPTS if most is None and within is None else most,
        budget=SHARED if budget is None else budget,
        backoff=wait_random_exponential(multiplier=0.2, max=10) if wait is None else wait,
        sleep=sleep,
        clock=clock,
    )
    return Retrying(
        sleep=tenacity.sleep if sleep is None else sleep,  # type: ignore[arg-type]
        retry=tenacity.retry_if_exception(_may_succeed_later),
        before=policy.before,
        wait=policy.wait,
        stop=policy,
        before_sleep=before_sleep,
        reraise=True,
    )


def _is_coroutine_function(function: Any) -> bool:
    """Also an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


def _may_succeed_later(error: BaseException) -> bool:
    return isinstance(error, BoundedGenError) and error.retryable
