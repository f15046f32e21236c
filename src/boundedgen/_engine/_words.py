"""The words between parent and engine that are nothing else: how they look on the wire is `_wire`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class Hello:
    """The engine's first word: its `time.monotonic()`, its process id, and the versions that it runs.

    The parent may be of another version, and has to be able to read this: its shape changes with that of frames only.
    """

    incarnation: int
    at: float
    pid: int
    versions: Mapping[str, str]


@frozen
class Boot:
    """What the engine is to load, as plain data."""

    spec: Mapping[str, Any]


@frozen
class Halt:
    """Stop this stay."""

    stay: int
