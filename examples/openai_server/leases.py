"""Leases: a client says again and again that it is there. When it stops, all that runs under its lease ends, whoever
goes on reading. The id is a bearer token: it travels in the header X-Lease-Id, so that no log of URLs has it.
"""

from __future__ import annotations

from typing import Any, Final, final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import boundedgen as b
from examples.openai_server.fields import Check, number, read, whole
from examples.openai_server.lane import Lane
from examples.openai_server.problems import invalid

HEADER: Final = "x-lease-id"
_FIELDS: Final[dict[str, Check]] = {"ttl": number(0, above=True), "max_sequences": whole(1)}


@final
class Leases:
    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def routes(self) -> list[Route]:
        return [
            Route("/v1/leases", self.grant, methods=["POST"]),
            Route("/v1/leases", self.revoke, methods=["DELETE"]),
            Route("/v1/leases/heartbeat", self.renew, methods=["POST"]),
        ]

    async def grant(self, request: Request) -> Response:
        """POST /v1/leases: 201, a new one. The body may have ttl, in seconds, and max_sequences."""
        owner = self._lane.owner(request)
        given = await self._given(request)
        settings = self._lane.settings
        most = min(filter(None, (given.get("max_sequences"), settings.lease_sequences_max)), default=None)
        try:
            lease = self._lane.pipeline.lease(owner, ttl=given.get("ttl", settings.lease_ttl_s), max_sequences=most)
        except ValueError as error:  # more than the server allows
            raise invalid("ttl", str(error)) from None
        except b.BoundedGenError as error:
            raise self._lane.problem(error) from error
        self._lane.inside.hold(lease)
        return JSONResponse(_told(lease), 201, {"X-Lease-Id": lease.id, "Cache-Control": "no-store"})

    async def renew(self, request: Request) -> Response:
        """POST /v1/leases/heartbeat: 200, valid for its ttl from now; 410: over, or not known."""
        owner = self._lane.owner(request)
        try:
            lease = self._lane.pipeline.renew(self._id(request), owner=owner)
        except b.BoundedGenError as error:
            raise self._lane.problem(error) from error
        return JSONResponse(_told(lease), headers={"Cache-Control": "no-store"})

    async def revoke(self, request: Request) -> Response:
        """DELETE /v1/leases: 204, over, with all that runs under it; 410: it was already, or never was."""
        owner = self._lane.owner(request)
        try:
            self._lane.lease_of(owner, self._id(request)).revoke()
        except b.LeaseExpired as error:
            raise self._lane.problem(error) from error
        return Response(status_code=204)

    async def _given(self, request: Request) -> dict[str, Any]:
        """A body is not needed."""
        if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
            return {}
        return read(await self._lane.body(request), _FIELDS)

    def _id(self, request: Request) -> str:
        found = request.headers.get(HEADER)
        if not found:
            raise invalid("X-Lease-Id", "the header X-Lease-Id is missing: the id of the lease")
        return found


def _told(lease: b.Lease) -> dict[str, Any]:
    return {"id": lease.id, "object": "lease", "ttl_s": lease.ttl_s, "remaining_s": round(lease.remaining_s, 3)}
