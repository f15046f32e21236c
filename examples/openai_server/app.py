"""The application: all routes over one pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import boundedgen as b
from examples.openai_server.answering import Completions
from examples.openai_server.lane import Lane
from examples.openai_server.lane_page import lane_routes
from examples.openai_server.leases import Leases
from examples.openai_server.looking import Looking
from examples.openai_server.problems import Problem
from examples.openai_server.settings import Settings


def application(pipeline: b.BoundedPipeline, settings: Settings, model_path: str) -> Starlette:
    """Serves from before the model is loaded until the process ends, and closes `pipeline` then.

    `model_path`: whose tokenizer tells the texts of single tokens, for logprobs.
    """
    lane = Lane(pipeline, settings, model_path)
    inside = {settings.model: lane.inside}
    routes = [
        Route("/v1/chat/completions", Completions(lane, "chat"), methods=["POST"]),
        Route("/v1/completions", Completions(lane, "text"), methods=["POST"]),
        *Models(lane).routes(),
        *Leases(lane).routes(),
        *Looking(lane).routes(),
        *lane_routes({settings.model: pipeline}, admin_token=settings.admin_token, inside=inside),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await pipeline.aclose(drain=0)  # after a SIGTERM it has been drained (serving.py); elsewise it ends here

    handlers: Any = {Problem: _told, HTTPException: _http, Exception: _failed}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class Models:
    """GET /v1/models."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self._created = lane, int(time.time())

    def routes(self) -> list[Route]:
        return [Route("/v1/models", self.every), Route("/v1/models/{name:path}", self.one)]

    async def every(self, request: Request) -> Response:
        self._lane.owner(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def one(self, request: Request) -> Response:
        self._lane.owner(request)
        if not self._lane.settings.knows(request.path_params["name"]):
            raise Problem(404, "there is no model of this name here", param="model", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        name = self._lane.settings.model
        return {"id": name, "object": "model", "created": self._created, "owned_by": "boundedgen"}


async def _told(_: Request, problem: Problem) -> Response:
    return problem.response()


async def _http(request: Request, error: HTTPException) -> Response:
    """No such path, or not this method."""
    known = {404: ("unknown_url", f"there is no {request.url.path} here"), 405: ("method_not_allowed", error.detail)}
    code, text = known.get(error.status_code, (None, error.detail))
    response = Problem(error.status_code, text, code=code).response()
    response.headers.update(error.headers or {})
    return response


async def _failed(_: Request, __: Exception) -> Response:
    """A bug of this server; uvicorn logs it."""
    return Problem(500, "the server failed", code="internal_error", retryable=False).response()
