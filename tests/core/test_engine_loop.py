"""The engine's loop over an engine and a pipe under the test's hand: no process, no real steps."""

import time
from collections.abc import Sequence
from typing import cast

import pytest
from attrs import define, evolve, field

from boundedgen._core._events import EngineFacts, Output, PoolFacts, Progress, SequenceResult, StepRaised
from boundedgen._engine._child import Loop
from boundedgen._engine._line import Line
from boundedgen._engine._seam import Metrics
from boundedgen._engine._stamps import StampWriter
from boundedgen._engine._wire import Halt, Word, encode
from boundedgen.abc import Request

FACTS = EngineFacts(
    device="CPU", versions={}, pools=(PoolFacts("kv", 64, 32),), block_size=32, cache_bytes=None, vocab_size=None,
    running_max=8, probe_blocks={}, max_prompt_tokens=None, hybrid=False, proof="perf_metrics",
)  # fmt: skip
LATER = 1e12


@define
class Inside:
    """A stay: `ready` is what can be read of it; `gone` when the scheduler has let go of it."""

    ready: list[int] = field(factory=list)
    probs: list[float] = field(factory=list)  #: of those
    why: str = ""
    stopped: bool = False
    gone: bool = False
    result: tuple[SequenceResult, ...] = ()

    def collect(self) -> tuple[list[int], list[float], str]:
        assert not self.stopped, "what was stopped cannot be read any more"
        ready, self.ready, probs, self.probs = self.ready, [], self.probs, []
        return ready, probs, self.why

    def results(self) -> tuple[SequenceResult, ...]:
        return self.result

    def stop(self) -> None:
        self.stopped = True

    def released(self) -> bool:
        return self.gone

    def prompt_tokens(self) -> int | None:
        return None

    def late_tokens(self) -> int:
        return 3


@define
class Hand:
    """The engine: each of its steps gives every stay that runs a token, its number."""

    stays: dict[int, Inside] = field(factory=dict)
    added: list[int] = field(factory=list)
    steps: int = 0
    raises: bool = False
    facts: EngineFacts = FACTS
    step_tokens: int = 256

    def add(self, request: Request) -> Inside:
        self.added.append(request.stay)
        self.stays[request.stay] = Inside()
        return self.stays[request.stay]

    def step(self) -> Metrics:
        self.steps += 1
        if self.raises:
            raise RuntimeError("out of luck")
        live = [s for s in self.stays.values() if not s.stopped and not s.why]
        for stay in live:
            stay.ready.append(self.steps)
        return Metrics(len(live), len(live) / 8, None)


@define
class Pipe:
    busy: bool = False
    page: int = 1 << 19
    inbox: list[Word] = field(factory=list)
    waited: list[float | None] = field(factory=list)
    sent: list[Word] = field(factory=list)

    def words(self, *, within: float | None) -> list[Word]:
        self.waited.append(within)
        words, self.inbox = self.inbox, []
        return words

    def send(self, word: Word) -> None:
        self.sent.append(word)


class Stamps:
    def begin(self, *numbers: float) -> None: ...

    def end(self, at: float) -> None: ...

    def encode(self, at: float, pixels: int) -> None: ...

    def encoded(self, at: float) -> None: ...


class Child:
    """The loop with what it speaks to; `round` is one of its rounds."""

    def __init__(self, facts: EngineFacts = FACTS) -> None:
        self.engine, self.pipe = Hand(facts=facts), Pipe()
        self.loop = Loop(self.engine, cast(Line, self.pipe), cast(StampWriter, Stamps()), 1, [])

    def round(self, *words: Word, times: int = 1) -> list[Progress]:
        """Returns what was reported."""
        before = len(self.pipe.sent)
        self.pipe.inbox += words
        for _ in range(times):
            self.loop.round()
        return [word for word in self.pipe.sent[before:] if isinstance(word, Progress)]


def request(stay: int = 1, deadline: float = LATER) -> Request:
    return Request(stay, [1], {"max_new_tokens": 9}, deadline)


def tokens(reports: Sequence[Progress]) -> list[int]:
    return [token for report in reports for output in report.all_outputs for token in output.token_ids]


@pytest.fixture
def child() -> Child:
    return Child()


def test_what_was_ready_before_a_stop_is_reported_before_it(child: Child) -> None:
    child.round(request())
    child.engine.stays[1].ready = [7, 8]
    (report,) = child.round(Halt(1))
    assert tokens([report]) == [7, 8]
    assert report.stopping == (1,)
    assert child.engine.stays[1].stopped


def test_one_that_has_finished_unread_is_not_stopped_any_more(child: Child) -> None:
    child.round(request())
    child.engine.stays[1].why = "stop"
    (report,) = child.round(Halt(1))
    assert [(finish.stay, finish.why) for finish in report.finished] == [(1, "stop")]
    assert report.stopping == ()
    assert not child.engine.stays[1].stopped


def test_a_stay_is_stopped_at_its_deadline_without_a_word_from_the_parent(child: Child) -> None:
    child.round(request(deadline=time.monotonic() + 0.02))
    assert child.round()[0].stopping == ()
    time.sleep(0.03)
    (report,) = child.round()
    assert report.stopping == (1,)
    assert child.engine.stays[1].stopped


def test_one_whose_deadline_has_passed_on_its_way_never_enters(child: Child) -> None:
    (report,) = child.round(request(deadline=time.monotonic() - 1.0))
    assert (report.taken, report.stopping, [r.stay for r in report.released]) == ((1,), (1,), [1])
    assert not child.engine.stays


def test_a_stay_that_is_inside_already_is_refused_and_goes_on(child: Child) -> None:
    child.round(request())
    (report,) = child.round(request())
    assert [refusal.stay for refusal in report.refused] == [1]
    assert tokens([report]) == [2]
    assert child.engine.added == [1], "a duplicate would poison the real engine for ever"


def test_release_is_reported_with_its_proof_and_not_before(child: Child) -> None:
    child.round(request())
    reports = child.round(Halt(1), times=3)
    assert [r.released for r in reports] == [(), (), ()]
    child.engine.stays[1].gone = True
    (report,) = child.round()
    (release,) = report.released
    assert (release.stay, release.steps, release.late_tokens) == (1, 4, 3)


def test_when_the_last_has_left_one_more_step_tells_what_is_true_at_rest(child: Child) -> None:
    child.round(request(), Halt(1))
    child.round(request(2))
    child.engine.stays[2].why, child.engine.stays[2].gone = "stop", True
    reports = child.round(times=5)
    assert reports[-2].released
    assert (reports[-1].held, reports[-1].usage, reports[-1].scheduled) == ((), 0.0, 0)
    assert child.engine.steps == 3, "one that gave a token, one that ended it, and one with nothing inside"


def test_while_the_parent_reads_nothing_one_report_grows_and_nothing_is_lost(child: Child) -> None:
    child.pipe.busy = True
    assert child.round(request(), times=4) == []
    child.pipe.busy = False
    (report,) = child.round()
    assert tokens([report]) == [1, 2, 3, 4, 5]
    assert (report.scheduled, report.steps, report.taken) == (5, 5, (1,))


def test_while_the_parent_reads_nothing_tokens_and_their_logprobs_stay_together_in_order(child: Child) -> None:
    child.round(request())
    for step in (2, 3, 4, 5):
        child.pipe.busy = step < 5
        child.engine.stays[1].probs = [-float(step)]
        reports = child.round()
    (output,) = reports[0].outputs
    assert output == Output(1, (2, 3, 4, 5), (-2.0, -3.0, -4.0, -5.0))


def test_while_the_parent_reads_nothing_a_report_that_is_large_enough_is_followed_by_another(child: Child) -> None:
    child.round(request())
    child.pipe.busy = True
    for _ in range(10):
        child.engine.stays[1].ready = [7] * 20_000
        child.round()
    child.pipe.busy = False
    child.round()
    reports = [word for word in child.pipe.sent if isinstance(word, Progress)]
    assert len(tokens(reports)) == 200_000 + 12
    assert 3 < len(reports) < 10
    assert [report.steps for report in reports] == sorted({report.steps for report in reports})
    assert max(len(encode(report, 1)) for report in reports) <= 2 * child.pipe.page


def test_results_that_fit_into_no_report_together_come_one_after_another(child: Child) -> None:
    child.round(request(1), request(2), request(3))
    for stay in child.engine.stays.values():
        stay.result, stay.why, stay.gone = (SequenceResult((12345,) * 100_000, (), 0.0),), "length", True
    reports = child.round()
    assert [[finish.stay for finish in report.finished] for report in reports] == [[1], [2], [3]]
    assert [release.stay for report in reports for release in report.released] == [1, 2, 3]
    assert max(len(encode(report, 1)) for report in reports) <= 2 * child.pipe.page


def test_a_result_that_fits_into_no_report_ends_its_own_stay_only_and_when_it_is_released(child: Child) -> None:
    child.round(request(1), request(2))
    large = child.engine.stays[1]
    large.result, large.why = (SequenceResult((12345,) * 30_000, (), 0.0),) * 16, "length"
    (report,) = child.round(Halt(1))
    assert (report.finished, report.refused, report.released, report.stopping) == ((), (), (), ())
    large.gone = True
    (report,) = child.round()
    (refusal,) = report.refused
    assert (refusal.stay, report.released) == (1, ())
    assert "Limits.frame_bytes" in refusal.text
    assert tokens([report]) == [3], "the other one goes on"


def test_after_an_exception_the_engine_is_never_called_again(child: Child) -> None:
    child.round(request())
    child.engine.raises = True
    child.round(times=3)
    child.round(Halt(1), request(2))
    assert child.engine.steps == 2
    assert not child.engine.stays[1].stopped
    assert 2 not in child.engine.stays
    assert [type(word) for word in child.pipe.sent].count(StepRaised) == 1


# --- handing over ----------------------------------------------------------------------------------------------------


def one_leaves(child: Child, *, followed: bool) -> None:
    """In a step of 50 ms, which held it and another one."""
    child.round(request(1), evolve(request(2), followed=followed))
    child.engine.stays[1].why, child.engine.stays[1].gone = "stop", True
    child.round()
    child.loop._step_s = 0.05


def test_whoever_follows_upon_one_that_has_left_is_waited_for_a_moment_and_comes_into_the_next_step(
    child: Child,
) -> None:
    one_leaves(child, followed=True)
    steps = child.engine.steps
    child.round(evolve(request(3), followed=True))
    assert child.pipe.waited[-1] == 0.002
    assert child.engine.steps == steps + 1
    assert tokens(child.round())[-1] == child.engine.steps
    assert child.pipe.waited[-1] == 0.0, "nobody has left meanwhile"


def test_nobody_is_waited_for_where_nobody_follows_or_a_step_is_short(child: Child) -> None:
    one_leaves(child, followed=False)
    child.round()
    assert set(child.pipe.waited) <= {None, 0.0}
    other = Child()
    one_leaves(other, followed=True)
    other.loop._step_s = 0.019
    other.round()
    assert set(other.pipe.waited) <= {None, 0.0}


def test_one_who_was_waited_for_in_vain_is_not_waited_for_again(child: Child) -> None:
    one_leaves(child, followed=True)
    child.round()
    assert child.pipe.waited[-1] == 0.002
    child.engine.stays[2].why, child.engine.stays[2].gone = "stop", True
    child.round()
    child.loop._step_s = 0.05
    child.round()
    assert child.pipe.waited[-1] != 0.002
