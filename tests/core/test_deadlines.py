"""The agenda against a dictionary that is searched, the ready clock against an integral."""

import math
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from boundedgen._core import _deadlines
from boundedgen._core._deadlines import Agenda, ReadyClock

keys = st.integers(0, 5)
instants = st.integers(0, 20).map(float)
sets = st.tuples(st.just("set"), keys, st.none() | instants | st.just(math.inf))
looks = st.tuples(st.just("due"), instants, st.just(0))


@given(st.lists(sets | sets | looks, max_size=60), st.sampled_from([0, _deadlines.SLACK]))
def test_the_agenda_gives_what_a_search_of_all_would(script: list[tuple[str, float, float | None]], slack: int) -> None:
    with mock.patch.object(_deadlines, "SLACK", slack):
        _compare(script)


def _compare(script: list[tuple[str, float, float | None]]) -> None:
    agenda: Agenda[float] = Agenda()
    model: dict[float, float] = {}
    for what, first, second in script:
        if what == "set":
            agenda.set(first, second)
            model.pop(first, None)
            if second is not None:
                model[first] = second
        else:
            gone = sorted((at, key) for key, at in model.items() if at <= first)
            given_out = [(model[key], key) for key in agenda.due(first)]
            assert [at for at, _ in given_out] == [at for at, _ in gone], "earliest first"
            assert sorted(given_out) == gone
            for _, key in gone:
                del model[key]
        finite = [at for at in model.values() if at < math.inf]
        earliest = agenda.earliest()
        assert (None if earliest == math.inf else earliest) == min(finite, default=None)
        assert len(agenda) == len(model)


def test_keys_that_are_due_at_once_come_as_they_were_set_and_need_no_order_of_their_own() -> None:
    agenda: Agenda[object] = Agenda()
    keys = [object() for _ in range(9)]
    for key in keys:
        agenda.set(key, 1.0)
    assert list(agenda.due(1.0)) == keys


def test_moving_an_instant_later_enters_nothing() -> None:
    agenda: Agenda[str] = Agenda()
    for at in range(50):
        agenda.set("key", float(at))
    assert len(agenda._heap) == 1
    assert agenda.earliest() == 49.0


def test_a_key_that_moved_later_is_due_then_and_once() -> None:
    agenda: Agenda[str] = Agenda()
    for at in (1.0, 5.0, 3.0, 7.0):
        agenda.set("key", at)
    assert list(agenda.due(6.999)) == []
    assert agenda.earliest() == 7.0
    assert list(agenda.due(7.0)) == ["key"]
    assert list(agenda.due(100.0)) == []


def test_an_instant_that_moves_earlier_is_entered_also_after_what_is_gone_was_forgotten() -> None:
    agenda: Agenda[object] = Agenda()
    agenda.set("first", 0.0)
    for at in (5.0, 9.0):
        agenda.set("key", at)
    for number in range(_deadlines.SLACK + 20):
        agenda.set(number, 100.0)
        agenda.set(number, None)
    assert len(agenda._heap) < _deadlines.SLACK
    agenda.set("key", 6.0)
    assert list(agenda.due(6.0)) == ["first", "key"]


def test_a_key_that_was_removed_and_set_again_is_due_at_its_new_instant() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.set("key", 1.0)
    agenda.set("key", None)
    agenda.set("key", 4.0)
    assert list(agenda.due(3.0)) == []
    assert list(agenda.due(4.0)) == ["key"]


def test_an_agenda_of_which_everything_was_removed_keeps_little() -> None:
    agenda: Agenda[int] = Agenda()
    for key in range(20_000):
        agenda.set(key, 1e6 + key)
        agenda.set(key, None)
    assert len(agenda) == 0
    assert len(agenda._heap) < 500, "a long deadline of a short generation is not kept until it would have been due"
    assert len(agenda._entered) < 500


spans = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=8)


@given(spans, st.floats(0.0, 1e6))
def test_the_ready_clock_counts_only_the_time_it_runs(lengths: list[float], start: float) -> None:
    clock, now, ran = ReadyClock(), start, 0.0
    before = clock.at(now)
    for n, length in enumerate(lengths):
        if n % 2:
            clock.stand(now)
            now += length
            clock.run(now)
        else:
            now += length
            ran += length
    assert math.isclose(clock.at(now) - before, ran, rel_tol=1e-9, abs_tol=1e-6)


@given(spans, st.floats(0.0, 1e6), st.floats(0.0, 10.0))
def test_the_instant_of_a_reading_shows_that_reading(lengths: list[float], start: float, ahead: float) -> None:
    clock, now = ReadyClock(), start
    for length in lengths:
        clock.stand(now)
        clock.run(now + length)
        now += 2 * length
    reading = clock.at(now) + ahead
    instant = clock.instant(reading)
    assert instant is not None
    assert clock.at(instant) >= reading, "a wake-up there finds it due"
    assert instant - now <= ahead + 1e-6, "and it is not late"


def test_standing_still_it_has_no_instant_and_one_reading() -> None:
    clock = ReadyClock()
    clock.stand(10.0)
    assert not clock.running
    assert clock.instant(11.0) is None
    assert clock.at(10.0) == clock.at(99.0) == 10.0
    assert clock.at(7.0) == 7.0


def test_an_instant_before_or_inside_the_last_standstill_is_read_as_it_was_then() -> None:
    clock = ReadyClock()
    clock.stand(10.0)
    clock.run(25.0)
    assert clock.at(8.0) == 8.0
    assert clock.at(12.0) == clock.at(25.0) == 10.0
    assert clock.at(26.0) == 11.0


def test_standing_twice_and_running_twice_count_once() -> None:
    clock = ReadyClock()
    clock.stand(10.0)
    clock.stand(12.0)
    clock.run(20.0)
    clock.run(30.0)
    assert clock.at(30.0) == 20.0
