"""What a server serves, to whom, and within which limits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import final

from attrs import field, frozen


@final
@frozen(kw_only=True)
class Settings:
    """The limits of the pipeline hold beside these: its own are `Limits` and `Bounds` of the BoundedPipeline."""

    model: str  #: its name in requests and answers
    aliases: frozenset[str] = field(default=frozenset(), converter=frozenset)  #: other names for it, in requests
    api_keys: Mapping[str, str] = field(factory=dict, repr=False)  #: owner by key; empty: any key, or none, will do
    admin_token: str | None = field(default=None, repr=False)  #: of the buttons of the lane page; None: it has none
    drain_s: float = 30.0  #: after SIGTERM, for what is inside
    body_bytes: int = 4 << 20  #: of a request
    choices_max: int = 8  #: generations of one request: prompts times `n`
    lease_ttl_s: float = 15.0  #: of a lease for which no ttl is asked
    lease_sequences_max: int | None = None  #: generations under one lease at once; None: no limit
    stalled_s: float = 60.0  #: a client that takes nothing for this long is hung up on
    unknown_after_s: float = 5.0  #: Retry-After of a 503 where nobody knows when

    def knows(self, model: str) -> bool:
        return model == self.model or model in self.aliases


@final
class Owners:
    """Who has which key. Keys are compared by their hashes, and appear in no log and no statistics."""

    def __init__(self, api_keys: Mapping[str, str]) -> None:
        self._owners = {_hash(key): owner for key, owner in api_keys.items()}

    def of(self, authorization: str) -> str | None:
        """The owner; "" for no key; None: this key is not known."""
        scheme, _, key = authorization.partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
        if self._owners:
            return self._owners.get(_hash(key))
        return f"key-{_hash(key)[:8]}" if key else ""


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
