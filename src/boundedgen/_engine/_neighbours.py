"""Engines of this library that run on this machine, as far as this process can see them."""

from __future__ import annotations

import os
from pathlib import Path

from boundedgen import _engine

_STARTER = os.path.join("boundedgen", "_engine", "_start.py")  #: what runs every process of ours
_MODULE = 2  #: arguments behind the starter: where to import from, and then what


def engines(proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Process ids, whoever's server they belong to. Those of another container are not seen."""
    pids = (int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return tuple(sorted(pid for pid in pids if _is_engine(proc / str(pid))))


def _is_engine(process: Path) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:  # it has gone
        return False
    at = next((number for number, one in enumerate(arguments) if one.endswith(_STARTER)), None)
    return at is not None and arguments[at + _MODULE : at + _MODULE + 1] == [_engine.__name__]
