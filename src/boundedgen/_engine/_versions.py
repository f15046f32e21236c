"""Which versions this process runs. A package that is replaced under a server is another one to its next engine."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from functools import cache

from boundedgen._engine import _start


@cache
def versions() -> Mapping[str, str]:
    """As of the first call, which reads files. Empty for what is not installed."""
    return {"boundedgen": str(sys.modules["boundedgen"].__version__), "openvino-genai": installed("openvino-genai")}


def installed(name: str) -> str:
    """The version of a distribution, where this process imports from; empty: there is none. Reads files."""
    found = importlib.metadata.distributions(name=name, path=_start.places())
    return next((distribution.version for distribution in found), "")


def replaced(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What the engine of `theirs` differs in, and what to do, in words; empty: nothing."""
    changed = [
        f"{name} was upgraded from {ours.get(name) or 'none'} to {theirs.get(name) or 'none'}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    return f"{' and '.join(changed)} under this server; restart the server" if changed else ""
