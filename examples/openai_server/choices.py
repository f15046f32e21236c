"""Several generations as the choices of one answer: submitted all or none, read as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, final

import boundedgen as b
from examples.openai_server.requests import Asked
from examples.openai_server.shapes import Shape, end_of
from examples.openai_server.tool_calls import ToolCalls


async def submitted(
    pipeline: b.BoundedPipeline, asked: Asked, arguments: dict[str, Any], stack: AsyncExitStack
) -> list[b.Generation]:
    """One generation a choice, which leaving `stack` cancels. If one is refused, none goes on.

    Each is a sequence of its own, and not one of a request of several: those show nothing before they end.
    """
    generations = []
    for prompt, config in asked.submissions():
        generation = await pipeline.asubmit(prompt, None, **arguments, **asked.arguments, **config)
        generations.append(await stack.enter_async_context(generation))
    return generations


class ChoiceEnded(Exception):
    """One of them ended abnormally."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index)
        self.index = index
        self.error = error


Piece = tuple[int, b.Chunk | None]  #: of which choice; None: it has ended, normally


async def pieces(generations: Sequence[b.Generation]) -> AsyncGenerator[Piece, None]:
    """What they show, as it comes. Raises ChoiceEnded."""
    if len(generations) > 1:
        async for piece in _of_several(generations):
            yield piece
        return
    try:
        async for chunk in generations[0]:
            yield 0, chunk
    except Exception as error:
        raise ChoiceEnded(0, error) from error
    yield 0, None


async def _of_several(generations: Sequence[b.Generation]) -> AsyncGenerator[Piece, None]:
    """A task reads each of them; no further than it is taken, so that a client that stalls stalls them all."""
    ready: asyncio.Queue[tuple[int, b.Chunk | Exception | None]] = asyncio.Queue(1)

    async def read(index: int, generation: b.Generation) -> None:
        try:
            async for chunk in generation:
                await ready.put((index, chunk))
        except Exception as error:
            await ready.put((index, error))
        else:
            await ready.put((index, None))

    tasks = [asyncio.create_task(read(index, generation)) for index, generation in enumerate(generations)]
    try:
        left = len(tasks)
        while left:
            index, what = await ready.get()
            if isinstance(what, Exception):
                raise ChoiceEnded(index, what) from what
            left -= what is None
            yield index, what
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@final
class Choice:
    """One choice of a stream: what its events are."""

    def __init__(self, shape: Shape, index: int, *, calls_tools: bool) -> None:
        self.ended = False
        self._shape, self._index = shape, index
        self._calls = ToolCalls() if calls_tools else None
        self._told_calls = 0
        self._begun = False
        self._length = 0  # of the text so far

    def events(self, chunk: b.Chunk) -> list[dict[str, Any]]:
        text = chunk.text if self._calls is None else self._calls.feed(chunk.text)
        logprobs = self._shape.logprobs(chunk.token_ids, chunk.logprobs, self._length)
        return self._events(text, logprobs)

    def end(self, reason: b.FinishReason | None) -> list[dict[str, Any]]:
        """Also the abnormal end, whose name is then its finish_reason."""
        self.ended = True
        held = "" if self._calls is None else self._calls.flush()
        events = self._events(held, None)
        calls = bool(self._calls and self._calls.calls)
        return [*events, self._shape.closing(self._index, end_of(reason, calls=calls))]

    def _events(self, text: str, logprobs: Any) -> list[dict[str, Any]]:
        opening = None if self._begun else self._shape.opening(self._index)
        self._begun = True
        events = [] if opening is None else [opening]
        if text or logprobs is not None:
            events.append(self._shape.piece(self._index, text, logprobs))
        self._length += len(text)
        calls = [] if self._calls is None else self._calls.calls[self._told_calls :]
        if calls:
            events.append(self._shape.calls(self._index, self._told_calls, calls))
            self._told_calls += len(calls)
        return events
