"""Step stamps that are written while they are read."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from boundedgen._core._events import Pulse
from boundedgen._engine import _stamps
from boundedgen._engine._stamps import StampReader, StampWriter


@pytest.fixture
def page() -> Iterator[int]:
    fd = _stamps.create()
    yield fd
    os.close(fd)


def test_a_stamp_that_is_written_over_while_it_is_read_is_read_again(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader, slot = StampWriter(page), StampReader(page), _stamps._SLOT

    class WrittenOver:
        """The writer begins and ends a step just when the reader has looked at the newest slot."""

        pack_into = slot.pack_into

        def unpack_from(self, *place: Any) -> tuple[Any, ...]:
            monkeypatch.setattr(_stamps, "_SLOT", slot)
            fields = slot.unpack_from(*place)
            writer.end(2.0)
            writer.begin(3.0, 7, 8)
            return fields

    writer.begin(1.0, 5, 6)
    monkeypatch.setattr(_stamps, "_SLOT", WrittenOver())
    pulse = reader.read()
    assert (pulse.steps_begun, pulse.begun_at, pulse.inside_s, pulse.scheduled) == (2, 3.0, 1.0, 7)


def test_a_writer_that_is_killed_in_the_middle_leaves_the_last_stamp_whole(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader, slot = StampWriter(page), StampReader(page), _stamps._SLOT

    class Killed:
        unpack_from = slot.unpack_from

        def pack_into(self, buffer: Any, at: int, *fields: Any) -> None:
            slot.pack_into(buffer, at, *(0 for _ in fields))  # half of it, say
            raise KeyboardInterrupt

    writer.begin(1.0, 5, 6)
    monkeypatch.setattr(_stamps, "_SLOT", Killed())
    with pytest.raises(KeyboardInterrupt):
        writer.end(2.0)
    pulse = reader.read()
    assert (pulse.steps_begun, pulse.steps_ended, pulse.begun_at, pulse.scheduled) == (1, 0, 1.0, 5)


def test_what_has_not_changed_is_not_read_again_and_what_has_is(page: int) -> None:
    writer, reader = StampWriter(page), StampReader(page)
    assert reader.read() == Pulse()
    writer.begin(1.0, 5, 6)
    first = reader.read()
    assert reader.read() is first
    writer.end(2.0)
    assert (reader.read().steps_ended, reader.read().ended_at) == (1, 2.0)
