"""Where a call goes: to the lane of its lease, of its session while nobody waits there, else where most room is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from examples.two_cards import home

NEW: Mapping[str, float] = {"room": 1.0, "one": 0.1, "inside": 0}  #: of a lane that has told nothing yet


@frozen
class Offer:
    """What is known of a lane."""

    lane: str
    room: float


class MostRoom(RequestRouter):
    """For `RequestRouterConfig`. Every process that calls has one; each goes by what the lanes tell of themselves every
    second, and by what was sent to them since.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        session = pending_request.metadata.session_id if pending_request else ""
        lane = pending_request.kwargs.get("lane", "") if pending_request else ""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        offers = [Offer(name, self._room(replica)) for name, replica in by_name.items()]
        return [[by_name[name]] for name in ranked(offers, session, lane)]

    def _room(self, replica: RunningReplica) -> float:
        told: Mapping[str, Any] = replica.routing_stats or NEW
        sent = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return float(told["room"] - max(0, sent - told["inside"]) * told["one"])


def ranked(offers: Sequence[Offer], session: str = "", lane: str = "") -> list[str]:
    """Names of lanes, the best first.

    `lane`: this one alone. If it is gone, any: that knows nothing of the lease, and says so.
    """
    if any(offer.lane == lane for offer in offers):
        return [lane]
    rooms = {offer.lane: offer.room for offer in offers}
    best = sorted(rooms, key=lambda name: rooms[name], reverse=True)
    if session and rooms and rooms[own := home(session, [*rooms])] > 0:
        best.sort(key=lambda name: name != own)
    return best
