"""Calls of the OpenAI client and what comes of each, as a table for docs/openai-server.md.

    python tests/openai_server/calls.py        # records them anew, on the small model

tests/openai_server/test_calls.py makes them too, and fails where the page says something else.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from openai_server.served import ROOT, Served, served

PAGE = ROOT / "docs" / "openai-server.md"
BEGIN, END = "<!-- recorded: calls -->\n", "<!-- end of calls -->"
HELLO: Any = [{"role": "user", "content": "Hello!"}]
FULL: Any = {"ignore_eos": True}
USAGE: Any = {"include_usage": True}
CUT: Any = {"ignore_eos": True, "bounds": {"total": 0.3}}
WEATHER: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

#: What is called, on a client of threads and, where it can be awaited, on one of asyncio too.
CALLS: tuple[str, ...] = (
    "models.list()",
    'models.retrieve("plain")',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=5, extra_body=FULL)',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=5, extra_body=FULL, stream=True)',
    'chat.completions.create(model="plain", messages=HELLO, stream=True, stream_options=USAGE, extra_body=FULL)',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=5, extra_body=FULL, n=2, temperature=1)',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=5, extra_body=FULL, logprobs=True)',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=5, extra_body=FULL, tools=WEATHER)',
    'completions.create(model="plain", prompt="The sea is", max_tokens=5, extra_body=FULL)',
    'completions.create(model="plain", prompt=["The sea", "The sky"], max_tokens=5, extra_body=FULL, stream=True)',
    'completions.create(model="plain", prompt=[10, 20, 30], max_tokens=5, extra_body=FULL, logprobs=1)',
    'chat.completions.create(model="plain", messages=HELLO, temperature=3)',
    'chat.completions.create(model="plain", messages=HELLO, logprobs=True, top_logprobs=5)',
    'chat.completions.create(model="plain", messages=HELLO, response_format={"type": "xml"})',
    'chat.completions.create(model="gpt-5", messages=HELLO)',
    'completions.create(model="plain", prompt=[5] * 33_000)',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=8000, extra_body=CUT)',
    'chat.completions.create(model="plain", messages=HELLO, max_tokens=8000, extra_body=CUT, stream=True)',
    'chat.completions.create(model="plain", messages=HELLO, extra_headers={"X-Lease-Id": "none"})',
    'embeddings.create(model="plain", input="x")',
)


def names() -> dict[str, Any]:
    return {name: globals()[name] for name in ("HELLO", "FULL", "USAGE", "CUT", "WEATHER")}


# --- what came of it -------------------------------------------------------------------------------------------------


def error(raised: openai.APIError) -> str:
    status = f"{raised.status_code}, " if isinstance(raised, openai.APIStatusError) else ""
    param = f", param `{raised.param}`" if raised.param else ""
    return f"{type(raised).__name__}: {status}code `{raised.code}`{param}"


def ends(choices: list[Any]) -> str:
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    return ", ".join(reasons)


def answer(got: Any) -> str:
    if not hasattr(got, "choices"):
        return type(got).__name__
    usage = f"; {got.usage.completion_tokens} tokens" if got.usage else ""
    scored = "; logprobs" if any(choice.logprobs for choice in got.choices) else ""
    return f"{type(got).__name__}: {ends(got.choices)}{usage}{scored}"


def stream(chunks: list[Any], after: str) -> str:
    told = f"stream: {ends([choice for chunk in chunks for choice in chunk.choices])}"
    usage = [chunk.usage for chunk in chunks if chunk.usage]
    told += f"; {usage[0].completion_tokens} tokens" if usage else ""
    return f"{told}; then {after}" if after else told


def in_threads(client: openai.OpenAI, call: str) -> str:
    try:
        got = eval(f"client.{call}", {"client": client, **names()})
    except openai.APIError as raised:
        return error(raised)
    if not isinstance(got, openai.Stream):
        return answer(got)
    chunks: list[Any] = []
    after = ""
    try:
        chunks.extend(got)
    except openai.APIError as raised:
        after = error(raised)
    return stream(chunks, after)


async def in_asyncio(client: openai.AsyncOpenAI, call: str) -> str:
    try:
        got = eval(f"client.{call}", {"client": client, **names()})
        got = await got if inspect.isawaitable(got) else got
    except openai.APIError as raised:
        return error(raised)
    if not isinstance(got, openai.AsyncStream):
        return answer(got)
    chunks: list[Any] = []
    after = ""
    try:
        async for chunk in got:
            chunks.append(chunk)  # noqa: PERF401  # those before an error count
    except openai.APIError as raised:
        after = error(raised)
    return stream(chunks, after)


# --- the table -------------------------------------------------------------------------------------------------------


def recorded(server: Served) -> Iterator[tuple[str, str, str]]:
    """Each call, what it came to in threads, and in asyncio."""
    with server.client() as client:
        told = [in_threads(client, call) for call in CALLS]

    async def again() -> list[str]:
        async with server.async_client() as client:
            return [await in_asyncio(client, call) for call in CALLS]

    yield from zip(CALLS, told, asyncio.run(again()), strict=True)


def table(server: Served) -> str:
    lines = ["| `client.…` | comes to | `AsyncOpenAI` |", "| --- | --- | --- |"]
    for call, told, awaited in recorded(server):
        lines.append(f"| `{call}` | {told} | {'the same' if awaited == told else awaited} |")
    return "\n".join(lines) + "\n"


def part_of(page: str) -> str:
    return page.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    with served() as server:
        told = table(server)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + told + END + rest.partition(END)[2], encoding="utf-8")
    print(told)


if __name__ == "__main__":
    main()
