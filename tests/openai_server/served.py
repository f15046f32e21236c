"""The server as people run it: a process of its own, in one line, gone without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import httpx
import openai

ROOT = Path(__file__).resolve().parents[2]
PLAIN = ROOT / "tests" / "models" / "plain"
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
BLOCKS = {"num_kv_blocks": 1024, "max_num_batched_tokens": 256}
PATIENCE_S = 30.0
FULL = {"ignore_eos": True}  #: in the body: to the full length, whatever the model says
HELLO: Any = [{"role": "user", "content": "Hello!"}]


@final
class Served:
    """A server that is ready."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, name: str) -> None:
        self.process = process
        self.port = port
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def client(self, **arguments: Any) -> openai.OpenAI:
        given = {"api_key": "somebody", "max_retries": 0, "timeout": PATIENCE_S, **arguments}
        return openai.OpenAI(base_url=f"{self.url}/v1", **given)

    def async_client(self, **arguments: Any) -> openai.AsyncOpenAI:
        given = {"api_key": "somebody", "max_retries": 0, "timeout": PATIENCE_S, **arguments}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **given)

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def chat(self, **fields: Any) -> dict[str, Any]:
        """A body."""
        return {"model": self.name, "messages": HELLO, "max_tokens": 5, **FULL, **fields}

    def stats(self) -> dict[str, Any]:
        told: dict[str, Any] = self.http.get("/stats").json()["stats"]
        return told

    def stats_rows(self) -> list[dict[str, Any]]:
        """A row a sequence."""
        rows: list[dict[str, Any]] = self.stats()["sequences"]
        return rows

    def wait(self, path: str, status: int, within: float = PATIENCE_S) -> httpx.Response:
        """Until a page answers so."""
        end = time.monotonic() + within
        while (answer := self.http.get(path)).status_code != status:
            assert time.monotonic() < end, answer.text
            time.sleep(0.01)
        return answer

    def until(self, done: Callable[[dict[str, Any]], bool], what: str, within: float = PATIENCE_S) -> dict[str, Any]:
        """The first stats for which `done`."""
        end = time.monotonic() + within
        while not done(stats := self.stats()):
            assert time.monotonic() < end, f"not within {within:g} s: {what}: {stats}"
            time.sleep(0.005)
        return stats

    def at_rest(self, within: float = PATIENCE_S) -> dict[str, Any]:
        """Nothing inside, nothing reserved, and every submission accounted for."""
        stats = self.until(is_empty, "that nothing is inside", within)
        assert stats["submitted_total"] == sum(stats["finished_total"].values())
        return stats


def is_empty(stats: Mapping[str, Any]) -> bool:
    return not any(stats[name] for name in ("waiting", "running", "stopping", "blocks_reserved"))


@contextlib.contextmanager
def served(
    model: Path = PLAIN,
    *,
    device: str = "CPU",
    properties: Mapping[str, Any] | None = None,
    scheduler: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    bounds: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    drain: float = 5.0,
    environment: Mapping[str, str] | None = None,
    faults: bool = False,
    ready: bool = True,
    status: int = 0,
    boot: float = 60.0,
) -> Iterator[Served]:
    """`faults`: engines are lost in this test, and the log may say so. `ready`: wait for it. `status`: of its exit."""
    told = {
        "--scheduler": {**BLOCKS, **(scheduler or {})},
        "--properties": F32 if properties is None else properties,
        "--limits": {"running_max": 8, **(limits or {})},
        "--bounds": bounds or {},
        "--settings": settings or {},
    }
    options = [word for name, value in told.items() for word in (name, json.dumps(value))]
    command = [sys.executable, "-m", "examples.openai_server", str(model), "--device", device, "--port", "0"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, *options, "--drain", f"{drain:g}"],
            cwd=ROOT,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
        try:
            server = Served(process, _port(process, log, boot), model.stem)
            with server.http:
                if ready:
                    server.wait("/readyz", 200, boot)
                yield server
                ended(server, status)
            assert faults or "Traceback" not in (said := _said_so_far(log)), said
        finally:
            process.kill()
            process.wait(10)


def ended(server: Served, status: int = 0, within: float = 20.0) -> None:
    """SIGTERM, unless it has got one, and an orderly end."""
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(within) == status


def _port(process: subprocess.Popen[bytes], log: Any, within: float) -> int:
    end = time.monotonic() + within
    while not (found := re.search(r"running on http://127\.0\.0\.1:(\d+)", said := _said_so_far(log))):
        assert process.poll() is None, said
        assert time.monotonic() < end, said
        time.sleep(0.02)
    return int(found[1])


def _said_so_far(log: Any) -> str:
    """Without moving the place at which the process writes: its descriptor shares it."""
    return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")


# --- streams as they come --------------------------------------------------------------------------------------------


def events(response: httpx.Response) -> Iterator[Any]:
    """What each event of a stream holds; "[DONE]" as it is."""
    for line in response.iter_lines():
        if line:
            assert line.startswith("data: "), line
            yield "[DONE]" if line == "data: [DONE]" else json.loads(line.removeprefix("data: "))


def text_of(told: list[Any]) -> str:
    choices = [choice for event in told if event != "[DONE]" for choice in event.get("choices", [])]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def ends_of(told: list[Any]) -> list[str]:
    choices = [choice for event in told if event != "[DONE]" for choice in event.get("choices", [])]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
