"""The contestant of today: a thread that steps, and an asyncio server that streams from it, in one process.

Its text is made by boundedgen's detokenizer, so that both do the same work: the engine's own TextStreamer raises
UnicodeDecodeError on tokens that are no text, which a small model makes of random prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, final

from loop_lag import watched
from raw_loop import Requests

from boundedgen._text import TextStream, decoded

FIRST = 1 << 41  #: request id, above those of the raw loop


@final
class InProcess:
    """Runs rounds on one pipeline, in the thread that asks for them."""

    def __init__(self, pipeline: Any) -> None:
        self._requests = Requests(pipeline, FIRST)

    def round(self, prompts: list[list[int]], new: int, tick: float) -> dict[str, Any]:
        """Of one round: seconds, tokens, characters of text, and how late the loop was, again and again."""
        return asyncio.run(self._round(prompts, new, tick))

    async def _round(self, prompts: list[list[int]], new: int, tick: float) -> dict[str, Any]:
        async with watched(tick) as lags, _served(self._requests) as server:
            began = time.monotonic()
            read = await asyncio.gather(*(self._consume(server, prompt, new) for prompt in prompts))
            seconds = time.monotonic() - began
        tokens, characters = (sum(column) for column in zip(*read, strict=True))
        return {"seconds": seconds, "tokens": tokens, "characters": characters, "lags": lags}

    async def _consume(self, server: _Server, prompt: list[int], new: int) -> tuple[int, int]:
        """Stream one request as text: tokens, characters."""
        tokenizer = self._requests.pipeline.get_tokenizer()
        text = TextStream(lambda ids: decoded(tokenizer, ids))
        tokens = characters = 0
        async for ids in server.stream(prompt, new):
            characters += len(text.feed(ids))
            tokens += len(ids)
        return tokens, characters + len(text.flush())


@final
class _Server:
    """The thread: it adds what was asked for, steps, and posts what came out to the loop."""

    def __init__(self, requests: Requests, loop: asyncio.AbstractEventLoop) -> None:
        self._requests, self._loop = requests, loop
        self._asked: list[tuple[list[int], int, asyncio.Queue[list[int] | None]]] = []
        self._news = threading.Event()
        self._over = False

    async def stream(self, prompt: list[int], new: int) -> AsyncIterator[list[int]]:
        queue: asyncio.Queue[list[int] | None] = asyncio.Queue()
        self._asked.append((prompt, new, queue))
        self._news.set()
        while (ids := await queue.get()) is not None:
            yield ids

    def close(self) -> None:
        self._over = True
        self._news.set()

    def run(self) -> None:
        live: list[tuple[Any, asyncio.Queue[list[int] | None]]] = []
        pipeline = self._requests.pipeline
        while not self._over or live:
            if not live:
                self._news.wait()
            self._news.clear()
            while self._asked:
                prompt, new, queue = self._asked.pop(0)
                live.append((self._requests.add([prompt], new)[0], queue))
            if pipeline.has_non_finished_requests():
                pipeline.step()
            live = [(handle, queue) for handle, queue in live if self._post(handle, queue)]

    def _post(self, handle: Any, queue: asyncio.Queue[list[int] | None]) -> bool:
        """False: it has ended."""
        import openvino_genai as genai

        while handle.can_read():
            for output in handle.read().values():
                self._loop.call_soon_threadsafe(queue.put_nowait, list(output.generated_ids))
        if handle.get_status() == genai.GenerationStatus.RUNNING:
            return True
        self._loop.call_soon_threadsafe(queue.put_nowait, None)
        return False


@contextlib.asynccontextmanager
async def _served(requests: Requests) -> AsyncIterator[_Server]:
    server = _Server(requests, asyncio.get_running_loop())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        await asyncio.to_thread(thread.join)
