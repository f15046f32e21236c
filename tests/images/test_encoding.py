"""Images on the way to the engine and the budget of its encoder, without an engine."""

from __future__ import annotations

import itertools
import os

import pytest
from attrs import evolve
from core.test_engine_loop import LATER, Child

from boundedgen import Limits
from boundedgen._core._encoding import EncodePace
from boundedgen._core._events import Cause, Pulse
from boundedgen._core._watch import Watch
from boundedgen._engine._commands import Commands
from boundedgen._engine._frames import Decoder, WireError
from boundedgen._engine._pixels import PIECE, Bulk, Intake, Pixels
from boundedgen._engine._stamps import StampReader, StampWriter, create
from boundedgen._engine._wire import Halt, decode, encode
from boundedgen.abc import Image, Request

LIMITS = Limits(encode=2.0, encode_per_pixel=0.001, encode_max=50.0, first_step=7.0)


def request(stay: int, *sizes: tuple[int, int]) -> Request:
    images = tuple(Image(h, w, bytes([at + 1]) * (3 * h * w)) for at, (h, w) in enumerate(sizes))
    return Request(stay, (), {"max_new_tokens": 1}, 9.0, 0, None, False, "text", images, 40)


# --- the wire ----------------------------------------------------------------------------------------------------


def test_a_request_and_its_images_arrive_whole_in_small_frames() -> None:
    asked, bulk, intake, decoder = request(7, (400, 300), (1, 2)), Bulk(), Intake(), Decoder(PIECE + 100)
    bulk.put(asked)
    words: list[Pixels | Request] = []
    while (word := bulk.next()) is not None:
        words.append(word)
    assert len(words) == 4  # two pieces, one, and the request
    arrived: object = None
    for word in words:
        (frame,) = decoder.feed(encode(word, 1))
        arrived = decode(frame)
        if isinstance(arrived, Pixels):
            intake.take(arrived)
    assert isinstance(arrived, Request)
    whole = intake.whole(arrived)
    assert [(i.height, i.width, bytes(i.data)) for i in whole.images] == [
        (i.height, i.width, i.data) for i in asked.images
    ]
    assert (whole.text, whole.prompt_tokens, whole.pixels) == ("text", 40, 120_002)


def test_bytes_that_are_missing_are_the_wire_s_end() -> None:
    intake = Intake()
    intake.take(Pixels(7, b"abc"))
    with pytest.raises(WireError):
        intake.whole(request(7, (2, 2)))


def test_the_next_images_wait_until_the_engine_has_answered() -> None:
    bulk = Bulk()
    for stay in (1, 2):
        bulk.put(request(stay, (2, 2)))
    assert [type(word) for word in iter(bulk.next, None)] == [Pixels, Request]
    assert bulk.waiting() == [2]
    bulk.heard(2)
    assert bulk.next() is None
    bulk.heard(1)
    assert isinstance(bulk.next(), Pixels)
    assert (bulk.waiting(), bulk.begun()) == ([], [2])


def test_what_is_called_off_comes_as_over_and_its_pixels_are_forgotten() -> None:
    bulk, intake = Bulk(), Intake()
    bulk.put(request(1, (400, 400)))
    first = bulk.next()
    assert isinstance(first, Pixels)
    intake.take(first)
    instead = bulk.call_off(1)
    assert (instead.images, instead.deadline) == ((), 0.0)
    assert intake.whole(instead) == instead
    assert intake._pieces == {}
    assert bulk.next() is None


def test_text_and_stops_overtake_images_on_a_full_pipe() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    commands = Commands(write, 1, 1 << 20)
    try:
        commands.put(request(1, (1000, 1000)))
        commands.flush()  # the pipe is full of the first pieces
        commands.put(Request(2, (1, 2), {"max_new_tokens": 1}, 9.0))
        commands.put(Halt(3))
        decoder, seen = Decoder(1 << 30), []
        for _ in range(200):
            data = os.read(read, 1 << 16)
            seen += [decode(frame) for frame in decoder.feed(data)]
            commands.flush()
            if isinstance(seen[-1] if seen else None, Request) and getattr(seen[-1], "stay", 0) == 1:
                break
        kinds = [(type(word).__name__, getattr(word, "stay", None)) for word in seen]
        assert kinds.index(("Request", 2)) < 3
        assert kinds.index(("Halt", 3)) < 3
        assert kinds[-1] == ("Request", 1)
    finally:
        os.close(read)
        os.close(write)


# --- the budget --------------------------------------------------------------------------------------------------


def pulse(begun: int, ended: int, at: float, ended_at: float = 0.0, pixels: int = 1000) -> Pulse:
    return Pulse(5, 5, 1.0, 1.5, 0.5, 0, 0, begun, ended, at, ended_at, pixels)


def test_the_stamps_tell_of_the_encoding_that_is_under_way() -> None:
    fd = create()
    writer, reader = StampWriter(fd), StampReader(fd)
    os.close(fd)
    writer.begin(1.0, 3, 4)
    writer.end(1.5)
    writer.encode(2.0, 77)
    seen = reader.read()
    assert (seen.encoding, seen.in_step, seen.encode_begun_at, seen.pixels) == (True, False, 2.0, 77)
    writer.encoded(3.0)
    seen = reader.read()
    assert (seen.encoding, seen.encode_ended_at, seen.inside_s) == (False, 3.0, 1.5)
    reader.close()


def test_a_budget_grows_with_the_pixels_and_with_what_two_in_a_row_took() -> None:
    pace = EncodePace(LIMITS)
    assert pace.budget(pulse(1, 0, 0.0)) == 3.0 + 7.0
    for _ in range(2):
        pace.completed(1000, 1.5)
    assert pace.rate == 0.5
    assert pace.budget(pulse(1, 0, 0.0)) == 7.5
    pace.completed(1000, 40.0)  # alone it teaches nothing
    assert pace.budget(pulse(1, 0, 0.0)) == pytest.approx(7.5, rel=0.01)
    assert pace.budget(pulse(1, 0, 0.0, pixels=10**9)) == 50.0
    pace.boot()
    assert pace.budget(pulse(1, 0, 0.0)) == pytest.approx(14.5, rel=0.01)


def test_a_hung_encoder_is_judged_by_its_own_budget_and_nothing_else_is_meanwhile() -> None:
    watch = Watch(LIMITS)
    watch.boot(0.0)
    watch.ready()
    watch.looked(pulse(0, 0, 0.0))
    watch.holding(True, 2.0)
    watch.ordered("stop", 3, 2.0)
    watch.looked(pulse(1, 0, 2.0))
    assert watch.verdict(11.9) is None
    verdict = watch.verdict(12.1)
    assert verdict is not None
    assert verdict[0] is Cause.STEP
    assert "images of 1000 pixels" in verdict[1]


def test_time_in_the_encoder_counts_for_no_command_and_against_no_progress() -> None:
    watch = Watch(Limits(ack=1.0, progress=1.0, encode=100.0))
    watch.boot(0.0)
    watch.ready()
    watch.looked(pulse(0, 0, 0.0))
    watch.holding(True, 2.0)
    watch.ordered("admit", 3, 2.0)
    watch.looked(pulse(1, 0, 2.0))
    assert watch.verdict(60.0) is None
    ended = Pulse(5, 5, 1.0, 1.5, 58.5, 0, 0, 1, 1, 2.0, 60.0, 1000)
    watch.looked(ended)
    assert watch.verdict(60.9) is None
    assert watch.verdict(61.1) is not None
    assert [watch.encoding.rate] == [0.0]  # one alone is no rate


def test_what_the_engine_takes_is_learned_from_the_stamps() -> None:
    watch = Watch(Limits(encode=1.0, encode_per_pixel=0.0))
    watch.boot(0.0)
    watch.ready()
    for number, at in itertools.islice(enumerate(itertools.count(1, 10), 1), 3):
        watch.looked(pulse(number, number - 1, at))
        watch.looked(pulse(number, number, at, at + 0.5))
    assert watch.encoding.rate == pytest.approx(0.5, rel=0.01)


def test_what_is_stopped_before_it_is_sent_arrives_without_its_images_and_over() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    commands = Commands(write, 1, 1 << 20)
    try:
        commands.put(request(1, (2, 2)))
        commands.flush()  # which is awaited from now on
        commands.put(request(2, (2, 2)))
        commands.put(Halt(2))
        commands.flush()
        words = [decode(frame) for frame in Decoder(1 << 20).feed(os.read(read, 1 << 16))]
        assert [(type(word), getattr(word, "stay", 0)) for word in words] == [(Pixels, 1), (Request, 1), (Request, 2)]
        assert words[-1].images == ()  # type: ignore[union-attr]
        assert words[-1].deadline == 0.0  # type: ignore[union-attr]
    finally:
        os.close(read)
        os.close(write)


def test_a_command_that_is_given_while_images_are_encoded_has_its_time_once_they_are() -> None:
    watch = Watch(Limits(ack=1.0, progress=900.0, encode=100.0))
    watch.boot(0.0)
    watch.ready()
    watch.looked(pulse(1, 0, 2.0))
    watch.holding(True, 2.0)
    watch.ordered("stop", 3, 32.0)
    watch.looked(Pulse(5, 5, 1.0, 1.5, 58.5, 0, 0, 1, 1, 2.0, 60.0, 1000))
    assert watch.verdict(60.9) is None
    verdict = watch.verdict(61.1)
    assert verdict is not None
    assert verdict[0] is Cause.ACK


def test_the_engine_is_given_one_request_with_images_between_two_steps_and_all_of_text() -> None:
    child = Child()
    requests = [evolve(request(stay, (2, 2)), deadline=LATER, config={"max_new_tokens": 9}) for stay in (1, 2, 3)]
    pieces = [Pixels(one.stay, one.images[0].data) for one in requests]
    text = Request(4, (1, 2), {"max_new_tokens": 9}, LATER)
    child.pipe.inbox += [*pieces, *requests, text]
    seen = []
    for _ in range(3):
        child.round()
        seen.append(tuple(child.engine.added))
    assert seen == [(1, 4), (1, 4, 2), (1, 4, 2, 3)]
    assert child.engine.steps == 3
