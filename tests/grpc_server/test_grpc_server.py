"""The gRPC example on the small real model, asked by gRPC's own client: deadlines, cancellation, statuses, health."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from genai.lanes import F32, PLAIN, at_rest
from process.lanes import engine_pid

import boundedgen as b

grpc = pytest.importorskip(
    "grpc", reason="grpcio is not installed: pip install grpcio grpcio-tools grpcio-health-checking"
)
pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
pytest.importorskip("grpc_health", reason="grpcio-health-checking is not installed")

from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402

from examples.grpc_server.client import ask, pieces  # noqa: E402
from examples.grpc_server.server import HEADROOM, serving  # noqa: E402
from examples.grpc_server.wire import BOUND, ERROR, PUSHBACK, RETRYABLE, protos, services  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_new_tokens": 1500, "ignore_eos": True}
SHORT: dict[str, Any] = {"prompt": "Once upon a time", "max_new_tokens": 5, "ignore_eos": True}
#: gRPC's own retries, which heed what the server says of when.
RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "boundedgen.example.Lane"}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "0.1s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"],
                },
            }
        ]
    }
)


@pytest.fixture(scope="module")
def lane() -> Iterator[b.BoundedPipeline]:
    """One inside, one waiting."""
    limits = b.Limits(running_max=1, waiting_max=1)
    restart = b.RestartPolicy(wait=lambda state: 0.0)
    admission = b.Admission(margin=None)  # who has too little time is let in all the same
    with b.BoundedPipeline(
        PLAIN, {"num_kv_blocks": 64}, "CPU", F32, limits=limits, restart=restart, admission=admission
    ) as pipeline:
        yield pipeline


@pytest.fixture(autouse=True)
def all_blocks_back(lane: b.BoundedPipeline) -> Iterator[None]:
    """After each test the lane is ready and empty, whatever became of the calls."""
    yield
    lane.wait_ready(20)
    at_rest(lane, restarts=lane.stats().restarts_total)


@contextlib.asynccontextmanager
async def channel_to(lane: b.BoundedPipeline, *options: tuple[str, Any]) -> AsyncIterator[Any]:
    server, port = serving(lane, "127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield channel
    finally:
        await server.stop(grace=None)


def served(lane: b.BoundedPipeline, scene: Callable[[Any], Awaitable[None]], *options: tuple[str, Any]) -> None:
    async def main() -> None:
        async with channel_to(lane, *options) as channel:
            await asyncio.wait_for(scene(channel), 20)

    asyncio.run(main())


async def until(done: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.002)


async def rest_of(call: Any) -> list[Any]:
    found = []
    while (piece := await call.read()) is not grpc.aio.EOF:
        found.append(piece)
    return found


async def end_of(call: Any) -> tuple[Any, str, dict[str, str]]:
    """Status, text and trailing metadata of a call that fails; what it says before that is read."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await rest_of(call)
    trailing = {str(key): str(value) for key, value in failed.value.trailing_metadata() or ()}
    return failed.value.code(), failed.value.details() or "", trailing


def called(channel: Any, timeout: float | None = 10.0, **asked: Any) -> Any:
    return services.LaneStub(channel).Generate(protos.Question(**asked), timeout=timeout)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_the_pieces_are_what_the_pipeline_says_and_the_last_one_tells_how_it_ended(lane: b.BoundedPipeline) -> None:
    whole = lane.generate("Once upon a time", max_new_tokens=40, ignore_eos=True)

    async def scene(channel: Any) -> None:
        got = [piece async for piece in called(channel, **{**LONG, "max_new_tokens": 40})]
        assert "".join(piece.text for piece in got) == whole.text
        assert len(got) > 3
        assert not any(piece.HasField("end") for piece in got[:-1])
        end = got[-1].end
        assert (end.finish_reason, end.completion_tokens) == ("length", 40)
        assert end.prompt_tokens == whole.prompt_tokens

    served(lane, scene)


# --- deadlines and cancellation --------------------------------------------------------------------------------------


def test_the_deadline_of_a_call_is_its_bound_and_the_status_names_it(lane: b.BoundedPipeline) -> None:
    """In the server's own words, which arrive before the client's own clock has ended the call."""

    async def scene(channel: Any) -> None:
        os.kill(engine_pid(lane), signal.SIGSTOP)  # it is there, and does nothing
        try:
            began = time.monotonic()
            code, text, trailing = await end_of(called(channel, timeout=0.8, **LONG))
            assert time.monotonic() - began < 0.8
        finally:
            os.kill(engine_pid(lane), signal.SIGCONT)
        assert (code, trailing[BOUND], trailing[ERROR]) == (
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "total",
            "DeadlineExceeded",
        )
        assert "'total'" in text
        assert trailing[RETRYABLE] == "false"

    served(lane, scene)
    assert 0 < HEADROOM < 0.5


def test_one_that_waits_too_long_is_told_so_and_may_come_again(lane: b.BoundedPipeline) -> None:
    async def scene(channel: Any) -> None:
        inside = called(channel, **LONG)
        await inside.read()
        code, _, trailing = await end_of(called(channel, queued_s=0.1, **SHORT))
        assert (code, trailing[BOUND], trailing[RETRYABLE]) == (grpc.StatusCode.UNAVAILABLE, "queued", "true")
        inside.cancel()

    served(lane, scene)


@pytest.mark.parametrize("how", ["cancelled", "iterator left", "channel closed"])
def test_a_client_that_leaves_ends_its_generation_at_once(lane: b.BoundedPipeline, how: str) -> None:
    async def scene(channel: Any) -> None:
        before = lane.stats()
        if how == "iterator left":
            async with contextlib.aclosing(pieces(channel, 10, **LONG)) as stream:
                await anext(stream)
                await until(lambda: lane.stats().running == 1)
        else:
            call = called(channel, **LONG)
            await call.read()
            await (channel.close(grace=None) if how == "channel closed" else asyncio.sleep(0, call.cancel()))
        began = time.monotonic()
        await until(lambda: lane.stats().running + lane.stats().stopping == 0)
        assert time.monotonic() - began < 1.0  # it had 1,500 tokens to go
        assert lane.stats().finished_total["cancelled"] == before.finished_total["cancelled"] + 1

    served(lane, scene)


# --- statuses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "code", "error"),
    [
        ({"prompt": "x", "queued_s": float("nan")}, "INVALID_ARGUMENT", "InvalidRequest"),
        ({"prompt": ""}, "INVALID_ARGUMENT", "InvalidRequest"),
        ({"prompt": "x" * 5000, "max_new_tokens": 5}, "OUT_OF_RANGE", "NeverFits"),
        ({**SHORT, "lease": "0" * 32}, "FAILED_PRECONDITION", "LeaseExpired"),
        ({**SHORT, "queued_s": -1.0}, "UNAVAILABLE", "DeadlineExceeded"),
    ],
)
def test_what_is_refused_has_the_status_of_its_error(
    lane: b.BoundedPipeline, asked: dict[str, Any], code: str, error: str
) -> None:
    async def scene(channel: Any) -> None:
        status, text, trailing = await end_of(called(channel, **asked))
        assert (status.name, trailing[ERROR]) == (code, error)
        assert text

    served(lane, scene)


def test_a_full_lane_says_when_to_come_again(lane: b.BoundedPipeline) -> None:
    async def scene(channel: Any) -> None:
        inside, waiting = called(channel, **LONG), called(channel, **LONG)
        await until(lambda: lane.stats().running + lane.stats().waiting == 2)
        code, _, trailing = await end_of(called(channel, **SHORT))
        assert (code, trailing[ERROR]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Saturated")
        assert 0 < int(trailing[PUSHBACK]) <= 90_000
        inside.cancel()
        waiting.cancel()

    served(lane, scene)


def test_a_lease_that_is_revoked_and_an_engine_that_is_lost_end_a_stream_with_their_statuses(
    lane: b.BoundedPipeline,
) -> None:
    async def scene(channel: Any) -> None:
        lease = lane.lease("me", ttl=30)
        under = called(channel, lease=lease.id, **LONG)
        await under.read()
        lease.revoke()
        code, _, trailing = await end_of(under)
        assert (code, trailing[ERROR]) == (grpc.StatusCode.CANCELLED, "LeaseLost")
        inside = called(channel, **LONG)
        await inside.read()
        os.kill(engine_pid(lane), signal.SIGKILL)
        code, _, trailing = await end_of(inside)
        assert (code, trailing[ERROR], trailing[RETRYABLE]) == (grpc.StatusCode.UNAVAILABLE, "EngineLost", "true")
        assert await ask(channel, 15, **SHORT)  # of the next engine

    served(lane, scene)


# --- clients that try again ------------------------------------------------------------------------------------------


def test_a_client_is_served_by_retrying_after_a_refusal_and_after_the_loss_of_an_engine(
    lane: b.BoundedPipeline,
) -> None:
    async def scene(channel: Any) -> None:
        crowd = [asyncio.create_task(ask(channel, 15, **{**SHORT, "max_new_tokens": 200})) for _ in range(5)]
        await until(lambda: lane.stats().running == 1)
        os.kill(engine_pid(lane), signal.SIGKILL)
        answers = await asyncio.gather(*crowd)
        assert all(answers)

    served(lane, scene)


def test_grpcs_own_retries_wait_for_as_long_as_they_are_told(lane: b.BoundedPipeline) -> None:
    async def scene(channel: Any) -> None:
        refused = lane.stats().rejected_total.get("Saturated", 0)
        crowd = [called(channel, **LONG), called(channel, **LONG)]
        await until(lambda: lane.stats().running + lane.stats().waiting == 2)
        third = asyncio.create_task(text_of(called(channel, **SHORT)))
        await until(lambda: lane.stats().rejected_total.get("Saturated", 0) > refused)
        for call in crowd:
            call.cancel()
        assert await third
        assert lane.stats().rejected_total["Saturated"] <= refused + 3  # its own backoff is 0.1 s at most

    served(lane, scene, ("grpc.service_config", RETRIES))


async def text_of(call: Any) -> str:
    return "".join([piece.text async for piece in call])


# --- health ----------------------------------------------------------------------------------------------------------


def test_health_is_told_by_service_and_a_watcher_sees_an_engine_go_and_come(lane: b.BoundedPipeline) -> None:
    async def scene(channel: Any) -> None:
        stub = health_pb2_grpc.HealthStub(channel)

        async def check(service: str) -> str:
            said = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            return str(health_pb2.HealthCheckResponse.ServingStatus.Name(said.status))

        watched = stub.Watch(health_pb2.HealthCheckRequest(service="boundedgen.example.Lane"))
        seen = [(await watched.read()).status]
        assert await check("") == await check("liveness") == await check("startup") == "SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check("nobody")
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        os.kill(engine_pid(lane), signal.SIGKILL)
        await until(lambda: not lane.health().ready)
        assert await check("") == "NOT_SERVING"
        assert await check("liveness") == await check("startup") == "SERVING"  # it heals by itself
        seen += [(await watched.read()).status, (await watched.read()).status]
        watched.cancel()
        known = health_pb2.HealthCheckResponse
        assert seen == [known.SERVING, known.NOT_SERVING, known.SERVING]

    served(lane, scene)


# --- the process -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-W", "error", "-m", "examples.grpc_server", PLAIN, "--device", "CPU", "--port", "0"]
    command += ["--drain", "5", "--scheduler", '{"num_kv_blocks": 64}']
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            first = started.stdout.readline()
            yield started, int(first.rpartition(":")[2] or 0)
        finally:
            started.kill()


def test_the_server_drains_when_it_is_told_to_stop() -> None:
    async def scene(port: int, server: subprocess.Popen[str]) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watched = stub.Watch(health_pb2.HealthCheckRequest())
            while (await watched.read()).status != health_pb2.HealthCheckResponse.SERVING:
                pass
            inside = called(channel, **{**LONG, "max_new_tokens": 1000})
            first = await inside.read()
            server.send_signal(signal.SIGTERM)
            while (await watched.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
                pass
            code, _, trailing = await end_of(called(channel, **SHORT))
            assert (code, trailing[ERROR]) == (grpc.StatusCode.UNAVAILABLE, "PipelineClosed")
            rest = await rest_of(inside)
            assert first.text
            assert rest[-1].end.completion_tokens == 1000

    with process() as (server, port):
        assert port
        asyncio.run(asyncio.wait_for(scene(port, server), 60))
        out, said = server.communicate(timeout=20)
        assert server.returncode == 0, said
        assert "draining" in out
        assert not said
