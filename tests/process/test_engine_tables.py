"""The table of what the engine holds agrees with the report that it comes in, also where reports were merged."""

from collections.abc import Mapping
from typing import Any, cast

from attrs import define, field

from boundedgen._core._events import EngineFacts, PoolFacts, Progress, SequenceResult
from boundedgen._engine._child import HELD_EVERY, Loop
from boundedgen._engine._line import Line
from boundedgen._engine._seam import Metrics
from boundedgen._engine._stamps import StampWriter
from boundedgen._engine._wire import Word
from boundedgen.abc import Request

FACTS = EngineFacts(
    device="CPU",
    versions={},
    pools=(PoolFacts("kv", 64, 32),),
    block_size=32,
    cache_bytes=None,
    vocab_size=None,
    running_max=8,
    probe_blocks={},
    max_prompt_tokens=None,
    hybrid=False,
    proof="perf_metrics",
    findings=(),
)


@define
class _Stay:
    left: int

    def collect(self) -> tuple[list[int], list[float], str]:
        self.left -= 1
        return [7], [], "" if self.left else "length"

    def results(self) -> tuple[SequenceResult, ...]:
        return ()

    def stop(self) -> None:
        self.left = 0

    def released(self) -> bool:
        return self.left <= 0

    def prompt_tokens(self) -> int | None:
        return None

    def late_tokens(self) -> int:
        return 0


class _Engine:
    facts = FACTS
    step_tokens = 256

    def add(self, request: Request) -> _Stay:
        return _Stay(request.config["max_new_tokens"])

    def step(self) -> Metrics:
        return Metrics(1, 0.1, None)


@define
class _Pipe:
    """The line to a parent that reads only when it is not `busy`."""

    busy: bool = False
    page: int = 1 << 20  #: bytes
    inbox: list[Word] = field(factory=list)
    sent: list[Progress] = field(factory=list)

    def words(self, *, within: float | None) -> list[Word]:
        words, self.inbox = self.inbox, []
        return words

    def send(self, word: Word) -> None:
        self.sent.append(cast(Progress, word))


class _Stamps:
    def begin(self, *numbers: float) -> None: ...

    def end(self, at: float) -> None: ...


def _loop(pipe: _Pipe) -> Loop:
    return Loop(_Engine(), cast(Line, pipe), cast(StampWriter, _Stamps()), 1, [])


def _request(stay: int, new: int) -> Request:
    config: Mapping[str, Any] = {"max_new_tokens": new}
    return Request(stay, [1], config, 1e12)


def test_one_that_enters_after_the_table_was_due_is_in_the_merged_report_and_in_its_table() -> None:
    pipe = _Pipe(inbox=[_request(1, 1)])
    loop = _loop(pipe)
    pipe.busy = True
    for _ in range(3):  # stay 1 ends, the engine is empty: a table is due
        loop.round()
    pipe.inbox = [_request(2, 500)]
    loop.round()
    pipe.busy = False
    loop.round()
    (report,) = pipe.sent
    assert report.taken == (1, 2)
    assert [release.stay for release in report.released] == [1]
    assert report.held == (2,)


def test_one_that_leaves_after_the_table_was_due_is_not_in_it() -> None:
    pipe = _Pipe(busy=True, inbox=[_request(1, HELD_EVERY + 2), _request(2, 500)])
    loop = _loop(pipe)
    for _ in range(HELD_EVERY + 2):
        loop.round()
    pipe.busy = False
    loop.round()
    (report,) = pipe.sent
    assert [release.stay for release in report.released] == [1]
    assert report.held == (2,)
