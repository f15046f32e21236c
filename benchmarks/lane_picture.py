"""The lane page, in Chromium: of a lane whose engine hangs, and on a phone, where its server is lost at last.

    python benchmarks/lane_picture.py [--folder docs] [--model MODEL]      # or: nox -s page_picture

Writes lane-page.png and lane-page-phone.png. The lane, its clients and the hang are real; the engine is stopped by a
signal, and so is the server for the last of the three pictures of a phone. Takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from lane_browser import chromium, missing, sized
from openai_lane import Server, served
from PIL import Image
from selenium.webdriver import Chrome
from workload import smollm2

TOKEN = "a-token-for-a-picture"
OWNERS = ("agents", "chat", "search")
DESK, PHONE = (1240, 980), (360, 760)
COLOURS = 128  #: of a picture
SLOTS = 6
QUESTIONS = ("What is a lighthouse?", "Tell me a story about the sea.", "Why is the sky blue?")


class Clients:
    """Who is inside. Each request is a task."""

    def __init__(self, server: Server) -> None:
        limits = httpx.Limits(max_connections=100)
        self._http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120, limits=limits)
        self._tasks: list[asyncio.Task[None]] = []
        self._random = random.Random(7)

    async def lease(self) -> dict[str, str]:
        told = await self._http.post("/v1/leases", json={"ttl": 60}, headers={"Authorization": "Bearer k-agents"})
        return {"X-Lease-Id": told.json()["id"]}

    def ask(self, owner: str, tokens: int, total: float, headers: dict[str, str] | None = None) -> None:
        self._tasks.append(asyncio.create_task(self._ask(owner, tokens, total, headers or {})))

    async def _ask(self, owner: str, tokens: int, total: float, headers: dict[str, str]) -> None:
        body = {
            "model": "SmolLM2-135M",
            "messages": [{"role": "user", "content": self._random.choice(QUESTIONS)}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "bounds": {"total": total},
        }
        with contextlib.suppress(httpx.TransportError):
            await self._http.post(
                "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer k-{owner}"} | headers
            )

    async def some_while(self) -> None:
        """Short ones, of which some reach their bounds and some are given up."""
        for turn in range(24):
            self.ask(OWNERS[turn % 3], 10 + turn % 5, 0.4 if turn % 8 == 3 else 60)
            if turn % 7 == 5:
                await asyncio.sleep(0.2)
                self._tasks[-1].cancel()
            await asyncio.sleep(0.3)

    async def stats(self) -> Any:
        return (await self._http.get("/stats")).json()["stats"]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()


def shot(browser: Chrome) -> Image.Image:
    told = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return Image.open(io.BytesIO(base64.b64decode(told["data"]))).convert("RGB")


def phone(browser: Chrome, theme: str) -> Image.Image:
    sized(browser, *PHONE, phone=True, theme=theme)
    browser.execute_script("scrollTo(0, 0)")
    return shot(browser)


def beside(pictures: list[Image.Image]) -> Image.Image:
    gap, (width, height) = 24, PHONE
    whole = Image.new("RGB", (len(pictures) * (width + gap) - gap, height), "white")
    for index, picture in enumerate(pictures):
        whole.paste(picture, (index * (width + gap), 0))
    return whole


def kept(picture: Image.Image, path: Path) -> None:
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


@contextlib.contextmanager
def keys() -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({f"k-{owner}": owner for owner in OWNERS}, file)
        file.flush()
        yield file.name


async def pictures(model: str, browser: Chrome, keys_file: str) -> tuple[Image.Image, list[Image.Image]]:
    options = {
        "--device": "CPU",
        "--name": "SmolLM2-135M",
        "--scheduler": {"num_kv_blocks": 512, "max_num_batched_tokens": 256},
        "--limits": {"running_max": SLOTS, "lease_ttl_max": 60.0},
    }
    environment = {"BOUNDEDGEN_API_KEYS": keys_file, "BOUNDEDGEN_ADMIN_TOKEN": TOKEN}
    async with served(["-m", "examples.openai_server", model], options, environment) as server:
        clients = Clients(server)
        try:
            return await _pictures(server, clients, browser)
        finally:
            await clients.close()


async def _pictures(server: Server, clients: Clients, browser: Chrome) -> tuple[Image.Image, list[Image.Image]]:
    sized(browser, *DESK)
    browser.get(f"http://127.0.0.1:{server.port}/")
    browser.execute_script(f"sessionStorage.setItem('boundedgen-admin-token', '{TOKEN}')")
    await clients.some_while()
    lease = await clients.lease()
    for turn in range(SLOTS + 3):
        owner = OWNERS[turn % 3]
        clients.ask(owner, 1200 + 100 * turn, 45 + 12 * turn, lease if owner == "agents" else None)
        await asyncio.sleep(0.3)
    await asyncio.sleep(4)
    ready = await asyncio.to_thread(phone, browser, "dark")
    pid = (await clients.stats())["engine_pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(7)
        hangs = await asyncio.to_thread(phone, browser, "dark")
        sized(browser, *DESK)
        await asyncio.sleep(0.6)
        desk = await asyncio.to_thread(shot, browser)
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(6)
        lost = await asyncio.to_thread(phone, browser, "light")
    finally:
        os.kill(server.pid, signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return desk, [ready, hangs, lost]


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "docs")
    given.add_argument("--model", help="else SmolLM2-135M")
    told = given.parse_args()
    if why := missing():
        raise SystemExit(why)
    with keys() as file, chromium() as browser:
        desk, phones = asyncio.run(pictures(told.model or smollm2(), browser, file))
    kept(desk, told.folder / "lane-page.png")
    kept(beside(phones), told.folder / "lane-page-phone.png")


if __name__ == "__main__":
    main()
