"""What clients get when the engine hangs: a server and its test, without a model, a child process or real time.

Wants more than boundedgen itself: `pip install "boundedgen[testing]" starlette httpx`, then `pytest wedged_lane.py`.
"""

import asyncio

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import boundedgen as b
from boundedgen.testing import Fault, Simulation


def server(pipeline: b.BoundedPipeline) -> Starlette:
    """What is tested: an endpoint that turns errors into answers."""

    async def generate(request: Request) -> JSONResponse:
        asked = await request.json()
        try:
            answer = await pipeline.agenerate(asked["prompt"], bounds=b.Bounds(total=asked.get("timeout")))
        except b.BoundedGenError as error:
            return JSONResponse({"error": type(error).__name__}, error.http_status_hint)
        return JSONResponse({"text": answer.text})

    return Starlette(routes=[Route("/generate", generate, methods=["POST"])])


def test_a_wedged_lane_answers_its_clients_and_comes_back(bounded_simulation: Simulation) -> None:
    sim = bounded_simulation
    transport = httpx.ASGITransport(server(sim.pipeline))

    async def clients() -> list[tuple[int, str]]:
        async with httpx.AsyncClient(transport=transport, base_url="http://lane") as http, asyncio.timeout(300):
            sim.inject(Fault(kind="wedge", at_step=5))
            asked = [{"prompt": "hello", "timeout": 2}, {"prompt": "hello"}]
            responses = await asyncio.gather(*(http.post("/generate", json=request) for request in asked))
            responses.append(await http.post("/generate", json=asked[1]))
            return [(response.status_code, response.json().get("error", "")) for response in responses]

    assert sim.run(clients()) == [(504, "DeadlineExceeded"), (503, "EngineLost"), (200, "")]


# --- try it ----------------------------------------------------------------------------------------------------------


if __name__ == "__main__":
    with Simulation() as simulation:
        test_a_wedged_lane_answers_its_clients_and_comes_back(simulation)
        print(f"answered, and back, within {simulation.now - 1000:.0f} simulated seconds")
