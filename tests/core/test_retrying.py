"""`retrying`: only what can succeed later, not before it may, within the caller's own time, and seldom enough."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
import tenacity

import boundedgen as b
from boundedgen import Bounds, Limits, RetryBudget, Saturated, retrying
from boundedgen._retrying import SHARED
from boundedgen.testing import SimModel, Simulation


class Caller:
    """A virtual clock, and something that fails in order. `took`: seconds of each attempt."""

    def __init__(self, *errors: BaseException | None, took: float = 0.0) -> None:
        self.now, self.slept, self.calls, self.took = 100.0, [], 0, took  # type: ignore[var-annotated]
        self._errors = list(errors)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> str:
        self.calls += 1
        self.now += self.took
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return "answer"

    def retrying(self, **arguments: Any) -> Any:
        given = {"budget": RetryBudget(), "sleep": self.sleep, "clock": lambda: self.now, **arguments}
        return retrying(**given)

    def call(self, **arguments: Any) -> str:
        for attempt in self.retrying(**arguments):
            with attempt:
                return self()
        raise AssertionError("neither an answer nor an error")


def saturated(seconds: float = 1.0) -> Saturated:
    return Saturated("full", retry_after_s=seconds)


def test_what_can_succeed_later_is_tried_again_and_not_before_it_may() -> None:
    caller = Caller(saturated(2.0), b.EngineLost("died"), saturated(5.0))
    assert caller.call(attempts=9) == "answer"
    assert caller.calls == 4
    assert 2.0 <= caller.slept[0] < 2.3
    assert 0.0 <= caller.slept[1] < 0.5
    assert 5.0 <= caller.slept[2] < 6.0


def test_clients_do_not_come_back_in_step() -> None:
    waits = set()
    for _ in range(50):
        caller = Caller(saturated(2.0))
        caller.call(total=30)
        waits.add(caller.slept[0])
    assert len(waits) > 40


@pytest.mark.parametrize(
    "error",
    [
        b.InvalidRequest("no"),
        b.GenerationCancelled("superseded"),
        b.DeadlineExceeded("late", deadline=b.Deadline(1.0, "total")),
        ValueError("not ours"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_else_is_raised_at_once_as_it_is(error: BaseException) -> None:
    caller = Caller(error)
    with pytest.raises(type(error)) as caught:
        caller.call(total=30)
    assert caught.value is error
    assert caller.calls == 1


def test_a_deadline_that_passed_in_the_queue_can_be_tried_again() -> None:
    caller = Caller(b.DeadlineExceeded("late", deadline=b.Deadline(1.0, "queued")))
    assert caller.call(total=30) == "answer"


def test_no_wait_begins_that_would_end_after_the_total() -> None:
    caller = Caller(*(saturated(3.0) for _ in range(20)), took=1.0)
    with pytest.raises(Saturated):
        caller.call(total=10, wait=tenacity.wait_none())
    assert caller.slept == [3.0, 3.0]
    assert caller.now == 109.0


def test_the_last_error_is_raised_after_so_many_attempts() -> None:
    caller = Caller(*(saturated(float(n)) for n in range(1, 9)))
    with pytest.raises(Saturated) as caught:
        caller.call(attempts=3)
    assert caught.value.retry_after_s == 3.0
    assert caller.calls == 3
    with pytest.raises(Saturated):
        (again := Caller(*(saturated() for _ in range(9)))).call()
    assert again.calls == 3


def test_an_attempt_knows_its_number_and_what_is_left() -> None:
    caller, seen = Caller(saturated(4.0), took=1.0), []
    for attempt in caller.retrying(total=10, wait=tenacity.wait_none()):
        with attempt:
            seen.append((attempt.number, attempt.remaining_s))
            caller()
    assert seen == [(1, 10.0), (2, 5.0)]
    assert next(iter(caller.retrying(attempts=1))).remaining_s is None


def test_it_can_be_used_again_and_begins_anew() -> None:
    caller = Caller(saturated(4.0), None, saturated(4.0), None)
    again = caller.retrying(total=6)
    assert again(caller) == again(caller) == "answer"
    assert caller.calls == 4


# --- the budget ------------------------------------------------------------------------------------------------------


def test_retries_are_at_most_a_share_of_the_first_attempts_and_the_reserve() -> None:
    budget, calls, retries = RetryBudget(ratio=0.1, reserve=5), 400, 0
    for _ in range(calls):
        caller = Caller(*(saturated() for _ in range(50)))
        with pytest.raises(Saturated):
            caller.call(attempts=10, budget=budget)
        retries += caller.calls - 1
    assert 0.1 * calls <= retries <= 0.1 * calls + 5


def test_what_is_saved_up_is_at_most_the_reserve() -> None:
    budget = RetryBudget(ratio=0.5, reserve=2)
    for _ in range(100):
        Caller().call(budget=budget)
    caller = Caller(*(saturated() for _ in range(50)))
    with pytest.raises(Saturated):
        caller.call(attempts=10, budget=budget)
    assert caller.calls == 3
    assert budget.left < 1.0


def test_a_budget_of_nothing_allows_no_retry_and_one_that_is_not_used_is_not_taken_from() -> None:
    caller = Caller(saturated())
    with pytest.raises(Saturated):
        caller.call(total=30, budget=RetryBudget(ratio=1.0, reserve=0))
    kept = RetryBudget(reserve=3)
    with pytest.raises(Saturated):
        Caller(saturated(50.0)).call(total=30, budget=kept)
    assert kept.left == 3.0


def test_an_error_that_is_not_tried_again_for_want_of_budget_says_so() -> None:
    caller = Caller(*(saturated() for _ in range(5)))
    with pytest.raises(Saturated) as caught:
        caller.call(total=30, budget=RetryBudget(ratio=0.1, reserve=1))
    assert caller.calls == 2
    (note,) = caught.value.__notes__
    assert note == "not tried again: the RetryBudget is used up (<RetryBudget 0.0 of 1>)"
    with pytest.raises(Saturated) as caught:
        Caller(*(saturated() for _ in range(5))).call(attempts=2, budget=RetryBudget())
    assert not hasattr(caught.value, "__notes__"), "it was for another reason"


def test_calls_without_a_budget_share_one() -> None:
    before = SHARED.left
    Caller(saturated()).call(attempts=2, budget=None)
    assert SHARED.left < before
    for _ in range(20):
        Caller().call(budget=None)


# --- coroutines, decorators ------------------------------------------------------------------------------------------


def test_coroutines_are_retried_in_every_way() -> None:
    async def main() -> list[int]:
        counts = []
        for way in (loop, call, decorated):
            caller = Caller(saturated(2.0), saturated(2.0))

            async def asked(caller: Caller = caller) -> str:
                return caller()

            assert await way(caller, asked) == "answer"
            assert sum(caller.slept) >= 4.0
            counts.append(caller.calls)
        return counts

    async def loop(caller: Caller, asked: Callable[[], Any]) -> str:
        async for attempt in caller.retrying(total=30):
            with attempt:
                assert attempt.remaining_s <= 30.0
                return str(await asked())
        raise AssertionError

    async def call(caller: Caller, asked: Callable[[], Any]) -> str:
        return str(await caller.retrying(total=30)(asked))

    async def decorated(caller: Caller, asked: Callable[[], Any]) -> str:
        return str(await caller.retrying(total=30).wraps(asked)())

    assert asyncio.run(main()) == [3, 3, 3]


def test_a_function_can_be_decorated() -> None:
    caller = Caller(saturated(2.0))

    def asked(more: str) -> str:
        return caller() + more

    assert caller.retrying(total=30).wraps(asked)("!") == "answer!"
    assert caller.calls == 2


def test_an_object_that_is_called_like_a_coroutine_function_is_retried_like_one() -> None:
    caller = Caller(saturated(2.0))

    class Asked:
        async def __call__(self) -> str:
            await asyncio.sleep(0)
            return caller()

    async def main() -> str:
        return str(await caller.retrying(total=30)(Asked()))

    assert asyncio.run(main()) == "answer"
    assert caller.calls == 2


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"wait": 5}, TypeError),
        ({"before_sleep": "log"}, TypeError),
        ({"sleep": 0.1}, TypeError),
        ({"clock": 0.1}, TypeError),
        ({"attempts": 0}, ValueError),
        ({"attempts": 1.5}, TypeError),
        ({"total": "soon"}, TypeError),
        ({"total": float("nan")}, ValueError),
        ({"budget": 0.1}, TypeError),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        retrying(**arguments)
    for wrong in ({"ratio": 2}, {"ratio": "x"}, {"reserve": -1}, {"reserve": 1.5}, {"reserve": 10**400}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            RetryBudget(**wrong)


# --- against a lane --------------------------------------------------------------------------------------------------


def test_a_lane_that_is_full_for_a_while_answers_after_all_and_none_waits_beyond_its_time() -> None:
    limits, rng = Limits(running_max=1, waiting_max=3), random.Random(1)
    with Simulation(model=SimModel(step_s=0.1), limits=limits) as simulation:

        async def client(n: int) -> float:
            began = simulation.now
            await asyncio.sleep(rng.random())
            try:
                async for attempt in retrying(total=12, budget=RetryBudget(), clock=lambda: simulation.now):
                    with attempt:
                        bounds = Bounds(total=attempt.remaining_s)
                        await simulation.pipeline.agenerate(
                            [5], max_new_tokens=10, bounds=bounds, owner=f"o{n}", label="job", supersede=True
                        )
            except (Saturated, b.DeadlineExceeded):
                return began - simulation.now
            return simulation.now - began

        async def clients() -> list[float]:
            return await asyncio.gather(*(client(n) for n in range(12)))

        took = simulation.run(clients())
        assert max(map(abs, took)) <= 13.1
        assert sum(t > 0 for t in took) >= 8
        assert simulation.pipeline.stats().rejected_total["Saturated"] > 0
