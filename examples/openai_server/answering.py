"""The endpoints of completions: from a request to its answer, or to a typed end, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing
from typing import Any, final

from attrs import evolve
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

import boundedgen as b
from examples.openai_server.bounding import told
from examples.openai_server.choices import Choice, ChoiceEnded, pieces, submitted
from examples.openai_server.lane import Lane, Stalled
from examples.openai_server.problems import Problem
from examples.openai_server.requests import PROMPTS, Asked, Kind, asked_of
from examples.openai_server.shapes import Shape, usage_of
from examples.openai_server.tool_calls import ToolCalls

logger = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"


@final
class Completions:
    """POST /v1/chat/completions and /v1/completions, as an ASGI application: a client that hangs up is noticed at once,
    before its answer has begun and after.
    """

    def __init__(self, lane: Lane, kind: Kind) -> None:
        self._lane, self._kind = lane, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        owner = self._lane.owner(request)
        asked = asked_of(self._kind, await self._lane.body(request), request.headers, self._lane.settings)
        with contextlib.suppress(Stalled):  # what was sent is no whole answer, so uvicorn closes the connection
            await unless_gone(receive, self._answer(asked, owner, scope, receive, send))

    async def _answer(self, asked: Asked, owner: str, scope: Scope, receive: Receive, send: Send) -> None:
        shape = Shape.of(asked, self._lane.settings.model, self._lane.texts)
        arguments: dict[str, Any] = {"owner": owner, "label": shape.id}
        try:
            if asked.lease is not None:
                arguments["lease"] = self._lane.lease_of(owner, asked.lease)
            async with AsyncExitStack() as stack:
                generations = await submitted(self._lane.pipeline, asked, arguments, stack)
                self._lane.inside.hold(*generations)
                if asked.logprobs:
                    await self._lane.texts.load()
                headers = {"x-request-id": shape.id, "X-Bounds": told(generations[0].bounds)}
                if asked.stream:
                    await Stream(self._lane, shape, generations, send).run(headers)
                else:
                    body = await whole(shape, generations)
                    await self._lane.within(JSONResponse(body, headers=headers)(scope, receive, send))
        except b.BoundedGenError as error:  # nothing has been sent yet
            raise self._lane.problem(error, PROMPTS[self._kind]) from error


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """`work`, until it is done or its client has hung up, which cancels it. The body has to be read by then."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        done = task.done()
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    if done:
        task.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole(shape: Shape, generations: list[b.Generation]) -> dict[str, Any]:
    """The whole answer. Raises the error of whichever ends abnormally; what there was of it is with the error."""
    choices, completions = [], []
    for index, generation in enumerate(generations):
        completion = await generation
        text, calls = completion.text, ToolCalls()
        if shape.asked.calls_tools:
            text = calls.feed(text) + calls.flush()
        choices.append(shape.choice(index, text, calls.calls, completion))
        completions.append(completion)
    return shape.whole(choices, usage_of(completions, shape.asked.choices))


@final
class Stream:
    """Server-sent events. The status is sent with the first piece: who is refused, or waits in vain, gets another one.

    After that there is always a last event: [DONE], and before it, of an end that is not normal, the error, and the
    choice's finish_reason, which is then none of OpenAI's.
    """

    def __init__(self, lane: Lane, shape: Shape, generations: list[b.Generation], send: Send) -> None:
        self._lane, self._shape, self._generations, self._send = lane, shape, generations, send
        calls_tools = shape.asked.calls_tools
        self._choices = [Choice(shape, index, calls_tools=calls_tools) for index in range(len(generations))]
        self._begun = False

    async def run(self, headers: dict[str, str]) -> None:
        """Raises the error, if nothing has been sent."""
        try:
            async with aclosing(pieces(self._generations)) as read:
                async for index, chunk in read:
                    if not self._begun:
                        await self._begin(headers)
                    await self._write(self._events(index, chunk))
            last = self._usage()
        except Stalled:
            raise
        except Exception as error:
            ended = error if isinstance(error, ChoiceEnded) else ChoiceEnded(0, error)
            if not self._begun:
                raise ended.error from None
            last = self._abnormal(ended)
        await self._write(last, DONE, more=False)

    def _events(self, index: int, chunk: b.Chunk | None) -> list[dict[str, Any]]:
        choice = self._choices[index]
        return choice.events(chunk) if chunk is not None else choice.end(self._generations[index].finish_reason)

    def _usage(self) -> list[dict[str, Any]]:
        if not self._shape.asked.include_usage:
            return []
        completions = [generation.partial for generation in self._generations]
        return [self._shape.usage(usage_of(completions, self._shape.asked.choices))]

    def _abnormal(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """The other choices end with it."""
        error, events = ended.error, []
        if not isinstance(error, b.BoundedGenError):
            logger.error("a stream failed", exc_info=error)
            error = b.GenerationInternalError("the server failed")
        for index, choice in enumerate(self._choices):
            if not choice.ended:
                own = index == ended.index
                events += choice.end(error.finish_reason if own else b.FinishReason.CANCELLED)
        problem = self._lane.problem(error)
        partial = problem.partial and evolve(problem.partial, text="")  # it has been sent
        told = Problem(problem.status, str(problem), param=problem.param, code=problem.code, partial=partial).body()
        told["error"].get("partial", {}).pop("text", None)
        return [*events, told]

    async def _begin(self, headers: dict[str, str]) -> None:
        self._begun = True
        sent = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # nginx: pass it on as it comes
            **headers,
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
        await self._lane.within(self._send({"type": "http.response.start", "status": 200, "headers": raw}))

    async def _write(self, events: list[dict[str, Any]], last: bytes = b"", *, more: bool = True) -> None:
        body = b"".join(b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode() for event in events)
        if body or last:
            message = {"type": "http.response.body", "body": body + last, "more_body": more}
            await self._lane.within(self._send(message))
