"""Every cause is due at its budget and not before; what is slow and legal never is."""

from collections.abc import Callable

import pytest

from boundedgen._bounds import Limits
from boundedgen._core._events import Cause, Progress, Pulse, Release
from boundedgen._core._pace import FIRST_STEPS
from boundedgen._core._watch import ACK_STEPS, LOOK, PARTING, Watch

LIMITS = Limits(
    boot=100.0, first_step=40.0, new_shape=0.0, step=10.0, step_per_token=0.5, step_per_attention=0.25,
    step_max=30.0, progress=6.0, ack=3.0, reclaim=2.0, reclaim_steps=3,
)  # fmt: skip
NOW = 1000.0
TINY = 1e-6


def up() -> Watch:
    watch = Watch(LIMITS)
    watch.boot(NOW)
    watch.ready()
    return watch


def progress(steps: int, ended: float, *, scheduled: int = 1, released: tuple[Release, ...] = ()) -> Progress:
    return Progress(1, steps, ended, ended, scheduled, 0.0, None, released=released)


def stepping(watch: Watch, steps: int, at: float, *, scheduled: int = 1) -> None:
    """`steps` more steps, of no length, all reported at `at`."""
    ended = watch.pulse.steps_ended + steps
    watch.looked(Pulse(ended, ended, at, at, watch.pulse.inside_s))
    watch.reported(progress(ended, at, scheduled=scheduled), at)


def in_step(watch: Watch, at: float, *, number: int = 10, scheduled: int = 0, attention: int = 0) -> None:
    watch.looked(Pulse(number, number - 1, at, watch.pulse.ended_at, watch.pulse.inside_s, scheduled, attention))


# --- one scene a cause: what was done at NOW, and when it is due -----------------------------------------------------


def booting() -> Watch:
    watch = Watch(LIMITS)
    watch.boot(NOW)
    return watch


def plain_step() -> Watch:
    watch = up()
    in_step(watch, NOW)
    return watch


def prefill() -> Watch:
    watch = up()
    in_step(watch, NOW, scheduled=20, attention=12)
    return watch


def huge_prefill() -> Watch:
    watch = up()
    in_step(watch, NOW, scheduled=10_000, attention=10_000)
    return watch


def first_step() -> Watch:
    watch = up()
    in_step(watch, NOW, number=FIRST_STEPS)
    return watch


def first_step_with_a_huge_prefill() -> Watch:
    watch = up()
    in_step(watch, NOW, number=1, scheduled=10_000)
    return watch


def untaken_command() -> Watch:
    watch = up()
    watch.ordered("admit", 7, NOW)
    return watch


def unreleased() -> Watch:
    watch = up()
    watch.reclaiming(7, 0, NOW)
    return watch


def idle_with_work() -> Watch:
    watch = up()
    watch.holding(True, NOW)
    return watch


SCENES: list[tuple[Callable[[], Watch], Cause, float]] = [
    (booting, Cause.BOOT, 100.0),
    (plain_step, Cause.STEP, 10.0),
    (prefill, Cause.STEP, 10.0 + 20 * 0.5 + 12 * 0.25),
    (huge_prefill, Cause.STEP, 30.0),
    (first_step, Cause.STEP, 10.0 + 40.0),
    (first_step_with_a_huge_prefill, Cause.STEP, 30.0 + 40.0),
    (untaken_command, Cause.ACK, 3.0),
    (unreleased, Cause.RECLAIM, 2.0),
    (idle_with_work, Cause.PROGRESS, 6.0),
]


@pytest.mark.parametrize(("scene", "cause", "budget"), SCENES)
def test_a_cause_is_due_at_its_budget_and_not_before(scene: Callable[[], Watch], cause: Cause, budget: float) -> None:
    watch = scene()
    assert watch.verdict(NOW + budget - TINY) is None
    verdict = watch.verdict(NOW + budget)
    assert verdict is not None
    assert verdict[0] is cause
    assert verdict[1], "in words"


@pytest.mark.parametrize(("scene", "cause", "budget"), SCENES)
def test_the_next_look_is_at_the_budget_or_a_second_ahead(
    scene: Callable[[], Watch], cause: Cause, budget: float
) -> None:
    watch = scene()
    early = watch.next(NOW)
    assert early is not None
    assert early <= NOW + LOOK
    late = watch.next(NOW + budget - 0.25)
    assert late == pytest.approx(NOW + budget)
    assert watch.next(NOW + budget + 5) == NOW + budget + 5, "never in the past"


@pytest.mark.parametrize(("scene", "cause", "budget"), SCENES)
def test_time_in_which_the_driver_stood_still_is_not_counted_and_what_was_known_before_stays_known(
    scene: Callable[[], Watch], cause: Cause, budget: float
) -> None:
    watch = scene()
    standstills = [(NOW + 0.25, NOW + 500.0), (NOW + 500.5, NOW + 501.5), (NOW + 502.0, NOW + 504.0)]
    for since, woke in standstills:
        watch.looked(watch.pulse)
        watch.woke(since, woke)
        assert watch.verdict(woke) is None
    due = NOW + budget + sum(woke - since for since, woke in standstills)
    assert watch.verdict(due - TINY) is None
    verdict = watch.verdict(due + TINY)
    assert verdict is not None
    assert verdict[0] is cause


def test_a_step_that_began_while_the_driver_stood_still_is_judged_from_its_wake() -> None:
    watch = up()
    watch.holding(True, NOW)
    in_step(watch, NOW + 100)
    watch.woke(NOW, NOW + 300)
    assert watch.verdict(NOW + 310 - TINY) is None
    assert watch.verdict(NOW + 310) is not None


def test_time_outside_of_steps_is_lost_only_as_far_as_the_driver_stood_still() -> None:
    watch = up()
    watch.ordered("admit", 1, NOW)
    watch.looked(Pulse(1, 0, NOW + 1, NOW))  # one second outside
    watch.looked(Pulse(1, 1, NOW + 1, NOW + 91, 90.0))  # a step of 90 seconds; 9 outside by now, unwatched
    watch.woke(NOW + 1, NOW + 100)
    assert watch.verdict(NOW + 102 - TINY) is None
    verdict = watch.verdict(NOW + 102 + TINY)
    assert verdict is not None
    assert verdict[0] is Cause.ACK


def test_standstills_that_nobody_can_ask_for_any_more_are_forgotten() -> None:
    watch = up()
    for at in range(1000):
        watch.looked(Pulse(at, at, NOW + 10 * at, NOW + 10 * at))
        watch.holding(False, NOW + 10 * at)
        watch.holding(True, NOW + 10 * at)
        watch.woke(NOW + 10 * at, NOW + 10 * at + 5)
    assert len(watch._stood._spans) <= 2
    assert len(watch._stood_outside._spans) <= 2


# --- what could not have been read -----------------------------------------------------------------------------------


def test_a_command_that_the_pipe_takes_bit_by_bit_is_overdue_only_when_it_takes_no_more() -> None:
    watch = up()
    watch.ordered("admit", 1, NOW)
    for at in range(1, 20):
        stepping(watch, ACK_STEPS, NOW + at)
        watch.under_way([("admit", 1), ("stop", 2), ("", 0)], NOW + at)
        assert watch.verdict(NOW + at + LIMITS.ack - TINY) is None
    verdict = watch.verdict(NOW + 19 + LIMITS.ack)
    assert verdict is not None
    assert verdict[0] is Cause.ACK


def test_an_engine_whose_reports_have_ended_has_a_moment_to_leave() -> None:
    for watch in (up(), booting()):
        watch.cut(NOW)
        assert watch.verdict(NOW + PARTING - TINY) is None
        verdict = watch.verdict(NOW + PARTING)
        assert verdict is not None
        assert verdict[0] is Cause.WIRE
        watch.boot(NOW + PARTING)
        assert watch.verdict(NOW + PARTING) is None


@pytest.mark.parametrize(("scene", "cause", "budget"), SCENES)
def test_nothing_is_expected_of_an_engine_that_is_over(scene: Callable[[], Watch], cause: Cause, budget: float) -> None:
    watch = scene()
    watch.over()
    assert watch.verdict(NOW + 1000 * budget) is None
    assert watch.next(NOW) is None


@pytest.mark.parametrize(("scene", "cause", "budget"), SCENES)
def test_a_new_incarnation_inherits_no_blame(scene: Callable[[], Watch], cause: Cause, budget: float) -> None:
    watch = scene()
    watch.boot(NOW + budget + 1)
    assert watch.verdict(NOW + budget + 1) is None


def test_an_idle_engine_is_never_overdue() -> None:
    watch = up()
    assert watch.verdict(NOW + 1e6) is None
    assert watch.next(NOW) is None


# --- what is slow and legal ------------------------------------------------------------------------------------------


def test_a_long_step_within_its_budget_is_no_cause_for_anything() -> None:
    watch = up()
    watch.holding(True, NOW)
    watch.ordered("admit", 1, NOW)
    watch.ordered("stop", 2, NOW)
    watch.reclaiming(3, 0, NOW)
    in_step(watch, NOW, scheduled=40)
    for at in range(30):
        assert watch.verdict(NOW + at - TINY) is None, at
    verdict = watch.verdict(NOW + 30.0)
    assert verdict is not None
    assert verdict[0] is Cause.STEP


def test_time_inside_of_steps_does_not_count_against_a_command() -> None:
    watch = up()
    watch.looked(Pulse(10, 10, NOW, NOW))
    watch.ordered("admit", 1, NOW)
    watch.reclaiming(2, 10, NOW)
    in_step(watch, NOW + 1, number=11)
    assert watch.verdict(NOW + 10) is None
    watch.looked(Pulse(11, 11, NOW + 1, NOW + 10, 9.0))  # nine seconds inside; one outside so far
    assert watch.verdict(NOW + 10 + 1 - TINY) is None
    verdict = watch.verdict(NOW + 10 + 1 + TINY)
    assert verdict is not None
    assert verdict[0] is Cause.RECLAIM, "two seconds outside of steps"


def test_a_command_that_is_sent_during_a_step_waits_from_its_end() -> None:
    watch = up()
    in_step(watch, NOW, number=11)
    watch.ordered("admit", 1, NOW + 4)
    watch.looked(Pulse(11, 11, NOW, NOW + 5, 5.0))
    assert watch.verdict(NOW + 5 + LIMITS.ack - TINY) is None
    verdict = watch.verdict(NOW + 5 + LIMITS.ack + TINY)
    assert verdict is not None
    assert verdict[0] is Cause.ACK


def test_taken_commands_are_forgotten() -> None:
    watch = up()
    watch.ordered("admit", 1, NOW)
    watch.ordered("stop", 2, NOW)
    watch.taken("admit", 1)
    watch.gone(2)
    assert watch.verdict(NOW + 1000) is None


def test_a_stay_that_is_gone_is_no_longer_to_be_released() -> None:
    watch = up()
    watch.reclaiming(1, 0, NOW)
    watch.gone(1)
    assert watch.verdict(NOW + 1000) is None


def test_hearing_of_a_stop_again_does_not_start_its_clock_again() -> None:
    watch = up()
    watch.reclaiming(1, 0, NOW)
    watch.reclaiming(1, 5, NOW + 1.5)
    verdict = watch.verdict(NOW + 2.0)
    assert verdict is not None
    assert verdict[0] is Cause.RECLAIM


# --- by steps --------------------------------------------------------------------------------------------------------


def test_a_command_is_overdue_after_whole_steps_only_when_its_time_is_up_too() -> None:
    watch = up()
    watch.ordered("admit", 1, NOW)
    watch.looked(watch.pulse)
    stepping(watch, ACK_STEPS, NOW + 0.1)
    in_step(watch, NOW + 0.1, number=50)  # steps all the time: there is no time outside
    assert watch.verdict(NOW + 3 - TINY) is None
    verdict = watch.verdict(NOW + 3)
    assert verdict is not None
    assert verdict[0] is Cause.ACK


def test_steps_that_had_begun_before_a_command_was_sent_are_no_evidence_against_it() -> None:
    """Their reports come after it; then a long prompt begins, which is judged by its own budget."""
    watch = up()
    watch.ordered("admit", 1, NOW)
    watch.looked(Pulse(ACK_STEPS + 1, ACK_STEPS, NOW + 0.01, NOW, 0.0))  # the reports of four are on their way
    watch.reported(progress(ACK_STEPS, NOW), NOW + 0.02)
    assert watch.verdict(NOW + LIMITS.ack + 1) is None


def test_fewer_steps_than_that_are_patiently_waited_for() -> None:
    watch = up()
    watch.ordered("admit", 1, NOW)
    watch.looked(watch.pulse)
    stepping(watch, ACK_STEPS - 1, NOW + 0.1)
    in_step(watch, NOW + 9, number=50)
    assert watch.verdict(NOW + 10) is None


def test_a_stay_is_overdue_with_the_report_of_its_last_legal_step() -> None:
    watch = up()
    stepping(watch, 5, NOW)
    watch.reclaiming(1, 5, NOW)
    stepping(watch, 2, NOW + 0.1)
    assert watch.verdict(NOW + 0.1) is None
    stepping(watch, 1, NOW + 0.2)
    verdict = watch.verdict(NOW + 0.2)
    assert verdict is not None
    assert verdict[0] is Cause.RECLAIM


def test_steps_that_do_nothing_are_no_progress() -> None:
    watch = up()
    watch.holding(True, NOW)
    at = NOW
    while at < NOW + 6:
        assert watch.verdict(at) is None
        at += 0.5
        stepping(watch, 1, at, scheduled=0)
    at += 0.5
    stepping(watch, 1, at, scheduled=0)
    verdict = watch.verdict(at)
    assert verdict is not None
    assert verdict[0] is Cause.PROGRESS


@pytest.mark.parametrize("sign", ["scheduled", "released", "taken"])
def test_a_scheduled_token_a_release_or_a_taken_admission_is_progress(sign: str) -> None:
    watch = up()
    watch.holding(True, NOW)
    for n in range(1, 40):
        at = NOW + n
        released = (Release(1, 1, 0.0, 0),) if sign == "released" else ()
        report = Progress(
            1, n, at, at, int(sign == "scheduled"), 0.0, None, released=released, taken=(1,) if sign == "taken" else ()
        )
        watch.looked(Pulse(n, n, at, at))
        watch.reported(report, at)
        assert watch.verdict(at) is None


def test_a_step_whose_report_is_still_on_its_way_is_no_standstill() -> None:
    watch = up()
    watch.holding(True, NOW)
    watch.looked(Pulse(10, 10, NOW + 5, NOW + 9, 4.0))  # it has ended, and nothing has been heard of it
    assert watch.verdict(NOW + 9) is None
    assert watch.verdict(NOW + 9 + 6 - TINY) is None


def test_progress_is_expected_only_while_the_engine_holds_something() -> None:
    watch = up()
    watch.holding(True, NOW)
    watch.holding(False, NOW + 1)
    assert watch.verdict(NOW + 100) is None
    watch.holding(True, NOW + 200)
    assert watch.verdict(NOW + 206 - TINY) is None
    assert watch.verdict(NOW + 206) is not None


def test_work_that_comes_after_a_long_rest_starts_with_a_fresh_clock() -> None:
    watch = up()
    stepping(watch, 5, NOW)
    watch.holding(True, NOW + 500)
    assert watch.verdict(NOW + 501) is None


def test_of_several_that_are_overdue_the_one_that_was_first_is_named() -> None:
    watch = up()
    watch.holding(True, NOW)
    watch.ordered("admit", 1, NOW)
    watch.reclaiming(2, 0, NOW)
    verdict = watch.verdict(NOW + 50)
    assert verdict is not None
    assert verdict[0] is Cause.RECLAIM
