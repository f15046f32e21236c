"""What the parent has not been told yet, and the report that tells it."""

from __future__ import annotations

from typing import final

from attrs import Factory, define

from boundedgen._core._events import NO_ROOM, Finish, Output, Progress, Refusal, Release
from boundedgen._engine._seam import Metrics
from boundedgen._engine._wire import size_of

_ROW, _TOKEN, _LOGPROB = 96, 16, 26  #: bytes that one takes in a frame, at most


@final
@define(eq=False)
class Tidings:
    """What the parent has not been told yet: one step's worth, or several merged."""

    size: int = 0  #: bytes of its frame, at most, but for the table of what is held
    news: bool = False
    began: float = 0.0
    scheduled: int = 0
    tokens: int = 0
    attention: int = 0
    accepted: int = 0
    proposed: int = 0
    table_due: bool = False
    held: tuple[int, ...] | None = None
    taken: list[int] = Factory(list)
    stopping: list[int] = Factory(list)
    paused: list[int] = Factory(list)
    refused: list[Refusal] = Factory(list)
    singles: list[int] = Factory(list)  #: stay, token, stay, token, …
    outputs: dict[int, tuple[list[int], list[float]]] = Factory(dict)  #: of those that have logprobs
    finished: list[Finish] = Factory(list)
    released: list[Release] = Factory(list)
    counted: tuple[tuple[int, int], ...] = ()

    def output(self, stay: int, token_ids: list[int], logprobs: list[float]) -> None:
        self.size += _TOKEN * len(token_ids) + _LOGPROB * len(logprobs)
        if not logprobs:
            for token in token_ids:
                self.singles += (stay, token)
            return
        earlier = self.outputs.get(stay)
        if earlier is None:
            self.size += _ROW
            self.outputs[stay] = (token_ids, logprobs)
        else:
            earlier[0].extend(token_ids)
            earlier[1].extend(logprobs)

    def finish(self, finish: Finish) -> None:
        self.size += size_of(finish)
        self.finished.append(finish)

    def release(self, release: Release) -> None:
        self.size += _ROW
        self.released.append(release)
        self.news = True

    def never_entered(self, stay: int) -> None:
        """Stopped before the engine saw it: taken, stopped and released in one breath."""
        self.taken.append(stay)
        self.stopping.append(stay)
        self.release(Release(stay, 0, 0.0, 0))

    def refuse(self, stay: int, text: str, code: str = "invalid") -> None:
        refusal = Refusal(stay, code, text)
        self.size += size_of(refusal)
        self.refused.append(refusal)
        self.news = True

    def turn_back(self, stay: int) -> None:
        self.refuse(stay, "there is no room for it yet", NO_ROOM)

    def stepped(self, began: float, metrics: Metrics, load: tuple[int, int]) -> None:
        """`load`: tokens and attention, as they were estimated before."""
        self.began = self.began or began
        self.scheduled += metrics.scheduled
        self.accepted += metrics.accepted
        self.proposed += metrics.proposed
        self.tokens += load[0]
        self.attention += load[1]
        self.news = True

    def report(self, incarnation: int, steps: int, ended: float, metrics: Metrics, rss: int | None = None) -> Progress:
        return Progress(
            incarnation,
            steps=steps,
            began=self.began,
            ended=ended,
            scheduled=self.scheduled,
            usage=metrics.usage,
            held=self.held,
            taken=tuple(self.taken),
            stopping=tuple(self.stopping),
            paused=tuple(self.paused),
            refused=tuple(self.refused),
            outputs=tuple([Output(stay, tuple(ids), tuple(probs)) for stay, (ids, probs) in self.outputs.items()]),
            singles=tuple(self.singles),
            finished=tuple(self.finished),
            released=tuple(self.released),
            counted=self.counted,
            cache_bytes=metrics.cache_bytes,
            tokens=self.tokens,
            attention=self.attention,
            rss_bytes=rss,
            accepted=self.accepted,
            proposed=self.proposed,
        )
