"""The lane page: what is inside, live, and what is wrong; with the admin token, buttons to end it.

It needs nothing of the rest of this server: `lane_routes` goes into any Starlette application.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

import boundedgen as b
from examples.openai_server.answering import unless_gone
from examples.openai_server.inside import Inside
from examples.openai_server.lane_actions import Acted, Actions
from examples.openai_server.lane_pictures import Pictures, TooManyError, Watched
from examples.openai_server.problems import Problem

STALLED_S: Final = 30.0  #: a viewer that takes nothing for this long is hung up on
_FILES: Final = Path(__file__).with_name("page")
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Nothing from elsewhere, nothing inline, and no text that becomes HTML.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def lane_routes(
    pipelines: Mapping[str, b.BoundedPipeline],
    *,
    admin_token: str | None,
    inside: Mapping[str, Inside] | None = None,
) -> list[BaseRoute]:
    """The page at `/`, and what it asks under `/lane/`. `pipelines`: a lane each, by the name that is shown.

    `admin_token`: of the buttons; None: there are none, and no endpoints for them. ValueError: it is empty, or a header
    cannot carry it. `inside`: where the server keeps the handles of what it submits to a lane; without it only engines
    can be killed.
    """
    if admin_token is not None and not admin_token.strip():
        raise ValueError("admin_token is empty; None: no buttons")
    if admin_token is not None and not (admin_token.isascii() and admin_token.strip().isprintable()):
        raise ValueError("admin_token has characters that a header cannot carry: take letters and digits")
    acted = {name: Acted(pipeline, (inside or {}).get(name)) for name, pipeline in pipelines.items()}
    watched = {name: Watched(lane.pipeline, lane.can if admin_token else ()) for name, lane in acted.items()}
    pictures = Pictures(watched)
    actions = Actions(acted, admin_token.strip()).routes() if admin_token else []
    looks = [Route("/lane/events", Events(pictures), methods=["GET"]), Route("/lane/state", State(pictures).get)]
    return [*_static(), *looks, *actions]


@final
class State:
    def __init__(self, pictures: Pictures) -> None:
        self._pictures = pictures

    async def get(self, _: Request) -> Response:
        """GET /lane/state: a picture, once."""
        picture = await self._pictures.now()
        return Response(picture.body, media_type="application/json", headers={"Cache-Control": "no-store"})


@final
class Events:
    """GET /lane/events, as an ASGI application: a viewer that hangs up, or takes nothing any more, is gone at once."""

    def __init__(self, pictures: Pictures, stalled_s: float = STALLED_S) -> None:
        self._pictures, self._stalled_s = pictures, stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(TimeoutError):  # then what was sent is no whole answer: uvicorn closes the connection
            await unless_gone(receive, self._stream(scope, receive, send))

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pictures.events()) as events:
            try:
                first = await anext(events)
            except TooManyError:
                text = "too many are looking at this page; GET /lane/state shows as much"
                await Problem(503, text, code="too_many_viewers", retry_after_s=5).response()(scope, receive, send)
                return
            headers = {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-store",
                "x-accel-buffering": "no",
            }
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._taken(send, {"type": "http.response.start", "status": 200, "headers": raw})
            await self._taken(send, {"type": "http.response.body", "body": first, "more_body": True})
            async for event in events:
                await self._taken(send, {"type": "http.response.body", "body": event, "more_body": True})
        await self._taken(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _taken(self, send: Send, message: dict[str, Any]) -> None:
        """Raises TimeoutError: the viewer takes nothing."""
        async with asyncio.timeout(self._stalled_s):
            await send(message)


def _static() -> list[BaseRoute]:
    """Read once, so that no path can name another file."""
    files = {path.name: path for path in sorted(_FILES.iterdir()) if path.suffix in _KINDS}
    routes: list[BaseRoute] = [Route("/", _file(files.pop("page.html")))]
    return routes + [Route(f"/lane/page/{name}", _file(path)) for name, path in files.items()]


def _file(path: Path) -> Any:
    body, kind = path.read_bytes(), _KINDS[path.suffix]

    async def get(_: Request) -> Response:
        return Response(body, media_type=kind, headers=_HEADERS)

    return get
