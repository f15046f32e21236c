"""The OpenAI client against a model that answers, and against one on the emulated GPU."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from gpu import emulation
from openai_server.served import FULL, HELLO, Served, served

CAPITAL: Any = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


async def streamed(server: Served, messages: Any) -> tuple[str, str | None]:
    text, reason = "", None
    async with server.async_client(timeout=120) as client:
        stream = await client.chat.completions.create(
            model=server.name, messages=messages, max_tokens=12, temperature=0, stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
    return text, reason


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.timeout(180)
def test_a_real_model_answers_whole_streamed_in_threads_and_in_asyncio(smollm2: Path) -> None:
    with served(smollm2, properties={}, scheduler={"num_kv_blocks": 128}, boot=120) as server:
        with server.client(timeout=120) as client:
            whole = client.chat.completions.create(model=server.name, messages=CAPITAL, max_tokens=12, temperature=0)
            scored = client.chat.completions.create(
                model=server.name, messages=CAPITAL, max_tokens=2, temperature=0, logprobs=True
            )
        text, reason = asyncio.run(streamed(server, CAPITAL))
        assert "Paris" in (whole.choices[0].message.content or "")
        assert (text, reason) == (whole.choices[0].message.content, whole.choices[0].finish_reason)
        logprobs = scored.choices[0].logprobs
        assert logprobs is not None
        tokens = [one.token for one in logprobs.content or []]
        assert "".join(tokens) == scored.choices[0].message.content
        server.at_rest()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)  # it may be the one that compiles the kernels
def test_the_same_client_is_served_on_the_emulated_gpu() -> None:
    try:
        gpu = emulation.prepare()
    except emulation.Absent as why:
        pytest.skip(f"no emulated GPU: {why}")
    with served(
        device="GPU",
        properties=gpu.properties(),
        environment=gpu.environment(os.environ),
        scheduler={"num_kv_blocks": 64},
        limits={"running_max": 2},
        boot=200,
    ) as server:
        with server.client(timeout=120) as client:
            whole = client.chat.completions.create(
                model="plain", messages=HELLO, max_tokens=8, temperature=0, extra_body=FULL
            )
            stream = client.chat.completions.create(
                model="plain", messages=HELLO, max_tokens=8, temperature=0, stream=True, extra_body=FULL
            )
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content
        server.at_rest()
