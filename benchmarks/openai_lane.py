"""The OpenAI-compatible server of examples/ as a process, for benchmarks that talk to it as its clients do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from attrs import frozen
from holding_proxy import free_port

ROOT = Path(__file__).resolve().parent.parent
BOOT = 120.0


@frozen
class Server:
    port: int
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port


@contextlib.asynccontextmanager
async def served(
    command: Sequence[str], options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """`command`: what takes the arguments of `python -m examples.openai_server`. Ready, and gone afterwards."""
    port = free_port()
    told = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    words = [word for pair in told.items() for word in pair]
    places = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--port", str(port), *words, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": places, **(environment or {})}, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await _ready(port, process)
        yield Server(port, process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _ready(port: int, process: asyncio.subprocess.Process) -> None:
    end = time.monotonic() + BOOT
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/readyz")).status_code == 200:
                    return
            if process.returncode is not None or time.monotonic() > end:
                raise RuntimeError("the server did not become ready")
            await asyncio.sleep(0.05)
