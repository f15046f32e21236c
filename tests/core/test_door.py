"""Places at the door: never more out than there are, whatever threads do."""

import threading
from collections import deque

from boundedgen import Limits
from boundedgen._bell import Bell
from boundedgen._door import Door, Rejections, take


def test_there_are_as_many_places_as_said_and_one_given_back_can_be_taken_again() -> None:
    door = Door(Limits(waiting_max=2))
    first, second = door.place(), door.place()
    assert first is not None
    assert second is not None
    assert door.place() is None
    first()
    assert door.place() is not None
    assert door.place() is None


def test_one_owner_s_shares_are_nobody_else_s() -> None:
    door = Door(Limits(owner_max=1))
    mine = door.share("me")
    assert mine is not None
    assert door.share("me") is None
    assert door.share("you") is not None
    mine()
    assert door.share("me") is not None


def test_without_a_limit_every_owner_has_a_share() -> None:
    door = Door(Limits())
    assert all(door.share("me") is not None for _ in range(2000))


def test_owners_that_hold_nothing_are_forgotten_and_those_that_do_are_not() -> None:
    door = Door(Limits(owner_max=1, owners_tracked=10))
    held = door.share("holds on")
    for n in range(1000):
        give_back = door.share(f"owner {n}")
        assert give_back is not None
        give_back()
    assert len(door._owners) <= 12
    assert held is not None
    assert door.share("holds on") is None


def test_threads_that_fight_for_places_never_have_more_than_there_are() -> None:
    places: deque[int] = deque(range(3))
    inside, most, got = [0], [0], [0]
    counting = threading.Lock()

    def fight() -> None:
        for _ in range(2000):
            give_back = take(places)
            if give_back is None:
                continue
            with counting:
                inside[0] += 1
                got[0] += 1
                most[0] = max(most[0], inside[0])
            with counting:
                inside[0] -= 1
            give_back()

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
