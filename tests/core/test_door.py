"""Places at the door: never more out than there are, whatever threads do."""

import threading
from collections import deque

from boundedgen import Limits
from boundedgen._bell import Bell
from boundedgen._door import Count, Door, Place, Rejections


def share(door: Door, owner: str) -> Place | None:
    """Taken; None: there is none."""
    place = door.share(owner)
    assert place is not None
    return place if place.take() else None


def test_there_are_as_many_places_as_said_and_one_given_back_can_be_taken_again() -> None:
    door = Door(Limits(waiting_max=2))
    first, second, third = door.queue(), door.queue(), door.queue()
    assert first.take()
    assert second.take()
    assert not third.take()
    first.back()
    first.back()
    assert third.take()
    assert not first.take()


def test_a_place_goes_back_with_its_last_reference_and_only_once() -> None:
    home = deque(range(2))
    kept, lost = Place(home), Place(home)
    assert kept.take()
    assert lost.take()
    del lost
    assert len(home) == 1
    kept.back()
    del kept
    assert len(home) == 2
    Place(home)  # never taken
    assert len(home) == 2


def test_one_owner_s_shares_are_nobody_else_s() -> None:
    door = Door(Limits(owner_max=1))
    mine = share(door, "me")
    assert mine is not None
    assert share(door, "me") is None
    assert share(door, "you") is not None
    mine.back()
    assert share(door, "me") is not None


def test_without_a_limit_no_owner_needs_a_share() -> None:
    assert Door(Limits()).share("me") is None


def test_owners_that_hold_nothing_are_forgotten_and_those_that_do_are_not() -> None:
    door = Door(Limits(owner_max=2, owners_tracked=10))
    held = share(door, "holds on")
    assert held is not None
    for n in range(1000):
        place = share(door, f"owner {n}")
        assert place is not None
        place.back()
    assert len(door._owners) <= 12
    other = share(door, "holds on")
    assert other is not None
    assert share(door, "holds on") is None, "two of two, not two on top of the one"


def test_threads_that_fight_for_places_never_have_more_than_there_are() -> None:
    places: deque[int] = deque(range(3))
    inside, most, got = [0], [0], [0]
    counting = threading.Lock()

    def fight() -> None:
        for _ in range(2000):
            place = Place(places)
            if not place.take():
                continue
            with counting:
                inside[0] += 1
                got[0] += 1
                most[0] = max(most[0], inside[0])
            with counting:
                inside[0] -= 1
            place.back()

    threads = [threading.Thread(target=fight) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most[0] <= 3
    assert got[0] > 0
    assert len(places) == 3


def test_refusals_are_counted_by_error() -> None:
    rejections = Rejections()
    for error in (ValueError(), KeyError(), ValueError()):
        rejections.add(error)
    assert rejections.by_error() == {"ValueError": 2, "KeyError": 1}


def test_a_bell_that_is_closed_is_never_written_to() -> None:
    """Its number is another file's at once; a ring that went there would be found in it."""
    import os

    for _ in range(100):
        bell = Bell()
        rung = threading.Barrier(3)

        def ring(bell: Bell = bell, rung: threading.Barrier = rung) -> None:
            rung.wait()
            while bell.ring():
                pass

        ringers = [threading.Thread(target=ring) for _ in range(2)]
        for ringer in ringers:
            ringer.start()
        rung.wait()
        bell.heed()
        bell.close()
        other = os.eventfd(0, os.EFD_NONBLOCK)
        try:
            assert other == bell.fd, "the number is used again"
            for ringer in ringers:
                ringer.join(10)
            try:
                found = os.eventfd_read(other)
            except BlockingIOError:
                found = 0
            assert found == 0
        finally:
            os.close(other)


def test_a_count_loses_none_of_any_number_of_threads() -> None:
    count = Count()

    def adds() -> None:
        for _ in range(20_000):
            count.add()

    threads = [threading.Thread(target=adds) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (count.total, count.total) == (80_000, 80_000)
