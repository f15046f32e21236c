"""A lane of the fleet: a replica of the deployment, with a pipeline on a device or a share of the CPUs of its node."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from attrs import frozen
from ray import serve

import boundedgen as b
from examples.two_cards import one, room


@frozen
class Begun:
    """A lane has taken the call."""

    lane: str
    generation_id: int


#: What a stream consists of: Begun, chunks, and at its end the completion or an error. One without an end was cut off.
Item = Begun | b.Chunk | b.Completion | b.BoundedGenError


class Lane:
    """What is raised in a replica comes to its caller wrapped by Ray; errors are given back as they are, instead."""

    _pipeline: b.BoundedPipeline | None = None

    def __init__(
        self,
        model: str,
        scheduler_config: Mapping[str, Any] | None = None,
        device: str = "GPU",
        properties: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Ready at its end, so that Serve counts no lane and sends nothing to one that still loads its model."""
        self._name = str(serve.get_replica_context().replica_id.unique_id)
        self._pipeline = b.BoundedPipeline(model, scheduler_config, card(device), properties, **(settings or {}))
        with ThreadPoolExecutor(1) as aside:  # this thread has an event loop, which nothing may block for long later
            aside.submit(self._pipeline.wait_ready).result()

    def __del__(self) -> None:
        """Serve calls it at the end of a replica, once nobody is inside any more: how it drains."""
        if self._pipeline is not None:
            self._pipeline.close()

    # --- what callers ask, by way of Fleet ---------------------------------------------------------------------------

    async def generate(
        self, prompt: object, *, bounds: b.Bounds, lane: str = "", arguments: Mapping[str, Any]
    ) -> AsyncIterator[Item]:
        """`lane`: where it was sent, for the router. A caller that leaves cancels this, and so the generation."""
        try:
            async with await self._lane.asubmit(prompt, bounds=bounds, **arguments) as generation:
                yield Begun(self._name, generation.id)
                async for chunk in generation:
                    yield chunk
                yield await generation
        except b.BoundedGenError as error:
            yield error

    async def lease(self, owner: str, ttl: float) -> str | b.BoundedGenError:
        """Its id, with the name of this lane in front: where it is renewed, and where calls under it go."""
        try:
            return f"{self._name}/{self._lane.lease(owner, ttl=ttl).id}"
        except b.BoundedGenError as error:
            return error

    async def renew(self, lease: str, owner: str, *, lane: str) -> b.BoundedGenError | None:
        """A heartbeat. Also asked of a lane that does not know the lease, if the one that granted it is gone."""
        try:
            self._lane.renew(lease, owner)
        except b.BoundedGenError as error:
            return error
        return None

    async def revoke(self, lease: str, *, lane: str) -> bool:
        return self._lane.revoke(lease)

    async def look(self) -> dict[str, Any]:
        """Health and stats with a row a sequence: docs/on-call.md."""
        return self._lane.stats_document(self._name)

    # --- what Serve asks ---------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """An engine that starts, hangs or is replaced is no reason to replace the replica; one that was given up is."""
        health = self._lane.health()
        if not health.live:
            raise RuntimeError(f"{health.state}: {health.error or health.reason}")

    async def record_routing_stats(self) -> dict[str, float]:
        """For MostRoom."""
        stats = self._lane.stats()
        free = room(stats) if self._lane.health().ready else -math.inf
        return {"room": free, "one": one(stats), "inside": stats.running + stats.waiting}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For lanes_wanted: 0 is an idle lane, 1 a full one, 3 a full one with twice as much in its queue."""
        return {"load": min(max(0.0, 1 - room(self._lane.stats())), LOAD_MOST)}

    @property
    def _lane(self) -> b.BoundedPipeline:
        assert self._pipeline is not None
        return self._pipeline


LOAD_MOST = 100.0  #: of a lane, for scaling; also of one whose room is not known


def card(device: str) -> str:
    """ "GPU" is the card that Ray has given to this replica, such as "GPU.1"; everything else is itself."""
    given = ray.get_runtime_context().get_accelerator_ids().get("GPU") if device == "GPU" else None
    return f"GPU.{given[0]}" if given else device
