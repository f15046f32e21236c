"""Framing, bodies, outbox and stamps: what may be sent, and that nothing else gets through."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import resource
import struct
import threading
import time
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundedgen._core._events import (
    BootFailed,
    Claim,
    EngineFacts,
    Finish,
    Output,
    PoolFacts,
    Progress,
    Pulse,
    Ready,
    Refusal,
    Release,
    SequenceResult,
    StepRaised,
)
from boundedgen._engine._frames import Decoder, Outbox, WireError
from boundedgen._engine._line import Line
from boundedgen._engine._stamps import StampReader, StampWriter, create
from boundedgen._engine._wire import Boot, Halt, Hello, Word, decode, encode
from boundedgen.abc import Request

LIMIT = 1 << 16
INCARNATION = 7
HIGH = 1100  #: the number of a descriptor

ids = st.integers(0, 2**63)
seconds = st.floats(allow_nan=False)
text = st.text(max_size=30) | st.just("\ud800 lone, \x00 and \U0001f600")
tokens = st.lists(ids, max_size=8).map(tuple)
probs = st.lists(seconds, max_size=8).map(tuple)
maybe = st.none() | ids
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | seconds | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)


def tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


results = st.builds(SequenceResult, tokens, probs, st.none() | seconds)
progresses = st.builds(
    Progress,
    st.just(INCARNATION),
    ids,
    seconds,
    seconds,
    ids,
    seconds,
    st.none() | tokens,
    tokens,
    tokens,
    tuples(ids),
    tuples(st.builds(Refusal, ids, text, text)),
    tuples(st.builds(Output, ids, tokens, probs)),
    tuples(st.builds(Finish, ids, st.sampled_from(["stop", "length", "ignored"]), tuples(results))),
    tuples(st.builds(Release, ids, ids, seconds, ids)),
    maybe,
    ids,
    ids,
    maybe,
    st.lists(st.tuples(ids, ids), max_size=3).map(lambda pairs: tuple(number for pair in pairs for number in pair)),
    ids,
    ids,
)
claims = st.builds(Claim, st.booleans(), st.tuples(seconds, seconds, seconds))
facts = st.builds(
    EngineFacts,
    device=text,
    versions=st.dictionaries(text, text, max_size=3),
    pools=tuples(st.builds(PoolFacts, text, ids, maybe, ids)),
    block_size=ids,
    cache_bytes=maybe,
    vocab_size=maybe,
    running_max=ids,
    probe_blocks=st.dictionaries(text, ids, max_size=3),
    max_prompt_tokens=maybe,
    hybrid=st.booleans(),
    proof=text,
    findings=tuples(text),
    canary=tokens,
    exact=st.booleans(),
    drafted=ids,
    counts_proposed=st.booleans(),
)
words: st.SearchStrategy[Word] = st.one_of(
    st.builds(Boot, st.dictionaries(text, json_values, max_size=4)),
    st.builds(Request, ids, tokens, st.dictionaries(text, json_values, max_size=4), seconds, ids, st.none() | claims),
    st.builds(Halt, ids),
    st.builds(Hello, st.just(INCARNATION), seconds, ids, st.dictionaries(text, text, max_size=3)),
    st.builds(Ready, st.just(INCARNATION), facts, maybe),
    st.builds(BootFailed, st.just(INCARNATION), text, text, st.booleans()),
    st.builds(StepRaised, st.just(INCARNATION), ids, text),
    progresses,
)


def decoded(data: bytes, limit: int = LIMIT) -> list[Word]:
    return [decode(frame) for frame in Decoder(limit).feed(data)]


@given(words)
def test_every_word_comes_back_as_it_was_sent(word: Word) -> None:
    assert decoded(encode(word, INCARNATION)) == [word]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 5e-324])
def test_any_float_crosses_the_wire(value: float) -> None:
    (word,) = decoded(encode(Hello(INCARNATION, value, 1, {}), INCARNATION))
    assert isinstance(word, Hello)
    assert struct.pack("d", word.at) == struct.pack("d", value)


@given(st.lists(words, max_size=4), st.lists(st.integers(0, 2000), max_size=6))
def test_a_stream_may_be_cut_anywhere(sent: list[Word], cuts: list[int]) -> None:
    stream = b"".join(encode(word, INCARNATION) for word in sent)
    at = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = Decoder(LIMIT)
    frames = [f for a, b in itertools.pairwise(at) for f in decoder.feed(stream[a:b])]
    assert [decode(frame) for frame in frames] == sent
    assert {frame.incarnation for frame in frames} <= {INCARNATION}


@given(words)
def test_a_frame_that_is_cut_off_at_its_end_is_no_error_and_no_word(word: Word) -> None:
    data = encode(word, INCARNATION)
    for end in (1, 11, len(data) - 1):
        assert list(Decoder(LIMIT).feed(data[:end])) == []


@given(words, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_a_mutated_frame_decodes_to_a_word_or_is_a_wire_error(
    word: Word, changes: list[tuple[int, int]], body_only: bool
) -> None:
    data = bytearray(encode(word, INCARNATION))
    first = 12 if body_only and len(data) > 12 else 0
    for where, byte in changes:
        data[first + where % (len(data) - first)] = byte
    try:
        got = decoded(bytes(data))
    except WireError:
        return
    # Whatever decodes is a word of the right types: it can be sent again and comes back the same.
    for one in got:
        assert repr(decoded(encode(one, INCARNATION), 1 << 20)) in (repr([one]), repr([_with_incarnation(one)]))


def _with_incarnation(word: Word) -> Word:
    if isinstance(word, Hello | Ready | BootFailed | StepRaised | Progress):
        return attrs.evolve(word, incarnation=INCARNATION)
    return word


@given(st.binary(max_size=200))
def test_noise_is_a_wire_error_as_soon_as_a_header_is_there(noise: bytes) -> None:
    if noise[:3] == b"bG\x01":
        return
    decoder = Decoder(LIMIT)
    if len(noise) < 12:
        assert list(decoder.feed(noise)) == []
    else:
        with pytest.raises(WireError):
            list(decoder.feed(noise))


def _frame(kind: int, body: bytes, version: int = 1, length: int | None = None) -> bytes:
    return struct.pack("<2sBBII", b"bG", version, kind, INCARNATION, len(body) if length is None else length) + body


def _report(outputs: bytes, finished: bytes) -> bytes:
    return _frame(19, _numbers() + b'{"outputs":' + outputs + b',"finished":' + finished + b"}")


def _numbers(singles: int = 0) -> bytes:
    return struct.pack("<QddQdQQQI", 1, 2.0, 3.0, 4, 5.0, 2**64 - 1, 6, 7, singles)


def test_the_smallest_report_made_by_hand_decodes() -> None:
    plain = Progress(INCARNATION, 1, 2.0, 3.0, 4, 5.0, None, singles=(1, 7, 2, 8), tokens=6, attention=7)
    assert plain.all_outputs == (Output(1, (7,)), Output(2, (8,)))
    assert decoded(_frame(19, _numbers(4) + struct.pack("<4Q", 1, 7, 2, 8))) == [plain]
    (word,) = decoded(_report(b"[[1],[2],[7,8],[1],[-0.5]]", b'[[1,"stop",[]]]'))
    assert isinstance(word, Progress)
    assert (word.outputs, word.finished) == ((Output(1, (7, 8), (-0.5,)),), (Finish(1, "stop", ()),))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_frame(99, b"[]"), id="unknown kind"),
        pytest.param(_frame(3, b"1", version=2), id="another version"),
        pytest.param(_frame(3, b"1", length=LIMIT + 1), id="too long"),
        pytest.param(_frame(3, b"{"), id="no JSON"),
        pytest.param(_frame(3, b"\xff\xfe"), id="no UTF-8"),
        pytest.param(_frame(3, b"true"), id="a bool is no integer"),
        pytest.param(_frame(3, b"1.0"), id="a float is no integer"),
        pytest.param(_frame(3, b"9" * 5000), id="an integer of 5000 digits"),
        pytest.param(_frame(3, b"[" * 60_000), id="a deep nesting"),
        pytest.param(_frame(16, b"[1.0,2]"), id="too few fields"),
        pytest.param(_frame(16, b"[1.0,2,{},3]"), id="too many fields"),
        pytest.param(_frame(16, b"[" + b"9" * 400 + b",2,{}]"), id="an integer too large for a float"),
        pytest.param(_frame(16, b'["1",2,{}]'), id="a string is no float"),
        pytest.param(_frame(16, b'{"0":1,"1":2,"2":{}}'), id="an object is no row"),
        pytest.param(_frame(16, b'[1.0,2,{"boundedgen":1}]'), id="a number is no version"),
        pytest.param(_report(b"[[1],[1],[7],[0],{}]", b"[]"), id="an object is no list"),
        pytest.param(_report(b"[[1],[2],[7],[0],[]]", b"[]"), id="more tokens counted than sent"),
        pytest.param(_report(b"[[1],[0],[7],[0],[]]", b"[]"), id="fewer tokens counted than sent"),
        pytest.param(_report(b"[[1,2],[2,-1],[7],[0,0],[]]", b"[]"), id="a negative count"),
        pytest.param(_report(b"[[1],[1],[7],[],[]]", b"[]"), id="columns of different lengths"),
        pytest.param(_report(b"[[],[],[],[],[]]", b"[[1,false,[]]]"), id="an unknown end"),
        pytest.param(_frame(19, _numbers()[:-1]), id="a number too few"),
        pytest.param(_frame(19, _numbers(4) + bytes(24)), id="a token too few"),
        pytest.param(_frame(19, _numbers(3) + bytes(24)), id="a stay without a token"),
        pytest.param(_frame(19, _numbers(2**32 - 1)), id="four billion tokens too few"),
        pytest.param(_frame(19, _numbers() + b'{"steps":[]}'), id="an unknown part"),
        pytest.param(_frame(19, _numbers() + b"[]"), id="a list is no parts"),
        pytest.param(_frame(3, b"1 "), id="something after the value"),
        pytest.param(_frame(3, b""), id="nothing"),
    ],
)
def test_what_no_encoder_makes_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        decoded(data)


def test_a_decoder_holds_no_more_than_one_frame_whatever_length_is_announced() -> None:
    decoder = Decoder(LIMIT)
    with pytest.raises(WireError):
        list(decoder.feed(_frame(3, b"", length=2**32 - 1)))


def test_a_report_of_sixteen_sequences_costs_well_under_a_step() -> None:
    singles = tuple(number for i in range(16) for number in (1000 + i, 30_000 + i))
    report = Progress(INCARNATION, 9, 1.25, 2.5, 16, 0.25, None, singles=singles)
    decoder = Decoder(LIMIT)

    def once() -> float:
        began = time.thread_time()
        for _ in range(50):
            (frame,) = decoder.feed(encode(report, INCARNATION))
            decode(frame)
        return (time.thread_time() - began) / 50

    assert min(once() for _ in range(20)) < 200e-6


# --- outbox ------------------------------------------------------------------------------------------------------


def test_an_outbox_has_room_until_its_limit_is_reached_and_again_when_it_has_been_read() -> None:
    outbox = Outbox(100)
    outbox.put(b"a" * 90)
    assert outbox.room
    outbox.put(b"b" * 20)
    assert not outbox.room
    read, write = os.pipe()
    try:
        assert outbox.flush(write)
        assert os.read(read, 200) == b"a" * 90 + b"b" * 20
        assert outbox.room
        assert not outbox
    finally:
        os.close(read)
        os.close(write)


def test_what_came_before_bytes_that_are_no_frame_is_not_lost() -> None:
    whole = encode(Halt(7), INCARNATION)
    words: list[Word] = []
    with pytest.raises(WireError):
        words.extend(map(decode, Decoder(LIMIT).feed(whole + whole + b"no frame at all")))
    assert words == [Halt(7), Halt(7)]


def test_an_outbox_never_waits_for_a_full_pipe_and_goes_on_where_it_stopped() -> None:
    payload = bytes(range(256)) * 4096
    outbox = Outbox(1 << 22)
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        outbox.put(payload)
        outbox.put(b"the end")
        got = bytearray()
        while outbox:
            outbox.flush(write)
            got += os.read(read, 1 << 16)
        while len(got) < len(payload) + 7:
            got += os.read(read, 1 << 16)
        assert bytes(got) == payload + b"the end"
    finally:
        os.close(read)
        os.close(write)


def test_what_is_said_last_is_heard_however_many_descriptors_its_server_has() -> None:
    """The pipe's ends have the same numbers in the engine's process, and `select` takes none above 1023."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= HIGH + 1:
        pytest.skip("this process may not have so many")
    (never, commands), (read, write) = os.pipe(), os.pipe()
    reports = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(write)
    line = Line(never, reports, INCARNATION, LIMIT)
    said, heard = BootFailed(INCARNATION, "other", "x" * 200_000, permanent=True), bytearray()

    def hear() -> None:
        while piece := os.read(read, 1 << 16):
            heard.extend(piece)

    thread = threading.Thread(target=hear)
    try:
        line.send(said)
        assert line.busy
        thread.start()
        line.flush_all()
        assert not line.busy
    finally:
        os.close(reports)
        thread.join(20)
        for fd in (never, commands, read):
            os.close(fd)
    (frame,) = Decoder(1 << 20).feed(bytes(heard))
    assert decode(frame) == said


# --- stamps ------------------------------------------------------------------------------------------------------


def test_stamps_say_what_the_step_in_flight_is_and_how_long_the_ended_ones_took() -> None:
    fd = create()
    writer, reader = StampWriter(fd), StampReader(fd)
    os.close(fd)
    assert reader.read() == Pulse()
    writer.begin(10.0, 300, 90_000)
    assert reader.read() == Pulse(1, 0, 10.0, 0.0, 0.0, 300, 90_000)
    assert reader.read().in_step
    writer.end(12.5)
    assert reader.read() == Pulse(1, 1, 10.0, 12.5, 2.5, 0, 0)
    writer.begin(20.0, 1 << 70, 1 << 70)
    assert reader.read().scheduled == 2**64 - 1
    reader.close()
    writer.end(21.0)
    assert reader.read().begun_at == 20.0  # as it was at close


def test_stamps_are_never_torn_by_a_writer_in_another_thread() -> None:
    fd = create()
    writer, reader = StampWriter(fd), StampReader(fd)
    os.close(fd)
    done = threading.Event()

    def write() -> None:
        for number in range(1, 20_001):
            writer.begin(float(number), number, number)
            writer.end(float(number))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    last = 0
    while not done.is_set():
        pulse = reader.read()
        assert pulse.begun_at == pulse.steps_begun
        assert pulse.scheduled in (0, pulse.steps_begun)
        assert pulse.steps_begun - pulse.steps_ended in (0, 1)
        assert pulse.steps_begun >= last
        last = pulse.steps_begun
    thread.join()
    assert reader.read().steps_ended == 20_000
