"""What an operator may do to a lane from its page: cancel a sequence, revoke a lease, kill the engine.

Each wants the admin token in a header that only the page's script sends: there are no cookies, so no other site can
make a browser do it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, final

from attrs import frozen
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import boundedgen as b
from examples.openai_server.fields import Check, body_of, read, text, whole
from examples.openai_server.inside import Inside
from examples.openai_server.problems import Problem, invalid

BODY_MOST: Final = 4096  #: bytes
_NAMES: Final[dict[str, Check]] = {"lane": text}
logger = logging.getLogger(__name__)
Act = Callable[[Request], Awaitable[str]]  #: what has been done, in words


@final
@frozen
class Acted:
    """A lane, and the handles of what is inside; None: they are not kept."""

    pipeline: b.BoundedPipeline
    inside: Inside | None = None

    @property
    def can(self) -> tuple[str, ...]:
        return ("kill",) if self.inside is None else ("cancel", "revoke", "kill")


@final
class Actions:
    def __init__(self, lanes: Mapping[str, Acted], token: str) -> None:
        self._lanes, self._token = lanes, _hash(token)

    def routes(self) -> list[Route]:
        every: tuple[Act, ...] = (self.admin, self.cancel, self.revoke, self.kill)
        return [Route(f"/lane/{act.__name__}", self._guarded(act), methods=["POST"]) for act in every]

    async def admin(self, _: Request) -> str:
        """POST /lane/admin: 200: the token is the right one."""
        return "the buttons are there"

    async def cancel(self, request: Request) -> str:
        """POST /lane/cancel {"lane", "sequence"}: 404: there is none, or no more; 409: it has ended already."""
        lane, given = await self._asked(request, sequence=whole(1))
        number, inside = given["sequence"], _kept(lane)
        row = next((row for row in lane.pipeline.stats(sequences=True).sequences or () if row.id == number), None)
        if row is None:
            raise Problem(404, f"there is no sequence {number} inside", param="sequence", code="not_inside")
        generation = inside.generation(number)
        if row.phase == "stopping" or (generation is not None and generation.finish_reason is not None):
            raise Problem(409, f"sequence {number} has ended already", param="sequence", code="ended")
        if generation is None or not generation.cancel():
            raise Problem(409, f"sequence {number} cannot be cancelled from here", param="sequence", code="not_held")
        return f"sequence {number} is cancelled"

    async def revoke(self, request: Request) -> str:
        """POST /lane/revoke {"lane", "lease"}, the eight digits that statistics show; 404: it is over, or not known."""
        lane, given = await self._asked(request, lease=text)
        digits = given["lease"]
        lease = _kept(lane).lease(digits)
        if lease is None or not lane.pipeline.revoke(lease.id):
            raise Problem(404, f"there is no live lease {digits[:8]} here", param="lease", code="no_lease")
        return f"lease {digits} is revoked, and all that ran under it ends"

    async def kill(self, request: Request) -> str:
        """POST /lane/kill {"lane", "incarnation"}: 409: this engine is gone already, or has no process yet."""
        lane, given = await self._asked(request, incarnation=whole(1))
        wanted, stats = given["incarnation"], lane.pipeline.stats()
        if stats.incarnation != wanted or stats.engine_pid is None or not _killed(lane.pipeline, stats.engine_pid):
            raise Problem(409, f"engine {wanted} is gone already", param="incarnation", code="engine_gone")
        return f"engine {wanted} is killed, and will be replaced"

    # --- who asks, and for what --------------------------------------------------------------------------------------

    def _guarded(self, act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                self._admit(request)
                done = await act(request)
            except Problem as problem:
                return problem.response()
            if request.url.path != "/lane/admin":
                logger.warning("lane page, asked by %s: %s", request.client.host if request.client else "?", done)
            return JSONResponse({"done": done}, headers={"Cache-Control": "no-store"})

        return answer

    def _admit(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(_hash(token.strip()), self._token):
            raise Problem(401, "this is not the admin token", code="invalid_admin_token", retryable=False)

    async def _asked(self, request: Request, **fields: Check) -> tuple[Acted, dict[str, Any]]:
        data = bytearray()
        async for piece in request.stream():
            data += piece
            if len(data) > BODY_MOST:
                raise Problem(413, f"the body has more than {BODY_MOST} bytes", code="request_too_large")
        checks = {**_NAMES, **fields}
        given = read(body_of(bytes(data)), checks)
        for name in checks:
            if name not in given:
                raise invalid(name, f"{name} is missing", "missing_required_parameter")
        lane = self._lanes.get(given["lane"])
        if lane is None:
            raise Problem(404, "there is no lane of this name here", param="lane", code="no_lane")
        return lane, given


def _kept(lane: Acted) -> Inside:
    if lane.inside is None:
        raise Problem(409, "this server does not keep the handles of what is inside", code="not_held")
    return lane.inside


def _killed(pipeline: b.BoundedPipeline, pid: int) -> bool:
    """Held by a descriptor, so that no other process of this number can be meant. A stopped one dies of it, too."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if pipeline.stats().engine_pid != pid:
            return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(held)
    return True


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
