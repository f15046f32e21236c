"""One generation between the driver and its readers: nothing is lost, nothing is held against who is there."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from boundedgen._core._events import Admit, Emit, Prove, SequenceResult, Settle
from boundedgen._core._sequences import Submission
from boundedgen._door import Place
from boundedgen._flow import Flow
from boundedgen._text import TextStream
from boundedgen.abc import Request
from boundedgen.testing._sim_host import SimTokenizer

A, B = 3 + ord("a"), 3 + ord("b")


class Scene:
    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.now = 10.0
        tokenizer = SimTokenizer()
        text: Callable[[], TextStream] = lambda: TextStream(tokenizer.decode)  # noqa: E731
        submission = Submission(1, 3, 8, submitted_at=10.0, label="label")
        self.flow = Flow(submission, [1, 2, 3], config or {}, text, lambda: self.now)

    def emit(self, *tokens: int) -> None:
        self.flow.emit(Emit(1, tokens, tuple(-1.0 for _ in tokens)), self.now)

    def settle(self, reason: str = "stop", **fields: Any) -> None:
        self.flow.settle(Settle(1, reason, **fields), self.now)


def test_chunks_join_to_the_text_and_to_the_tokens() -> None:
    scene = Scene()
    chunks = []
    for tokens in ((A,), (B, A), (B,)):
        scene.emit(*tokens)
        chunks.append(scene.flow.take())
    scene.settle()
    assert scene.flow.take() is None
    assert "".join(c.text for c in chunks if c) == scene.flow.text() == "abab"
    assert [t for c in chunks if c for t in c.token_ids] == [A, B, A, B]


def test_what_was_not_taken_is_one_chunk() -> None:
    scene = Scene()
    for _ in range(5):
        scene.emit(A)
    chunk = scene.flow.take()
    assert chunk is not None
    assert (chunk.text, len(chunk.token_ids)) == ("aaaaa", 5)
    assert scene.flow.take() is None


def test_bytes_that_are_no_character_yet_are_held_back_and_come_at_the_end() -> None:
    scene = Scene()
    scene.emit(3 + 0xC3)
    first = scene.flow.take()
    assert first is not None
    assert first.text == ""
    scene.settle("length")
    last = scene.flow.take()
    assert last is not None
    assert first.text + last.text == scene.flow.text() == "\ufffd"


def test_the_text_so_far_takes_nothing_from_the_stream() -> None:
    scene = Scene()
    scene.emit(A, B)
    assert scene.flow.completion().text == "ab"
    chunk = scene.flow.take()
    assert chunk is not None
    assert chunk.text == "ab"


def test_logprobs_are_given_when_they_were_asked_for() -> None:
    for config, wanted in (({}, ()), ({"logprobs": 1}, (-1.0,))):
        scene = Scene(config)
        scene.emit(A)
        chunk = scene.flow.take()
        assert chunk is not None
        assert chunk.logprobs == wanted
        scene.settle()
        assert scene.flow.completion().logprobs == wanted


def test_several_sequences_come_with_the_end_best_first() -> None:
    scene = Scene({"num_return_sequences": 3})
    scene.settle(results=tuple(SequenceResult((t,), (-1.0,), float(-n)) for n, t in enumerate((A, B, A))))
    completion = scene.flow.completion()
    assert (completion.text, completion.score) == ("a", 0.0)
    assert [a.text for a in completion.alternatives] == ["b", "a"]


def test_what_the_door_lent_is_given_back_once_and_the_place_already_at_admission() -> None:
    scene, queue, owner, lease = Scene(), deque([0]), deque([0]), deque([0])
    scene.flow.place, scene.flow.shares = Place(queue), (Place(owner), Place(lease))
    assert all(place.take() for place in (scene.flow.place, *scene.flow.shares))
    scene.flow.admit(11.0)
    scene.flow.admit(12.0)
    assert (len(queue), len(owner), len(lease)) == (1, 0, 0)
    assert scene.flow.admitted_at == 11.0
    scene.settle()
    scene.flow.give_back()
    assert (len(queue), len(owner), len(lease)) == (1, 1, 1)


# --- neglect ---------------------------------------------------------------------------------------------------------


def test_text_is_neglected_only_after_its_reader_began() -> None:
    scene = Scene()
    scene.emit(A)
    scene.now = 50.0
    assert scene.flow.neglected_since() is None
    scene.flow.begin_reading()
    assert scene.flow.neglected_since() == 50.0, "and since then at the earliest"
    scene.flow.take()
    assert scene.flow.neglected_since() is None


def test_a_reader_that_waits_neglects_nothing() -> None:
    scene = Scene()
    scene.flow.begin_reading()
    with scene.flow.reader():
        scene.emit(A)
        assert scene.flow.neglected_since() is None
        scene.now = 15.0
        assert scene.flow.presence(99.0) == (10.0, 99.0)
    assert scene.flow.presence(99.0) == (10.0, 15.0)


def test_a_steady_reader_is_there_all_the_time_and_one_that_paused_too_long_since_its_return() -> None:
    """Its lease is looked at whenever the driver gets to it, in the middle of a pause or right after one."""
    scene = Scene()
    scene.flow.patience = 1.0
    scene.flow.begin_reading()
    for scene.now in (10.5, 11.4, 12.3):
        with scene.flow.reader():
            pass
    assert scene.flow.presence(12.9) == (10.0, 12.3)
    scene.now = 13.4
    with scene.flow.reader():
        assert scene.flow.presence(13.5) == (13.4, 13.5)


def test_the_clock_of_neglect_starts_with_the_oldest_text_that_nobody_took() -> None:
    scene = Scene()
    scene.flow.begin_reading()
    scene.now = 20.0
    scene.emit(A)
    scene.now = 30.0
    scene.emit(B)
    assert scene.flow.neglected_since() == 20.0
    scene.flow.take()
    scene.now = 40.0
    scene.emit(B)
    assert scene.flow.neglected_since() == 40.0


def test_a_reader_that_took_text_while_it_came_is_not_blamed_for_it_later() -> None:
    """The reader takes the token before the driver has noted that nobody has taken it."""
    scene = Scene()
    scene.flow.begin_reading()

    class Greedy(list[float]):
        def extend(self, values: Any) -> None:
            super().extend(values)
            scene.flow.take()

    scene.flow.token_ids = Greedy()  # type: ignore[assignment]
    scene.emit(A)
    scene.flow.token_ids = list(scene.flow.token_ids)
    scene.now = 100.0
    scene.emit(B)
    assert scene.flow.neglected_since() == 100.0


# --- wake-ups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["emit", "settle", "prove"])
def test_everything_that_readers_wait_for_wakes_them(what: str) -> None:
    scene = Scene()
    woken: list[bool] = []
    done = {
        "emit": lambda: scene.flow.untaken,
        "settle": lambda: scene.flow.done,
        "prove": lambda: scene.flow.reclaimed is not None,
    }[what]
    wakers = scene.flow.news_wakers if what == "emit" else scene.flow.wakers
    thread = threading.Thread(target=lambda: woken.append(wakers.wait(done)), daemon=True)
    thread.start()
    while not wakers:
        pass
    match what:
        case "emit":
            scene.emit(A)
        case "settle":
            scene.settle()
        case "prove":
            scene.flow.prove(Prove(1, 1, 1, 0.1, "perf_metrics"))
    thread.join(20)
    assert woken == [True]


def test_a_reader_and_the_driver_at_full_speed_lose_nothing() -> None:
    scene = Scene()
    taken: list[int] = []

    def read() -> None:
        while True:
            scene.flow.news_wakers.wait(lambda: scene.flow.news, 20.0)
            done = scene.flow.done
            chunk = scene.flow.take()
            if chunk is not None:
                taken.extend(chunk.token_ids)
            elif done:
                return

    thread = threading.Thread(target=read)
    thread.start()
    sent = [A + n % 20 for n in range(5000)]
    for token in sent:
        scene.emit(token)
    scene.settle()
    thread.join(30)
    assert taken == sent


def test_the_next_engine_is_asked_for_what_is_left_and_told_which_tokens_were_shown() -> None:
    config = {"max_new_tokens": 8, "min_new_tokens": 3, "rng_seed": 7}
    scene = Scene(config)
    assert scene.flow.request(Admit(1, 5, 1, 60.0)) == Request(5, [1, 2, 3], config, 60.0)
    scene.emit(A, B)
    left = {"max_new_tokens": 6, "min_new_tokens": 1, "rng_seed": 8}
    assert scene.flow.request(Admit(2, 9, 1, 60.0, resumed=1)) == Request(9, [1, 2, 3, A, B], left, 60.0, shown=2)
