"""What the endpoints of one server share: its pipeline, its settings, and who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, final

from starlette.requests import Request

import boundedgen as b
from examples.openai_server.fields import body_of
from examples.openai_server.inside import Inside
from examples.openai_server.problems import Problem, problem_of
from examples.openai_server.settings import Owners, Settings
from examples.openai_server.token_texts import TokenTexts


class Stalled(Exception):
    """The client takes nothing."""


@final
class Lane:
    def __init__(self, pipeline: b.BoundedPipeline, settings: Settings, model_path: str) -> None:
        self.pipeline = pipeline
        self.settings = settings
        self.texts = TokenTexts(model_path)
        self.inside = Inside()
        self._owners = Owners(settings.api_keys)

    def owner(self, request: Request) -> str:
        """Whose key it is. Raises Problem."""
        owner = self._owners.of(request.headers.get("authorization", ""))
        if owner is None:
            text = "this API key is not known; send it as: Authorization: Bearer KEY"
            raise Problem(401, text, code="invalid_api_key", retryable=False)
        return owner

    async def body(self, request: Request) -> dict[str, Any]:
        """Of at most so many bytes, a JSON object. Raises Problem."""
        data = bytearray()
        async for piece in request.stream():
            data += piece
            if len(data) > self.settings.body_bytes:
                text = f"the body has more than {self.settings.body_bytes} bytes"
                raise Problem(413, text, code="request_too_large")
        return body_of(bytes(data))

    def lease_of(self, owner: str, lease_id: str) -> b.Lease:
        """Raises LeaseExpired: over, unknown and another owner's look alike, since the id is a bearer token."""
        lease = self.pipeline.find_lease(lease_id)
        if lease is None or lease.owner != owner:
            raise b.LeaseExpired("this lease is over or never existed; ask for a new one: POST /v1/leases")
        return lease

    def problem(self, error: b.BoundedGenError, prompt: str = "prompt") -> Problem:
        """`prompt`: the field that the prompt was in."""
        return problem_of(error, prompt, self.pipeline.health(), self.settings.unknown_after_s)

    async def within(self, sending: Awaitable[None]) -> None:
        """A client that takes nothing any more, and does not hang up, is hung up on. Raises Stalled."""
        try:
            async with asyncio.timeout(self.settings.stalled_s):
                await sending
        except TimeoutError:
            raise Stalled from None
