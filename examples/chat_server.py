"""A chat server on asyncio alone, and a client that tries again. python examples/chat_server.py MODEL [DEVICE]"""

import asyncio
import json
import math
import sys
from contextlib import suppress
from typing import Any

import boundedgen as b


class ChatServer:
    """POST a JSON object of user, chat, messages and timeout; the answer is a line of JSON for each piece of text.

    Nothing is sent before the first piece, so that who waits in vain gets a status: 429, 503, 504.
    """

    def __init__(self, pipeline: b.BoundedPipeline) -> None:
        self._pipeline = pipeline

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection, with one request. Whoever hangs up cancels the generation."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].partition("\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            answer = asyncio.create_task(self._answer(asked, writer))
            gone = asyncio.create_task(reader.read(1))  # after the body nothing comes but the end
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)
        writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        begun = False
        try:
            async with await self._submit(asked) as generation:
                async for chunk in generation:
                    if not begun:
                        writer.write(head_of(200, {}))
                        begun = True
                    writer.write(line_of(text=chunk.text))
                    await writer.drain()  # a client that does not read ends SlowReader after a while
            writer.write(line_of(end=str(generation.finish_reason)))
        except b.BoundedGenError as error:
            if not begun:
                writer.write(head_of(error.http_status_hint, self._headers(error)))
            writer.write(line_of(error=type(error).__name__, text=str(error)))
        await writer.drain()

    async def _submit(self, asked: dict[str, Any]) -> b.Generation:
        return await self._pipeline.asubmit(
            asked["messages"],
            max_new_tokens=300,
            bounds=b.Bounds(total=asked["timeout"], next_token=10),
            owner=asked["user"],  # shares, and supersede, are by owner: everybody has one
            label=f"chat {asked['chat']}",
            supersede=True,  # what was asked in this chat before is of no interest any more
            priority=1,  # somebody looks at a screen; what is done overnight has 0
        )

    def _headers(self, error: b.BoundedGenError) -> dict[str, str]:
        """Come again when the error says; after the loss of an engine, when the next one is expected."""
        wait = getattr(error, "retry_after_s", None) or self._pipeline.health().retry_after_s
        return {"Retry-After": str(math.ceil(wait))} if error.retryable and wait else {}


def head_of(status: int, headers: dict[str, str]) -> bytes:
    lines = (f"HTTP/1.1 {status} -", "Connection: close", *(f"{name}: {value}" for name, value in headers.items()))
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def line_of(**fields: str) -> bytes:
    return json.dumps(fields).encode() + b"\n"


Address = tuple[str, int]


async def ask(address: Address, asked: dict[str, Any], within: float) -> str:
    """A client. What its server refused is an error of this library again, so that `retrying` knows what to do."""
    async for attempt in b.retrying(total=within):
        with attempt:
            status, after, lines = await post(address, {**asked, "timeout": attempt.remaining_s})
            problem = lines[-1].get("text", "cut off") if "end" not in lines[-1] else ""
            if status == 429:
                raise b.Saturated(problem, retry_after_s=after or 1.0)
            if status == 503:
                raise b.EngineUnavailable(problem, retry_after_s=after)
            if problem:
                raise RuntimeError(f"{status}: {problem}")
            return "".join(line.get("text", "") for line in lines)
    raise AssertionError("the last attempt has an answer or an error")


async def post(address: Address, asked: dict[str, Any]) -> tuple[int, float | None, list[dict[str, str]]]:
    """Status, Retry-After, and all lines: one at least."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        body = json.dumps(asked).encode()
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        lines = [json.loads(line) async for line in reader]
    finally:
        writer.close()
    told = dict(header.lower().split(": ", 1) for header in headers if header)
    after = float(told["retry-after"]) if "retry-after" in told else None
    return int(status.split()[1]), after, lines or [{}]


# --- try it ----------------------------------------------------------------------------------------------------------


async def chat(address: Address, user: str, text: str) -> str:
    asked = {"user": user, "chat": "1", "messages": [{"role": "user", "content": text}]}
    try:
        return f"{user}, {text!r}: answered in {len(await ask(address, asked, within=30))} characters"
    except (b.BoundedGenError, RuntimeError) as error:
        return f"{user}, {text!r}: {error}"


async def main(model: str, device: str = "CPU") -> None:
    limits = b.Limits(running_max=1, waiting_max=1)  # so that it is full at once
    async with b.BoundedPipeline(model, {"num_kv_blocks": 256}, device, limits=limits) as pipeline:
        inside = await pipeline.asubmit("x", max_new_tokens=8000, ignore_eos=True, bounds=b.Bounds(total=2))
        stream = aiter(inside)  # kept: dropping it would cancel the generation
        await anext(stream)  # it runs
        server = await asyncio.start_server(ChatServer(pipeline).serve, "127.0.0.1", 0)
        async with server:
            address, chats = server.sockets[0].getsockname()[:2], []
            for user, text in (("ann", "Helo"), ("ann", "Hello!"), ("bob", "Hello!")):
                chats.append(asyncio.create_task(chat(address, user, text)))
                await asyncio.sleep(0.3)  # so that they come one after the other
            print(*await asyncio.gather(*chats), sep="\n")
        print(f"answered with 429: {pipeline.stats().rejected_total['Saturated']}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
