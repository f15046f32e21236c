"""A server's trace over the real engine: the client's header, the server's span, the generation's, the metrics."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest
from exporters.sdk import Sdk, about, sdk
from genai.lanes import FULL, PLAIN, ids, lane, nothing_left_behind
from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import boundedgen as b

__all__ = ["sdk"]  # a fixture

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADERS = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}


def server(pipeline: b.BoundedPipeline, sdk: Sdk) -> Starlette:
    """/traced has a span of its own, as instrumentation of the framework gives it one; /plain hands the header on."""

    async def traced(request: Request) -> Response:
        within = extract(dict(request.headers))
        with sdk.tracer.start_as_current_span("POST /traced", context=within, kind=SpanKind.SERVER):
            return await answer(request, None)

    async def plain(request: Request) -> Response:
        return await answer(request, request.headers.get("traceparent"))

    async def answer(request: Request, traceparent: str | None) -> Response:
        asked = await request.json()
        bounds = b.Bounds(total=asked.pop("total", 60))
        try:
            told = await pipeline.agenerate(ids(40), bounds=bounds, traceparent=traceparent, **asked, **FULL)
        except b.GenerationError as error:
            return JSONResponse({}, error.http_status_hint)
        return JSONResponse({"tokens": told.completion_tokens, "first": told.first_token_s, "total": told.total_s})

    handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {"/traced": traced, "/plain": plain}
    return Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in handlers.items()])


async def asked(app: Starlette) -> tuple[httpx.Response, ...]:
    """Of one that is served, of one by the header alone, of one that is late."""
    late = {"max_new_tokens": 2000, "total": 0.05}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://lane") as client:
        return (
            await client.post("/traced", json={"max_new_tokens": 30}, headers=HEADERS),
            await client.post("/plain", json={"max_new_tokens": 5}, headers=HEADERS),
            await client.post("/traced", json=late, headers={"traceparent": "no such thing"}),
        )


def test_a_generation_s_span_hangs_below_its_server_s_and_its_client_s(sdk: Sdk) -> None:
    with nothing_left_behind(model_files=False), lane() as pipeline, sdk.instrument(pipeline) as telling:
        answers = asyncio.run(asked(server(pipeline, sdk)))
        assert [answer.status_code for answer in answers] == [200, 200, 504]
        answer = answers[0]
        telling.close()
        first, second, third = sdk.spans()
        served, failed = (span for span in sdk.exporter.get_finished_spans() if span.name.startswith("POST"))
        metrics = sdk.metrics()
    assert trace.format_trace_id(served.context.trace_id) == TRACE
    assert first.context is not None
    assert first.parent == served.context
    assert (first.name, first.kind) == ("text_completion plain", SpanKind.CLIENT)
    assert about(first)["gen_ai.request.model"] == "plain"
    assert (about(first)["gen_ai.usage.input_tokens"], about(first)["gen_ai.usage.output_tokens"]) == (40, 30)
    assert served.start_time <= first.start_time  # type: ignore[operator]
    queued, prefill, decode = (event.timestamp for event in first.events)
    assert queued == first.start_time
    assert queued <= prefill <= decode <= first.end_time  # type: ignore[operator]
    assert first.end_time <= served.end_time  # type: ignore[operator]
    assert (first.end_time - first.start_time) / 1e9 == pytest.approx(answer.json()["total"], abs=1e-6)  # type: ignore[operator]
    assert (decode - queued) / 1e9 == pytest.approx(answer.json()["first"], abs=1e-6)
    assert second.parent is not None
    assert trace.format_span_id(second.parent.span_id) == CLIENT
    assert third.parent == failed.context
    assert failed.parent is None
    assert about(third)["error.type"] == "DeadlineExceeded"
    assert about(third)["boundedgen.bound"] == "total"
    assert metrics["gen_ai.server.time_to_first_token"][0].count == 2
    assert {point.attributes["gen_ai.request.model"] for point in metrics["gen_ai.client.token.usage"]} == {PLAIN_NAME}


PLAIN_NAME = PLAIN.rstrip("/").rpartition("/")[2]
