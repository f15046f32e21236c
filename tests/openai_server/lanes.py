"""A lane that is looked at, and clients that are inside it for a while."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, final

import httpx
from openai_server.served import Served

ADMIN = "an admin's token"
KEYS = "BOUNDEDGEN_API_KEYS"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TURNED = "gpj.\u202eyadot"  #: the second half of it is written from right to left
OWNERS = {"k-ann": "ann", "k-bob": "bob", "k-evil": HOSTILE, "k-long": "x" * 150, "k-turned": TURNED}
SECRET = "a prompt that nobody else may read"


@final
class Client:
    """One request, in a thread."""

    def __init__(self, server: Served, key: str, tokens: int, headers: dict[str, str]) -> None:
        self.answer: httpx.Response | None = None
        body = {**server.chat(max_tokens=tokens), "messages": [{"role": "user", "content": SECRET}]}
        sent = {"Authorization": f"Bearer {key}", **headers}
        self._thread = threading.Thread(target=self._ask, args=(server, body, sent))
        self._thread.start()

    def _ask(self, server: Served, body: Any, headers: dict[str, str]) -> None:
        with contextlib.suppress(httpx.TransportError):  # the test has ended the server
            self.answer = server.post("/v1/chat/completions", body, **headers)

    def ended(self) -> tuple[int, str]:
        """Status, and the code of what it was told; empty: an answer."""
        self._thread.join(30)
        assert self.answer is not None
        told = self.answer.json()
        return self.answer.status_code, told.get("error", {}).get("code", "")


@contextlib.contextmanager
def inside(server: Served, *keys: str, **headers: str) -> Iterator[list[Client]]:
    """A sequence of each of these keys is in the lane, in this order; cancelled afterwards, if it is still there."""
    clients, tokens = [], 28_000 // min(4, len(keys))  # for as many seconds as its blocks allow
    for number, key in enumerate(keys, 1):
        clients.append(Client(server, key, tokens, headers))
        server.until(lambda stats, number=number: len(stats["sequences"]) >= number, "that it is inside")  # type: ignore[misc]
    try:
        yield clients
    finally:
        for row in server.stats_rows():
            asked(server, "cancel", sequence=row["id"])
        for client in clients:
            client.ended()


def asked(server: Served, act: str, token: str | None = ADMIN, **fields: Any) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return server.post(f"/lane/{act}", {"lane": server.name, **fields}, **headers)


def leased(server: Served, key: str = "k-ann", ttl: float = 60) -> tuple[dict[str, str], str]:
    """The headers of a client with a lease, and what the lane shows of it."""
    from examples.openai_server.inside import shown

    headers = {"Authorization": f"Bearer {key}"}
    told = server.post("/v1/leases", {"ttl": ttl}, **headers)
    return {"X-Lease-Id": told.json()["id"]}, shown(told.json()["id"])


def state(server: Served) -> dict[str, Any]:
    """The one lane of the newest picture."""
    lane: dict[str, Any] = server.http.get("/lane/state").json()["lanes"][0]
    return lane
