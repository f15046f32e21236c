"""A server under test: the example of the docs, and the ways in which servers call a pipeline."""

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import boundedgen as b
from boundedgen.testing import Fault, SimModel, Simulation

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "wedged_lane.py"
#: What a lane without boundedgen's watchdog would be: nobody looks at how long a step takes.
NEVER = 1e6
UNWATCHED = b.Limits(
    step=NEVER, step_max=NEVER, first_step=NEVER, new_shape=NEVER, progress=NEVER, ack=NEVER, reclaim=NEVER
)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wedged_lane", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(20)
def test_the_example_holds(example: ModuleType, bounded_simulation: Simulation) -> None:
    example.test_a_wedged_lane_answers_its_clients_and_comes_back(bounded_simulation)


@pytest.mark.timeout(20)
@pytest.mark.bounded_simulation(limits=UNWATCHED, bounds=b.Bounds(total=NEVER))
def test_the_example_fails_where_nobody_watches_the_engine(example: ModuleType, bounded_simulation: Simulation) -> None:
    with pytest.raises(TimeoutError):
        example.test_a_wedged_lane_answers_its_clients_and_comes_back(bounded_simulation)


def app(pipeline: b.BoundedPipeline) -> Starlette:
    def sync(request: Request) -> JSONResponse:
        """Runs in a thread of anyio's."""
        try:
            answer = pipeline.generate("hello", max_new_tokens=5, bounds=b.Bounds(total=3))
        except b.BoundedGenError as error:
            return JSONResponse({"error": type(error).__name__}, error.http_status_hint)
        return JSONResponse({"tokens": answer.completion_tokens})

    async def stream(request: Request) -> StreamingResponse:
        generation = await pipeline.asubmit("hello", max_new_tokens=50, bounds=b.Bounds(total=20))

        async def body() -> Any:
            async with generation:
                try:
                    async for chunk in generation:
                        yield f"{len(chunk.token_ids)} "
                except b.BoundedGenError as error:
                    yield type(error).__name__

        return StreamingResponse(body())

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({}, 200 if pipeline.health().ready else 503)

    paths: dict[str, Any] = {"/sync": sync, "/stream": stream, "/ready": ready}
    return Starlette(routes=[Route(path, call) for path, call in paths.items()])


async def fetch(sim: Simulation, *paths: str) -> list[httpx.Response]:
    transport = httpx.ASGITransport(app(sim.pipeline))
    async with httpx.AsyncClient(transport=transport, base_url="http://lane") as http:
        return await asyncio.gather(*(http.get(path) for path in paths))


def test_endpoints_that_run_in_threads_are_answered_to_the_instant(bounded_simulation: Simulation) -> None:
    sim = bounded_simulation
    (fine,) = sim.run(fetch(sim, "/sync"))
    assert fine.json() == {"tokens": 5}
    sim.inject(Fault(kind="wedge"))
    began = sim.now
    late = sim.run(fetch(sim, "/sync", "/sync", "/sync"))
    assert [(answer.status_code, answer.json()) for answer in late] == [(504, {"error": "DeadlineExceeded"})] * 3
    assert sim.now == began + 3


@pytest.mark.bounded_simulation(model=SimModel(step_s=0.5, token_s=0))
def test_a_stream_ends_with_the_name_of_the_error_that_ended_it(bounded_simulation: Simulation) -> None:
    sim = bounded_simulation
    sim.inject(Fault(kind="crash", at_step=4))
    lost, ready = sim.run(fetch(sim, "/stream", "/ready"))
    assert lost.status_code == 200
    assert lost.text.split()[-1] == "EngineLost"
    assert ready.status_code == 200
    (recovering,) = sim.run(fetch(sim, "/ready"))
    assert recovering.status_code == 503
    (slow,) = sim.run(fetch(sim, "/stream"))
    assert slow.text.endswith(" DeadlineExceeded")


def test_a_server_in_an_event_loop_of_real_time_works_with_it(bounded_simulation: Simulation) -> None:
    sim = bounded_simulation
    fine, stream = asyncio.run(fetch(sim, "/sync", "/stream"))
    assert fine.json() == {"tokens": 5}
    assert sum(map(int, stream.text.split())) == 50
    sim.inject(Fault(kind="wedge", at_step=sim.engine.pulse(sim.now).steps_begun + 3))
    lost, late = asyncio.run(fetch(sim, "/stream", "/sync"))
    assert lost.text.endswith(" EngineLost")
    assert late.status_code in (503, 504)
    (fine,) = asyncio.run(fetch(sim, "/ready"))
    assert fine.status_code == 503
